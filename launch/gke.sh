#!/usr/bin/env bash
# A run on a TPU slice of Google Kubernetes Engine: fills in gke_jobset.yaml and applies it with kubectl.
#
#   launch/gke.sh [--dry-run] start [FLAG ...]   create the JobSet; Kubernetes restarts it after a preemption
#   launch/gke.sh [--dry-run] status             show the JobSet and its pods
#   launch/gke.sh [--dry-run] logs               follow the log of host 0
#   launch/gke.sh [--dry-run] delete             end the run and delete the JobSet; the workdir stays
#
# FLAG is any flag of stepcot_jax.main, such as --config.seed=1. --dry-run prints the commands (for `start` also the
# JobSet) and runs none.
#
# Required variables:
#   NAME            of the JobSet: small letters, digits and hyphens
#   start:
#   IMAGE           container image with this package, its extra tpu (gcs for gs://) and the config, see launch/Dockerfile
#   CONFIG          name of a shipped config, or a config file in the image
#   WORKDIR         folder of the run, below /mnt/stepcot; or gs://BUCKET/FOLDER
#   CLAIM           persistent volume claim (ReadWriteMany), mounted as /mnt/stepcot; optional if nothing lies there
#   ACCELERATOR     such as tpu-v5-lite-podslice
#   TOPOLOGY        such as 4x4
#   NUM_HOSTS       hosts of the slice, such as 4; the run refuses to start with fewer or more
#   CHIPS_PER_HOST  such as 4
# Optional variables:
#   NAMESPACE       default default
#   MAX_RESTARTS    limit of the restarts of all pods; default 100
#   GRACE_SECONDS   seconds to save after TERM; default 120
#   SECRET          secret whose keys become environment variables, such as HF_TOKEN
#   SERVICE_ACCOUNT  Kubernetes service account of the pods, such as one that may use the bucket
#   CACHE           folder below /mnt/stepcot, or gs://BUCKET/FOLDER, for compiled programs, to outlive the pods; it is
#                   code: only who may run programs as the pods should be able to write there
#   PRIVILEGED      0: without privileges, as user 1000; default 1: privileged and root, as public manifests
#   SPOT            1: on spot nodes
#   RESERVATION     on nodes of this reservation
#   QUEUE           Kueue's local queue of the namespace
#   MEMORY          memory request of each pod, such as 100Gi
set -euo pipefail

# shellcheck source=launch/options.sh
source "$(dirname "${BASH_SOURCE[0]}")/options.sh"
action=${1:-}
[[ " start status logs delete " == *" $action "* && -n $action ]] ||
  fail "'$action' is not one of start, status, logs, delete (see --help)"
shift
[[ $# -eq 0 || $action == start ]] || fail "$action: unexpected argument $1"

required=(NAME)
[[ $action != start ]] ||
  required+=(IMAGE CONFIG WORKDIR ACCELERATOR TOPOLOGY NUM_HOSTS CHIPS_PER_HOST)
[[ $action != start || ${WORKDIR:-} == gs://* && ${CACHE:-} != /* ]] || required+=(CLAIM)
missing=
for name in "${required[@]}"; do
  [[ -n ${!name:-} ]] || missing+=" $name"
done
[[ -z $missing ]] || fail "$action: required variables are not set:$missing (see --help)"
NAMESPACE=${NAMESPACE:-default}
MAX_RESTARTS=${MAX_RESTARTS:-100}
GRACE_SECONDS=${GRACE_SECONDS:-120}
PRIVILEGED=${PRIVILEGED:-1}

check() { # variable $1 must match $2, described as $3, so that no value can change the structure of the file
  [[ ${!1:-} =~ ^($2)$ ]] || fail "$1: '${!1:-}' is not $3"
}
for name in NAME NAMESPACE; do
  check "$name" '[a-z]([-a-z0-9]{0,40}[a-z0-9])?' "a name of small letters, digits and hyphens (at most 42)"
done
if [[ $action == start ]]; then
  check IMAGE '[A-Za-z0-9][-A-Za-z0-9._/:@]*' "the name of an image"
  for name in CLAIM SECRET SERVICE_ACCOUNT RESERVATION QUEUE; do
    [[ -z ${!name:-} ]] || check "$name" '[a-z0-9]([-a-z0-9.]*[a-z0-9])?' "a name of small letters, digits, - and ."
  done
  [[ -z ${CACHE:-} ]] || check CACHE '(/mnt/stepcot/|gs://)[-A-Za-z0-9._/=]+' "a folder below /mnt/stepcot or gs://"
  [[ -z ${MEMORY:-} ]] || check MEMORY '[1-9][0-9]*[MGT]i?' "a size such as 100Gi"
  for name in PRIVILEGED ${SPOT:+SPOT}; do check "$name" '[01]' "0 or 1"; done
  [[ ${SPOT:-} != 1 || -z ${RESERVATION:-} ]] || fail "SPOT and RESERVATION exclude each other"
  check ACCELERATOR '[a-z][-a-z0-9]*' "the name of an accelerator, such as tpu-v5-lite-podslice"
  check TOPOLOGY '[0-9]+x[0-9]+(x[0-9]+)?' "a size such as 4x4 or 2x2x2"
  check WORKDIR '(/mnt/stepcot/|gs://).+' "a folder below /mnt/stepcot, which all hosts share, or gs://"
  for name in NUM_HOSTS CHIPS_PER_HOST MAX_RESTARTS GRACE_SECONDS; do
    check "$name" '[0-9]+' "a whole number"
  done
fi

run() { # run a command, or print it in a dry run
  if ((dry_run)); then
    show "$@"
    echo
  else
    "$@"
  fi
}

quote() { # the arguments as a JSON list, which is also YAML
  local argument list=
  for argument; do
    [[ $argument != *[[:cntrl:]]* ]] || fail "an argument contains a control character"
    argument=${argument//\\/\\\\}
    argument=${argument//\"/\\\"}
    # Kubernetes expands $(NAME); $$ is a literal $.
    list+=", \"${argument//\$/\$\$}\""
  done
  echo "[${list#, }]"
}

fill_in() {
  local text name optional=(QUEUE SERVICE_ACCOUNT SPOT RESERVATION PRIVILEGED SECRET CACHE MEMORY CLAIM)
  text=$(<"$(dirname "${BASH_SOURCE[0]}")/gke_jobset.yaml")
  text=${text#*$'\napiVersion:'} # without the notes
  for name in "${optional[@]}"; do
    [[ -n ${!name:-} && ${!name} != 0 ]] || text=$(sed "/ # with $name\$/d" <<<"$text")
    text=${text//" # with $name"/}
  done
  for name in NAME NAMESPACE MAX_RESTARTS GRACE_SECONDS IMAGE ACCELERATOR TOPOLOGY NUM_HOSTS CHIPS_PER_HOST \
    "${optional[@]}"; do
    text=${text//"\${$name}"/"${!name:-}"}
  done
  printf 'apiVersion:%s\n' "${text//"\${ARGUMENTS}"/"$arguments"}"
}

# shellcheck disable=SC2153 # checked above
pods=jobset.sigs.k8s.io/jobset-name=$NAME
case $action in
  start)
    arguments=$(quote "--config=$CONFIG" "--workdir=$WORKDIR" "--num_processes=$NUM_HOSTS" "$@")
    if ((dry_run)); then
      echo "kubectl apply -f - <<'EOF'"
      fill_in
      echo EOF
    else
      fill_in | kubectl apply -f -
    fi
    ;;
  status)
    run kubectl get jobset "$NAME" "--namespace=$NAMESPACE"
    run kubectl get pods "--namespace=$NAMESPACE" "--selector=$pods"
    ;;
  logs)
    run kubectl logs --follow --tail=100 "--namespace=$NAMESPACE" \
      "--selector=$pods,batch.kubernetes.io/job-completion-index=0"
    ;;
  delete) run kubectl delete "jobset/$NAME" "--namespace=$NAMESPACE" ;;
esac
