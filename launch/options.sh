# shellcheck shell=bash disable=SC2034
# Sourced by the scripts of this folder: error messages, printing of commands, and --help and --dry-run as the first
# argument. The help is the script's header. (slurm.sbatch has copies: Slurm runs it from another folder.)

fail() {
  echo "error: ${0##*/}: $1" >&2
  exit 2
}

show() { # print a command, quoted for a shell
  local word line='' plain='^[-A-Za-z0-9_./:=@%+,]+$'
  for word; do
    [[ $word =~ $plain ]] || word=${word@Q}
    line+="$word "
  done
  printf '%s' "${line% }"
}

check_config() { # fail if CONFIG, without what follows a colon, is neither a file nor a shipped config
  local name=${CONFIG%%:*} shipped
  shipped=$(dirname "${BASH_SOURCE[0]}")/../configs
  [[ -f $name || -f $shipped/$name.py ]] || fail "CONFIG: '$name' is neither a config file nor the name of a shipped config"
}

find_python() { # PYTHON, or that of an active environment, or of .venv beside this folder, or any
  local venv
  venv=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin/python
  [[ -z ${VIRTUAL_ENV:-} && -x $venv ]] || venv=python3
  echo "${PYTHON:-$venv}"
}

on_gpus=(env "JAX_PLATFORMS=cuda,cpu") # without it jax would only warn about a missing GPU and compute on the CPU
[[ -n ${XLA_CLIENT_MEM_FRACTION:-}${XLA_PYTHON_CLIENT_MEM_FRACTION:-} ]] || # the older name; jax refuses both
  on_gpus+=("XLA_CLIENT_MEM_FRACTION=0.9")

dry_run=0
case ${1:-} in
  -h | --help)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
  --dry-run)
    dry_run=1
    shift
    ;;
esac
