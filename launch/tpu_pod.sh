#!/usr/bin/env bash
# A TPU pod slice (or a single TPU VM) on Google Cloud, one process a host.
#
#   launch/tpu_pod.sh [--dry-run] create    make the slice
#   launch/tpu_pod.sh [--dry-run] install   this repository's last commit on all workers; once, the second time is quick
#   launch/tpu_pod.sh [--dry-run] run [FLAG ...]    start on all workers, in the background
#   launch/tpu_pod.sh [--dry-run] status    what each worker's program does
#   launch/tpu_pod.sh [--dry-run] logs      follow the log of a worker
#   launch/tpu_pod.sh [--dry-run] watch [FLAG ...]  all of it: makes what is missing, starts, and starts again after a
#                                           preemption, in a new slice if need be, until the run is over
#   launch/tpu_pod.sh [--dry-run] stop      the run saves and ends
#   launch/tpu_pod.sh [--dry-run] delete    give the slice back, and all on its disks
#
# FLAG is any flag of stepcot_jax.main, such as --config.seed=1. --dry-run prints the commands and runs none.
#
# Required variables:
#   TPU_NAME          name of the slice
#   ZONE              such as us-west4-a
#   create, watch:
#   ACCELERATOR_TYPE  such as v5litepod-16
#   RUNTIME_VERSION   such as v2-alpha-tpuv5-lite, v2-alpha-tpuv6e, tpu-ubuntu2204-base (v4)
#   run, watch:
#   CONFIG            config file, from the top of the repository
#   WORKDIR           folder of the run, on a file system that all workers share and that outlives the slice (see NFS)
#   NUM_WORKERS       hosts of the slice; the run refuses to start with fewer or more
# Optional variables:
#   PROJECT           Google Cloud project; default that of gcloud's settings
#   SPOT              1: a slice that may be taken back at any moment
#   NFS               SERVER:/SHARE that `install` mounts as /mnt/stepcot on every worker, for WORKDIR and data
#   SSH_FLAGS         such as --tunnel-through-iap; split at spaces
#   WORKER            whose log to follow; default 0
#   POLL_SECONDS      between two looks of `watch`; default 60
#   MAX_RESTARTS      most times that `watch` starts the run again; default 100
#   GRACE_SECONDS     time to save at `stop`; default 120
#
# Exit code of `watch`: that of the program, where it ended by itself with another than 75.
set -euo pipefail

# shellcheck source=launch/options.sh
source "$(dirname "${BASH_SOURCE[0]}")/options.sh"
action=${1:-}
[[ " create install run status logs watch stop delete " == *" $action "* && -n $action ]] ||
  fail "'$action' is not one of create, install, run, status, logs, watch, stop, delete (see --help)"
shift
flags=("$@")
[[ $# -eq 0 || $action == run || $action == watch ]] || fail "$action: unexpected argument $1"

required=(TPU_NAME ZONE)
[[ $action != create && $action != watch ]] || required+=(ACCELERATOR_TYPE RUNTIME_VERSION)
[[ $action != run && $action != watch ]] || required+=(CONFIG WORKDIR NUM_WORKERS)
missing=
for name in "${required[@]}"; do
  [[ -n ${!name:-} ]] || missing+=" $name"
done
[[ -z $missing ]] || fail "$action: required variables are not set:$missing (see --help)"
poll_seconds=${POLL_SECONDS:-60}
max_restarts=${MAX_RESTARTS:-100}
grace_seconds=${GRACE_SECONDS:-120}
for number in "$poll_seconds" "$max_restarts" "$grace_seconds" "${NUM_WORKERS:-1}"; do
  [[ $number =~ ^[0-9]+$ ]] ||
    fail "'$number' is not a whole number (POLL_SECONDS, MAX_RESTARTS, GRACE_SECONDS, NUM_WORKERS)"
done

[[ $action != run && $action != watch || $WORKDIR == /* ]] ||
  fail "WORKDIR: '$WORKDIR' is not an absolute path (the same on all workers)"

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tpu=(gcloud compute tpus tpu-vm)
place=("--zone=$ZONE")
[[ -z ${PROJECT:-} ]] || place+=("--project=$PROJECT")
read -ra ssh_flags <<<"${SSH_FLAGS:-}"

run() { # a command, or print it
  if ((dry_run)); then
    show "$@"
    echo
  else
    "$@"
  fi
}

remote() { # on worker $1, the command line $2
  run "${tpu[@]}" ssh "$TPU_NAME" "${place[@]}" "${ssh_flags[@]+"${ssh_flags[@]}"}" "--worker=$1" "--command=$2"
}

create() {
  local spot=()
  [[ ${SPOT:-} != 1 ]] || spot=(--spot)
  run "${tpu[@]}" create "$TPU_NAME" "${place[@]}" "--accelerator-type=$ACCELERATOR_TYPE" \
    "--version=$RUNTIME_VERSION" "${spot[@]+"${spot[@]}"}"
}

install() {
  local revision archive steps
  revision=$(git -C "$repository" rev-parse --short=12 HEAD) || return
  [[ -z $(git -C "$repository" status --porcelain) ]] || echo "note: what is not committed is not installed" >&2
  archive=stepcot-$revision.tar.gz
  run git -C "$repository" archive --format=tar.gz "--output=/tmp/$archive" HEAD || return
  run "${tpu[@]}" scp "/tmp/$archive" "$TPU_NAME:" "${place[@]}" "${ssh_flags[@]+"${ssh_flags[@]}"}" --worker=all ||
    return
  steps="set -e; "
  if [[ -n ${NFS:-} ]]; then
    steps+="if ! mountpoint -q /mnt/stepcot; then sudo apt-get install -y -q nfs-common; sudo mkdir -p /mnt/stepcot; "
    steps+="sudo mount -t nfs $(printf %q "$NFS") /mnt/stepcot; fi; "
    steps+="test -w /mnt/stepcot || sudo chown \"\$(id -un)\" /mnt/stepcot; "
  fi
  steps+="if test \"\$(cat stepcot/.installed 2>/dev/null)\" = $revision; then exit 0; fi; "
  steps+="rm -rf stepcot; mkdir stepcot; tar -xzf $archive -C stepcot; "
  # The images bring Python 3.10; uv brings the one that the package needs.
  steps+="python3 -m pip install -q --user uv; \$HOME/.local/bin/uv venv -q --python 3.11 stepcot/.venv; "
  steps+="\$HOME/.local/bin/uv pip install -q --python stepcot/.venv/bin/python './stepcot[tpu]'; "
  steps+="echo $revision >stepcot/.installed"
  remote all "$steps"
}

start() {
  local command
  command=$(printf '%q ' bash launch/tpu_worker.sh start env JAX_PLATFORMS=tpu,cpu .venv/bin/python -m \
    stepcot_jax.main "--config=$CONFIG" "--workdir=$WORKDIR" "--num_processes=$NUM_WORKERS" \
    "${flags[@]+"${flags[@]}"}")
  remote all "cd stepcot && $command"
}

status() { remote all "bash stepcot/launch/tpu_worker.sh status"; }

stop() { remote all "GRACE_SECONDS=$grace_seconds bash stepcot/launch/tpu_worker.sh stop"; }

delete() { run "${tpu[@]}" delete "$TPU_NAME" "${place[@]}" --quiet; }

describe() { run "${tpu[@]}" describe "$TPU_NAME" "${place[@]}" "--format=value(state)"; }

state_of_slice() { # READY, PREEMPTED and so on; MISSING if there is none; UNKNOWN if nobody answers
  local found
  if found=$(describe 2>&1); then
    tail -n 1 <<<"$found"
  elif [[ $found == *NOT_FOUND* || $found == *"not found"* ]]; then
    echo MISSING
  else
    echo UNKNOWN
  fi
}

run_until_over() {
  # What was there before `watch` is not of this run, until it is seen running.
  local num_starts=0 known=0 uneven=0 state found code num_running num_done
  while true; do
    state=$(state_of_slice)
    case $state in
      MISSING)
        say "no slice: making one"
        { create && install; } || say "that failed; again in $poll_seconds s"
        ;;
      PREEMPTED | TERMINATED | STOPPED | SUSPENDED)
        say "slice is $state: giving it back"
        delete || say "that failed; again in $poll_seconds s"
        continue_soon
        continue
        ;;
      READY) ;;
      *)
        say "slice is $state"
        continue_soon
        continue
        ;;
    esac
    found=$(status 2>/dev/null | sed -n 's/^.*stepcot-status: //p' | sort) || true # some answers are better than none
    num_running=$(count running)
    num_done=$(count 'exit 0')
    code=$(sed -n 's/^exit //p' <<<"$found" | awk '$1 > 0 && $1 < 128 && $1 != 75 && !(c && c < $1) { c = $1 } END { if (c) print c }')
    if (($(count '..*') != NUM_WORKERS)); then
      say "$(count '..*') of $NUM_WORKERS workers answer"
      [[ -n $found ]] || install || true # machines that were made anew have no program
    elif ((num_running == NUM_WORKERS)); then
      known=1
      uneven=0
    elif ((known)) && [[ -n $code ]]; then
      say "a worker ended with exit code $code; the others are told to end"
      stop || true
      exit "$code"
    elif ((known && num_done == NUM_WORKERS)); then
      say "the run is over"
      exit 0
    elif ((known && num_running + num_done == NUM_WORKERS)); then
      uneven=0 # the others end soon
    elif ((num_running && !uneven)); then
      uneven=1 # one more look: others may be about to end
    else
      ((num_starts <= max_restarts)) || fail "the run ended after $max_restarts restarts, see the logs"
      say "start $((++num_starts)) of the run; found $(tr '\n' ',' <<<"$found")"
      known=1
      uneven=0
      { stop && start; } || say "that failed; again in $poll_seconds s"
    fi
    continue_soon
  done
}

count() { grep -c -x -e "$1" <<<"$found" || true; } # workers whose status is $1

say() { echo "$(date -u +%FT%TZ) $1" >&2; }
continue_soon() { sleep "$poll_seconds"; }

case $action in
  create) create ;;
  install) install ;;
  run) start ;;
  status) status ;;
  logs) remote "${WORKER:-0}" "tail -n 100 -F stepcot-run/log" ;;
  stop) stop ;;
  delete) delete ;;
  watch)
    if ((dry_run)); then
      echo "# every $poll_seconds s:"
      describe
      echo "# if there is no slice:"
      create
      install
      echo "# if it was taken back:"
      delete
      echo "# otherwise:"
      status
      echo "# if the run is not there, or was preempted:"
      stop
      start
    else
      run_until_over
    fi
    ;;
esac
