#!/usr/bin/env bash
# Train on a TPU pod slice (or a single TPU VM) on Google Cloud, one process per host.
#
#   launch/tpu_pod.sh [--dry-run] create    create the slice
#   launch/tpu_pod.sh [--dry-run] install   install this repository's last commit on all workers, unless it is there
#   launch/tpu_pod.sh [--dry-run] run [FLAG ...]    start the run on all workers, in the background
#   launch/tpu_pod.sh [--dry-run] status    show the state of each worker's program
#   launch/tpu_pod.sh [--dry-run] logs      follow the log of a worker
#   launch/tpu_pod.sh [--dry-run] watch [FLAG ...]  create, install and run as needed; restart after a preemption, in a new
#                                           slice if necessary, until the run ends
#   launch/tpu_pod.sh [--dry-run] stop      save and end the run
#   launch/tpu_pod.sh [--dry-run] delete    delete the slice and its disks
#
# FLAG is any flag of stepcot_jax.main, such as --config.seed=1. --dry-run prints the commands and runs none.
# medsage and medsage_released on 16 chips need --config.parallel.model_devices=4 --config.parallel.num_passes=16, gemex
# the first of these alone (docs/launch.md, Large policies).
#
# Required variables:
#   TPU_NAME          name of the slice
#   ZONE              such as us-west4-a
#   create, watch:
#   ACCELERATOR_TYPE  such as v5litepod-16
#   RUNTIME_VERSION   such as v2-alpha-tpuv5-lite, v2-alpha-tpuv6e, tpu-ubuntu2204-base (v4)
#   run, watch:
#   CONFIG            name of a shipped config, or a config file (relative to the repository)
#   WORKDIR           gs://BUCKET/FOLDER, or a folder on a file system that all workers share and that outlives the slice
#                     (see NFS)
#   NUM_WORKERS       hosts of the slice; the run refuses to start with fewer or more
# Optional variables:
#   PROJECT           Google Cloud project; default that of gcloud's settings
#   SPOT              1: a spot slice, which may be preempted at any time
#   QUEUED            1: request the slice as a queued resource of the same name; `watch` waits until it is granted
#   CREATE_FLAGS      more flags of gcloud's create, such as --reserved --network=NET --internal-ips; split at
#                     spaces
#   NFS               SERVER:/SHARE that `install` mounts as /mnt/stepcot on every worker, for WORKDIR and data
#   SSH_FLAGS         such as --tunnel-through-iap; split at spaces
#   ENV               names of variables that the run gets with their values here, such as "HF_TOKEN XLA_FLAGS"; they go in
#                     a file that each worker deletes, and are neither printed nor in an argument
#   CACHE             folder or gs://BUCKET/FOLDER for compiled programs, to outlive the slice; it is code: only who may
#                     run programs as you should be able to write there
#   WORKER            worker whose log `logs` follows; default 0
#   POLL_SECONDS      seconds between two checks of `watch`; default 60
#   MAX_RESTARTS      limit of the restarts by `watch`; default 100
#   GRACE_SECONDS     seconds to save at `stop`; default 120
#
# `watch` exits with the program's exit code, if the program ended by itself with a code other than 75.
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

names=()
if [[ $action == run || $action == watch ]]; then
  for name in WORKDIR ${CACHE:+CACHE}; do
    [[ ${!name} =~ ^(/|gs://) ]] ||
      fail "$name: '${!name}' is neither gs:// nor an absolute path (the same on all workers)"
  done
  read -ra names <<<"${ENV:-}"
  for name in "${names[@]+"${names[@]}"}"; do # of NAME=value only the name is printed
    [[ $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || fail "ENV: '${name%%=*}' must be the name of a variable alone"
    [[ -n ${!name+set} ]] || fail "ENV: the variable $name is not set"
  done
fi
extras=tpu
[[ ${WORKDIR:-} != gs://* && ${CACHE:-} != gs://* ]] || extras=tpu,gcs

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tpu=(gcloud compute tpus tpu-vm)
request=("${tpu[@]}") # what create, describe and delete are asked of
field=state
force=()
[[ ${QUEUED:-} != 1 ]] || request=(gcloud compute tpus queued-resources) field=state.state force=(--force)
place=("--zone=$ZONE")
[[ -z ${PROJECT:-} ]] || place+=("--project=$PROJECT")
read -ra ssh_flags <<<"${SSH_FLAGS:-}"
read -ra create_flags <<<"${CREATE_FLAGS:-}"

run() { # run a command, or print it in a dry run
  if ((dry_run)); then
    show "$@"
    echo
  else
    "$@"
  fi
}

remote() { # run the command line $2 on worker $1
  run "${tpu[@]}" ssh "$TPU_NAME" "${place[@]}" "${ssh_flags[@]+"${ssh_flags[@]}"}" "--worker=$1" "--command=$2"
}

create() {
  local more=("--version=$RUNTIME_VERSION")
  [[ ${QUEUED:-} != 1 ]] || more=("--runtime-version=$RUNTIME_VERSION" "--node-id=$TPU_NAME")
  [[ ${SPOT:-} != 1 ]] || more+=(--spot)
  run "${request[@]}" create "$TPU_NAME" "${place[@]}" "--accelerator-type=$ACCELERATOR_TYPE" "${more[@]}" \
    "${create_flags[@]+"${create_flags[@]}"}"
}

copy() { run "${tpu[@]}" scp "$1" "$TPU_NAME:${2:-}" "${place[@]}" "${ssh_flags[@]+"${ssh_flags[@]}"}" --worker=all; }

install() {
  local revision archive steps
  revision=$(git -C "$repository" rev-parse --short=12 HEAD) || return
  [[ -z $(git -C "$repository" status --porcelain) ]] || echo "note: uncommitted changes are not installed" >&2
  archive=stepcot-$revision.tar.gz
  run git -C "$repository" archive --format=tar.gz "--output=/tmp/$archive" HEAD || return
  copy "/tmp/$archive" || return
  steps="set -e; "
  if [[ -n ${NFS:-} ]]; then
    steps+="if ! mountpoint -q /mnt/stepcot; then sudo apt-get install -y -q nfs-common; sudo mkdir -p /mnt/stepcot; "
    steps+="sudo mount -t nfs $(printf %q "$NFS") /mnt/stepcot; fi; "
    steps+="test -w /mnt/stepcot || sudo chown \"\$(id -un)\" /mnt/stepcot; "
  fi
  steps+="if test \"\$(cat stepcot/.installed 2>/dev/null)\" = $revision${extras#tpu}; then exit 0; fi; "
  steps+="rm -rf stepcot; mkdir stepcot; tar -xzf $archive -C stepcot; "
  # The images have Python 3.10; uv installs 3.11, which the package needs.
  steps+="python3 -m pip install -q --user uv; \$HOME/.local/bin/uv venv -q --python 3.11 stepcot/.venv; "
  steps+="\$HOME/.local/bin/uv pip install -q --python stepcot/.venv/bin/python -c stepcot/launch/constraints.txt "
  steps+="'./stepcot[$extras]'; "
  steps+="echo $revision${extras#tpu} >stepcot/.installed"
  remote all "$steps"
}

send_environment() { # names and values, in a file that only its owner can read
  local name file=/tmp/stepcot-env code=0
  if ((dry_run)); then
    echo "# write the values of ${names[*]} to $file"
  else
    file=$(mktemp) || return
    # shellcheck disable=SC2064
    trap "rm -f '$file'" EXIT
    for name in "${names[@]}"; do printf 'export %s=%s\n' "$name" "${!name@Q}"; done >"$file"
  fi
  copy "$file" stepcot-env || code=$?
  run rm -f "$file"
  return "$code"
}

start() {
  local command file='' cache=()
  if ((${#names[@]})); then
    send_environment || return
    # shellcheck disable=SC2088
    file='ENV_FILE=~/stepcot-env '
  fi
  [[ -z ${CACHE:-} ]] || cache=("JAX_COMPILATION_CACHE_DIR=$CACHE")
  command=$(printf '%q ' bash launch/tpu_worker.sh start env JAX_PLATFORMS=tpu,cpu "${cache[@]+"${cache[@]}"}" \
    .venv/bin/python -m stepcot_jax.main "--config=$CONFIG" "--workdir=$WORKDIR" "--num_processes=$NUM_WORKERS" \
    "${flags[@]+"${flags[@]}"}")
  remote all "cd stepcot && $file$command"
}

status() { remote all "bash stepcot/launch/tpu_worker.sh status"; }

stop() { remote all "GRACE_SECONDS=$grace_seconds bash stepcot/launch/tpu_worker.sh stop"; }

delete() { run "${request[@]}" delete "$TPU_NAME" "${place[@]}" --quiet "${force[@]+"${force[@]}"}"; }

describe() { run "${request[@]}" describe "$TPU_NAME" "${place[@]}" "--format=value($field)"; }

state_of_slice() { # READY or ACTIVE, PREEMPTED, ...; MISSING if there is no slice; UNKNOWN if gcloud fails otherwise
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
  # Exit codes from before `watch` count only once this run was seen running.
  local num_starts=0 known=0 uneven=0 state found code num_running num_done
  while true; do
    state=$(state_of_slice)
    case $state in
      MISSING)
        say "no slice; creating one"
        { create && { [[ ${QUEUED:-} == 1 ]] || install; }; } || say "that failed; again in $poll_seconds s"
        ;;
      PREEMPTED | TERMINATED | STOPPED | SUSPENDED | FAILED)
        say "slice is $state; deleting it"
        delete || say "that failed; again in $poll_seconds s"
        continue_soon
        continue
        ;;
      READY | ACTIVE) ;;
      *)
        say "slice is $state"
        continue_soon
        continue
        ;;
    esac
    found=$(status 2>/dev/null | sed -n 's/^.*stepcot-status: //p' | sort) || true # use the workers that answered
    num_running=$(count running)
    num_done=$(count 'exit 0')
    code=$(sed -n 's/^exit //p' <<<"$found" | awk '$1 > 0 && $1 < 128 && $1 != 75 && !(c && c < $1) { c = $1 } END { if (c) print c }')
    if (($(count '..*') != NUM_WORKERS)); then
      say "$(count '..*') of $NUM_WORKERS workers answer"
      [[ -n $found ]] || install || true # recreated machines have no program
    elif ((num_running == NUM_WORKERS)); then
      known=1
      uneven=0
    elif ((known)) && [[ -n $code ]]; then
      say "a worker ended with exit code $code; stopping the others"
      stop || true
      exit "$code"
    elif ((known && num_done == NUM_WORKERS)); then
      say "the run is over"
      exit 0
    elif ((known && num_running + num_done == NUM_WORKERS)); then
      uneven=0 # the others will end soon
    elif ((num_running && !uneven)); then
      uneven=1 # check once more: others may be about to end
    else
      ((num_starts <= max_restarts)) || fail "the run ended after $max_restarts restarts, see the logs"
      say "start $((++num_starts)) of the run; workers: $(tr '\n' ',' <<<"$found")"
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
      echo "# if the slice was preempted:"
      delete
      echo "# otherwise:"
      status
      echo "# if the run is missing or was preempted:"
      stop
      start
    else
      run_until_over
    fi
    ;;
esac
