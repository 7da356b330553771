#!/usr/bin/env bash
# On a worker of a TPU pod: hold a program that outlives the connection. Called by tpu_pod.sh, on every worker.
#
#   tpu_worker.sh start COMMAND ...   run COMMAND in the background, unless one runs already
#   tpu_worker.sh status              print one line: "stepcot-status: none|running|lost|exit N"
#   tpu_worker.sh stop                tell it to end (TERM) and wait until it has; killed when the time is up
#
# Required variables: none
# Optional variables:
#   RUN_FOLDER     where its process id, log and exit code are kept; default ~/stepcot-run
#   GRACE_SECONDS  time to save at `stop`; default 120
#
# "lost" is a program that ended without an exit code, as when the machine was started anew.
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
    echo running # and is no other program that got the same number
  else
    echo lost
  fi
}

start() {
  if [[ $(status) == running ]]; then
    echo "error: tpu_worker.sh: a program is running already (stop it first)" >&2
    return 2
  fi
  mkdir -p "$folder"
  rm -f "$folder/exit_code"
  # The shell in between outlives TERM to write down the exit code; setsid makes one group of both and all workers.
  # shellcheck disable=SC2016
  STEPCOT_RUN_FOLDER=$folder setsid bash -c '
    trap : TERM HUP INT
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
