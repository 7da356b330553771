#!/usr/bin/env bash
# One run in N processes on this machine, as on N hosts: to try what a cluster does, or one process a GPU.
#
#   CONFIG=quickstart WORKDIR=runs/two launch/local_processes.sh [--dry-run] N [FLAG ...]
#
# FLAG is any flag of stepcot_jax.main, such as --config.seed=1. --dry-run prints the commands and runs none.
#
# Required variables:
#   CONFIG               config file
#   WORKDIR              folder of the run; with the same one a run goes on
# Optional variables:
#   PYTHON               interpreter that has stepcot-jax; default python3
#   DEVICES_PER_PROCESS  virtual CPU devices of each process; default 1
#   GPUS_PER_PROCESS     instead: GPUs of each process, from number 0 on; default none
#   PORT                 where process 0 is waited for; default one that is free
#   GRACE_SECONDS        time to save before a process that was told to end is killed; default 120
#
# Process I logs to WORKDIR/logs/process_I.log; what process 0 says is shown too. If one fails, the others are told to
# end (TERM). TERM, INT (Ctrl-C) and HUP are passed on to all as TERM: the run saves and ends.
#
# Exit code: 0 if all ended well; 75 if the run was preempted and saved (start again to go on); otherwise that of the
# process that failed first, or 137 if one had to be killed.
set -euo pipefail

# shellcheck source=launch/options.sh
source "$(dirname "${BASH_SOURCE[0]}")/options.sh"

missing=
for name in CONFIG WORKDIR; do
  [[ -n ${!name:-} ]] || missing+=" $name"
done
[[ -z $missing ]] || fail "required variables are not set:$missing (see --help)"
num_processes=${1:-}
[[ $num_processes =~ ^[1-9][0-9]*$ ]] || fail "'$num_processes' is not a number of processes (a whole number from 1)"
shift
devices=${DEVICES_PER_PROCESS:-1}
gpus=${GPUS_PER_PROCESS:-}
grace_seconds=${GRACE_SECONDS:-120}
for number in "$devices" "${gpus:-1}" "$grace_seconds" "${PORT:-1}"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] ||
    fail "'$number' is not a whole number from 1 (DEVICES_PER_PROCESS, GPUS_PER_PROCESS, PORT, GRACE_SECONDS)"
done
[[ -z $gpus || -z ${DEVICES_PER_PROCESS:-} ]] || fail "DEVICES_PER_PROCESS and GPUS_PER_PROCESS exclude each other"

python=${PYTHON:-python3}
port=${PORT:-$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
logs=$WORKDIR/logs

make_command() { # of process $1, into `command`
  local first
  if [[ -n $gpus ]]; then
    first=$(($1 * gpus))
    command=(env "JAX_PLATFORMS=cuda,cpu" "CUDA_VISIBLE_DEVICES=$(seq -s , "$first" "$((first + gpus - 1))")")
  else
    command=(env JAX_PLATFORMS=cpu
      "XLA_FLAGS=${XLA_FLAGS:+$XLA_FLAGS }--xla_force_host_platform_device_count=$devices")
  fi
  command+=("$python" -m stepcot_jax.main "--config=$CONFIG" "--workdir=$WORKDIR" "--coordinator=127.0.0.1:$port"
    "--num_processes=$num_processes" "--process_id=$1" "${flags[@]+"${flags[@]}"}")
}
flags=("$@")

if ((dry_run)); then
  show mkdir -p "$logs"
  echo
  for ((i = 0; i < num_processes; i++)); do
    make_command "$i"
    echo "$(show "${command[@]}") </dev/null >>$(show "$logs/process_$i.log") 2>&1 &"
  done
  echo wait
  exit 0
fi

pids=()
codes=()
deadline=
killed=0
stop() { # tell those that still run to end
  local i
  for i in "${!pids[@]}"; do
    [[ -n ${codes[i]:-} ]] || kill -TERM "${pids[i]}" 2>/dev/null || true
  done
  deadline=${deadline:-$((SECONDS + grace_seconds))}
}
trap stop TERM INT HUP

mkdir -p "$logs"
exec {shown}> >(exec tee -i -a "$logs/process_0.log")
tee_pid=$!
for ((i = 0; i < num_processes; i++)); do
  make_command "$i"
  if ((i)); then
    "${command[@]}" </dev/null >>"$logs/process_$i.log" 2>&1 {shown}>&- &
  else
    "${command[@]}" </dev/null >&"$shown" 2>&1 {shown}>&- &
  fi
  pids+=($!)
  codes+=("")
done
exec {shown}>&-
[[ -z $deadline ]] || stop # a signal came while they were started

look() { # take in the exit codes of those that have ended since; the lowest that is not 0 goes into `first_code`
  local i code
  for i in "${!pids[@]}"; do
    if [[ -n ${codes[i]} ]] || kill -0 "${pids[i]}" 2>/dev/null; then
      continue
    fi
    code=0
    wait "${pids[i]}" || code=$?
    codes[i]=$code
    num_left=$((num_left - 1))
    if ((code)) && [[ -z $deadline ]]; then
      echo "process $i ended with exit code $code, see $logs/process_$i.log" >&2
      ((first_code && first_code <= code)) || first_code=$code
    fi
  done
}

num_left=$num_processes
first_code=0
while ((num_left)); do
  sleep 0.2 || true
  look
  if ((first_code)) && [[ -z $deadline ]]; then
    stop
  elif [[ -n $deadline ]] && ((num_left && SECONDS >= deadline)); then
    for i in "${!pids[@]}"; do
      if [[ -z ${codes[i]} ]]; then
        echo "process $i did not end within $grace_seconds s and is killed" >&2
        kill -KILL "${pids[i]}" 2>/dev/null || true
        killed=1
      fi
    done
    deadline=$((SECONDS + grace_seconds))
  fi
done
wait "$tee_pid" || true

((first_code == 0 || first_code == 75)) || exit "$first_code"
# Told to end, or preempted: what a process died of when it lost the others says nothing, its own exit codes do.
preempted=0
own=0
lost=0
for code in "${codes[@]}"; do
  if ((code == 75)); then
    preempted=75
  elif ((code > 128)); then
    lost=$code
  elif ((code && (own == 0 || code < own))); then
    own=$code
  fi
done
((!own)) || exit "$own"
((!killed)) || exit 137
((!preempted)) || exit 75
exit "$lost"
