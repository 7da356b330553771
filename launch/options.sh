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
