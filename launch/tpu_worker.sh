#!/usr/bin/env bash
# Keep a program running on a worker of a TPU pod after the connection ends. tpu_pod.sh calls it on every worker.
#
#   tpu_worker.sh start COMMAND ...   run COMMAND in the background, unless a program is already running
#   tpu_worker.sh status              print one line: "stepcot-status: none|running|lost|exit N"
#   tpu_worker.sh stop                send TERM and wait until the program has ended; kill it after GRACE_SECONDS
#
# Required variables: none
# Optional variables:
#   RUN_FOLDER     folder of process id, log and exit code; default ~/stepcot-run
#   GRACE_SECONDS  seconds to save at `stop`; default 120
#   ENV_FILE       file of exports that COMMAND gets; deleted once it is read
#
# "lost" means that the program ended without an exit code, for example because the machine restarted.
set -euo pipefail

folder=${RUN_FOLDER:-$HOME/stepcot-run}

status() {
  local pid
  if [[ ! -e $folder/pid ]]; then
    echo none
  elif [[ -e $folder/exit_code ]]; then
    echo "exit $(cat "$folder/exit_code")"
  elif pid=$(cat "$folder/pid") && kill -0 "$pid" 2>/dev/null &&
    [[ $(tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null) == *"STEPCOT_RUN_FOLDER=$folder"* ]]; then
    echo running # not another program with the same process id
  else
    echo lost
  fi
}

start() {
  if [[ $(status) == running ]]; then
    rm -f "${ENV_FILE:-}"
    echo "error: tpu_worker.sh: a program is already running (stop it first)" >&2
    return 2
  fi
  if [[ -n ${ENV_FILE:-} && ! -r $ENV_FILE ]]; then
    echo "error: tpu_worker.sh: ENV_FILE: '$ENV_FILE' cannot be read" >&2
    return 2
  fi
  mkdir -p "$folder"
  rm -f "$folder/exit_code"
  # The inner shell ignores TERM to record the exit code; setsid puts it, the program and its workers in one group.
  # shellcheck disable=SC2016
  STEPCOT_RUN_FOLDER=$folder ENV_FILE=${ENV_FILE:-} setsid bash -c '
    trap : TERM HUP INT
    [[ -z $ENV_FILE ]] || { source "$ENV_FILE"; rm -f "$ENV_FILE"; }
    code=0
    "$@" & child=$!
    while kill -0 "$child" 2>/dev/null; do sleep 0.2; done
    wait "$child" || code=$?
    echo "$code" >"$STEPCOT_RUN_FOLDER/exit_code.partial"
    mv "$STEPCOT_RUN_FOLDER/exit_code.partial" "$STEPCOT_RUN_FOLDER/exit_code"
  ' tpu_worker "$@" </dev/null >>"$folder/log" 2>&1 &
  echo "$!" >"$folder/pid"
}

stop() {
  local pid deadline
  [[ $(status) == running ]] || return 0
  pid=$(cat "$folder/pid")
  deadline=$((SECONDS + ${GRACE_SECONDS:-120}))
  kill -TERM -- "-$pid" 2>/dev/null || true
  while [[ $(status) == running ]]; do
    if ((SECONDS >= deadline)); then
      kill -KILL -- "-$pid" 2>/dev/null || true
    fi
    sleep 0.2
  done
}

case ${1:-} in
  start)
    shift
    (($#)) || { echo "error: tpu_worker.sh: start needs a command" >&2 && exit 2; }
    start "$@"
    ;;
  status) echo "stepcot-status: $(status)" ;;
  stop) stop ;;
  *)
    echo "error: tpu_worker.sh: '${1:-}' is not one of start, status, stop" >&2
    exit 2
    ;;
esac
