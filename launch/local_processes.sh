#!/usr/bin/env bash
# One run in N processes on this machine, as on N hosts: to try a cluster's setup, or for one process per GPU.
#
#   CONFIG=quickstart WORKDIR=runs/two launch/local_processes.sh [--dry-run] N [FLAG ...]
#
# FLAG is any flag of stepcot_jax.main, such as --config.seed=1. --dry-run prints the commands and runs none.
#
# Required variables:
#   CONFIG               name of a shipped config, or a config file
#   WORKDIR              folder of the run; a run in it is resumed
# Optional variables:
#   PYTHON               interpreter with this package; default that of an active environment, else .venv of this
#                        repository, else python3
#   DEVICES_PER_PROCESS  virtual CPU devices of each process; default 1
#   GPUS_PER_PROCESS     GPUs of each process, counted from GPU 0, instead of CPU devices; default none
#   PORT                 port of process 0, the coordinator; default a free one
#   GRACE_SECONDS        seconds to save after TERM, before a process is killed; default 120
#   LOGS                 folder of the logs; default WORKDIR/logs; required if WORKDIR is gs://
#   XLA_CLIENT_MEM_FRACTION  share of each GPU's memory that jax takes; default 0.9
#
# Process I logs to LOGS/process_I.log; the output of process 0 is also printed. If a process fails, the others
# get TERM. The script forwards TERM, INT (Ctrl-C) and HUP to all processes as TERM: the run saves and ends.
#
# Exit code: 0 if all processes finished; 75 if the run was preempted and saved (the same command resumes it); otherwise
# that of the process that failed first, or 137 if one was killed.
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

python=$(find_python)
port=${PORT:-$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
[[ $WORKDIR != *://* || -n ${LOGS:-} ]] || fail "LOGS is required with WORKDIR=$WORKDIR (a folder of this machine)"
logs=${LOGS:-$WORKDIR/logs}

make_command() { # set `command` to that of process $1
  local first
  if [[ -n $gpus ]]; then
    first=$(($1 * gpus))
    command=("${on_gpus[@]}" "CUDA_VISIBLE_DEVICES=$(seq -s , "$first" "$((first + gpus - 1))")")
  else
    command=(env JAX_PLATFORMS=cpu
      "XLA_FLAGS=${XLA_FLAGS:+$XLA_FLAGS }--xla_force_host_platform_device_count=$devices")
  fi
  command+=("$python" -m stepcot_jax.main "--config=$CONFIG" "--workdir=$WORKDIR" "--coordinator=127.0.0.1:$port"
    "--num_processes=$num_processes" "--process_id=$1" "${flags[@]+"${flags[@]}"}")
}
flags=("$@")

if ((dry_run)); then
  check_config
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
stop() { # send TERM to all running processes
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
[[ -z $deadline ]] || stop # a signal arrived during the start

look() { # collect new exit codes; `first_code` is the lowest that is not 0
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
        echo "process $i did not end within $grace_seconds s; killing it" >&2
        kill -KILL "${pids[i]}" 2>/dev/null || true
        killed=1
      fi
    done
    deadline=$((SECONDS + grace_seconds))
  fi
done
wait "$tee_pid" || true

((first_code == 0 || first_code == 75)) || exit "$first_code"
# After TERM or a preemption only codes that a process chose itself count, not its death after it lost the others.
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
