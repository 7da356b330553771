#!/usr/bin/env bash
# Train on the GPUs of this machine with one process, and restart a preempted run.
#
#   CONFIG=paper WORKDIR=runs/paper launch/gpu.sh [--dry-run] [FLAG ...]
#
# FLAG is any flag of stepcot_jax.main, such as --config.seed=1. --dry-run prints the commands and runs none.
#
# Required variables:
#   CONFIG           name of a shipped config, or a config file
#   WORKDIR          folder of the run; a run in it is resumed
# Optional variables:
#   PYTHON           interpreter with this package and its extra cuda12; default that of an active environment, else
#                    .venv of this repository, else python3
#   GPUS             ids of the GPUs to use, such as 0,1; default all
#   MAX_RESTARTS     limit of the restarts of a preempted run (exit code 75); default 100
#   RESTART_SECONDS  wait before a restart; default 5
#   XLA_CLIENT_MEM_FRACTION  share of each GPU's memory that jax takes; default 0.9
#
# The script forwards TERM, INT (Ctrl-C) and HUP as TERM: the run saves and ends. The exit code is the program's; 75:
# preempted and not restarted. Without a GPU the program fails instead of training on the CPU.
set -euo pipefail

# shellcheck source=launch/options.sh
source "$(dirname "${BASH_SOURCE[0]}")/options.sh"

missing=
for name in CONFIG WORKDIR; do
  [[ -n ${!name:-} ]] || missing+=" $name"
done
[[ -z $missing ]] || fail "required variables are not set:$missing (see --help)"
max_restarts=${MAX_RESTARTS:-100}
restart_seconds=${RESTART_SECONDS:-5}
for number in "$max_restarts" "$restart_seconds"; do
  [[ $number =~ ^[0-9]+$ ]] || fail "'$number' is not a whole number (MAX_RESTARTS, RESTART_SECONDS)"
done

command=("${on_gpus[@]}")
[[ -z ${GPUS:-} ]] || command+=("CUDA_VISIBLE_DEVICES=$GPUS")
command+=("$(find_python)" -m stepcot_jax.main "--config=$CONFIG" "--workdir=$WORKDIR" "$@")

if ((dry_run)); then
  check_config
  show "${command[@]}"
  echo
  exit 0
fi

child=
stopped=0
stop() {
  stopped=1
  [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true
}
trap stop TERM INT HUP

for ((restart = 0; ; restart++)); do
  "${command[@]}" </dev/null &
  child=$!
  while kill -0 "$child" 2>/dev/null; do # a bare wait would return at a signal, without the exit code
    sleep 0.2 || true
  done
  code=0
  wait "$child" || code=$?
  child=
  if ((code != 75 || stopped || restart >= max_restarts)); then
    exit "$code"
  fi
  echo "preempted; start $((restart + 2)) of at most $((max_restarts + 1)) in $restart_seconds s" >&2
  sleep "$restart_seconds" || true
  ((!stopped)) || exit 75
done
