"""Print a script that completes commands, flags and shipped configs: of bash, zsh or fish."""

import argparse

from stepcot_jax.host.errors import run_tool
from stepcot_jax.run.configs import shipped_names

# Nothing is listed twice: commands and flags are those that --help shows when Tab is pressed.
_COMMANDS, _FLAGS = "^ {2,4}[a-z_]+  ", "--[a-z][a-z_-]*"
_BASH = r"""_stepcot() {
  local typed=${COMP_LINE:0:$COMP_POINT} kind="_COMMANDS" asked=() each
  local word=${typed##* }
  COMPREPLY=()
  case $word in
    --config=*)
      COMPREPLY=($(compgen -W "_CONFIGS" -- "${word#*=}"))
      [ -z "${ZSH_VERSION:-}" ] || COMPREPLY=("${COMPREPLY[@]/#/--config=}")
      return ;;
    -*) kind="_FLAGS" ;;
    *) [ "$COMP_CWORD" -le 2 ] || return ;;
  esac
  for each in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do
    [[ $each != -* && ${#asked[@]} -lt 2 ]] || break
    asked+=("$each")
  done
  each=$("${COMP_WORDS[0]}" "${asked[@]}" --help 2>/dev/null | grep -oE -e "$kind" | tr -d ' ' | sort -u)
  COMPREPLY=($(compgen -W "$each" -- "$word"))
}
complete -o default -F _stepcot stepcot
"""
_FISH = r"""function __stepcot_listed
    set -l asked (commandline -opc)[2..-1]
    set -l words (string match -rv -- '^-' $asked)
    stepcot $words[1..2] --help 2>/dev/null | string match -r -- $argv[1] | string trim
end
complete -c stepcot -n 'test (count (commandline -opc)) -le 2' -a '(__stepcot_listed "_COMMANDS")'
complete -c stepcot -a '(__stepcot_listed "_FLAGS")'
complete -c stepcot -n '__fish_seen_subcommand_from train tables features' -l config -x -a '_CONFIGS'
"""
_SCRIPTS = {"bash": _BASH, "zsh": "autoload -U +X bashcompinit && bashcompinit\n" + _BASH, "fish": _FISH}
_HELP = """bash:  eval "$(stepcot completion bash)"     in ~/.bashrc
zsh:   eval "$(stepcot completion zsh)"      in ~/.zshrc, after compinit
fish:  stepcot completion fish | source      in ~/.config/fish/config.fish"""


def main(arguments: list[str] | None = None) -> int:
    """Print the script."""
    raw = argparse.RawDescriptionHelpFormatter
    description = "Print a script that completes commands, flags and shipped configs."
    parser = argparse.ArgumentParser("stepcot completion", description=description, epilog=_HELP, formatter_class=raw)
    parser.add_argument("shell", choices=_SCRIPTS)
    script = _SCRIPTS[parser.parse_args(arguments).shell]
    values = {"_COMMANDS": _COMMANDS, "_FLAGS": _FLAGS, "_CONFIGS": " ".join(shipped_names())}
    for name, value in values.items():
        script = script.replace(name, value)
    print(script, end="")
    return 0


if __name__ == "__main__":
    run_tool(main)
