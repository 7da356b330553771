"""Options that several commands share: the flags of a run, cases of a data root or run, and paths of this machine.

A wrong flag, key or config file ends the program with one line and exit code 2.
"""

import argparse
import ast
import contextlib
import pathlib
import re
import sys
from typing import TYPE_CHECKING, Any

from stepcot_jax.host.download import refuse_address
from stepcot_jax.host.errors import EXIT_BAD_INPUT, BadInput
from stepcot_jax.host.terminal import open_output

if TYPE_CHECKING:
    from stepcot_jax.reading.cases import CaseSource

_CONFIG_FLAGS = ("config", "target_config")


def local_path(text: str) -> pathlib.Path:
    """Return the path that an argument names; the `type=` of argparse for every folder and file that is written."""
    try:
        refuse_address(text)
    except BadInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not text:
        raise argparse.ArgumentTypeError("'' names nothing; expected a path")
    return pathlib.Path(text)


class ReadStepNames(argparse.Action):
    """Take step names as words, or as the Python tuple that `config.data.step_names` is."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        """Store the names."""
        if len(values) == 1 and values[0].lstrip()[:1] in ("(", "["):
            try:
                values = tuple(map(str, ast.literal_eval(values[0])))
            except (SyntaxError, TypeError, ValueError):
                parser.error(f"--step-names: {values[0][:80]!r} is not a list of names; expected words or ('A', 'B')")
        setattr(namespace, self.dest, tuple(values))


def add_cases(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `open_cases`."""
    parser.add_argument("data", nargs="?", metavar="DATA", help="a data root in any layout; or gs://")
    run = "cases that a finished run has predicted; DATA overrides its data root"
    parser.add_argument("--workdir", metavar="RUN", help=run)
    parser.add_argument("--split", choices=("val", "test"), help="of --workdir, default test")
    parser.add_argument("--layout", help="of DATA without --workdir; default: recognised by the files")


def open_cases(options: argparse.Namespace) -> "CaseSource":
    """Open a data root, or a split of a finished run."""
    from stepcot_jax.data.images.image_decoding import MAX_PIXELS
    from stepcot_jax.host.download import find_path
    from stepcot_jax.reading.cases import open_data, open_run

    data = None if options.data is None else find_path(options.data, "DATA")
    if options.workdir is not None:
        if options.layout is not None:
            raise BadInput("--layout is accepted only without --workdir; the settings of the run apply")
        return open_run(find_path(options.workdir, "--workdir"), options.split or "test", root=data)
    if options.split is not None:
        raise BadInput("--split is accepted only with --workdir (a finished run)")
    if data is None:
        raise BadInput("DATA (a data root) or --workdir (a finished run) is required")
    return open_data(data, max_pixels=MAX_PIXELS, **({"layout": options.layout} if options.layout else {}))


def define_flags() -> None:
    """Define the flags of a run: `--config`, one flag for each of its keys, `--workdir` and the process flags."""
    from absl import flags  # here, as below, so that --help of commands without these flags is fast
    from ml_collections import config_flags

    config_flags.DEFINE_config_file("config", None, "Name of a shipped config, such as quickstart, or path of a file.")
    flags.DEFINE_string("workdir", None, "Folder for checkpoints, logs and the report; or gs://.")
    flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0; needed where the platform does not provide it.")
    flags.DEFINE_integer("num_processes", None, "Number of processes; checked where the platform provides it.")
    flags.DEFINE_integer("process_id", None, "Index of this process, from 0; needed where the platform has none.")
    flags.mark_flags_as_required(["config", "workdir"])


def parse(arguments: list[str], *, example: str = "quickstart") -> list[str]:
    """Parse the command line with absl and return the positional arguments, program name first."""
    from absl import flags

    from stepcot_jax.run.configs import configs_importable, find_config
    from stepcot_jax.run.fields import describe_key
    from stepcot_jax.run.settings import Settings

    open_output()  # this runs before `run_tool`
    accepted: dict[str, tuple[str, str]] = {}
    try:
        for argument in arguments[1:]:
            if match := re.match(r"--?(?:no)?(config\.[\w.]+)(?:=(.*))?", argument, re.S):
                accepted[match[1]] = (match[2], describe_key(Settings, match[1]))
        arguments = _resolve_configs(arguments)
        paths = [find_config(path.split(":", 1)[0]) for _, path in _find_configs(arguments)]
        with configs_importable(*paths) if paths else contextlib.nullcontext():
            return flags.FLAGS(arguments)
    except SystemExit:  # --help, which absl ends with 1
        sys.exit(0)
    except BadInput as error:
        message = str(error)
    except flags.IllegalFlagValueError as error:
        flag = re.match(r"flag --([\w.]+)=", str(error))
        message = str(error)
        if flag and flag[1] in accepted:
            value, expected = accepted[flag[1]]
            message = f"{flag[1]}: {value!r} is not {expected}"
        elif "flag --config=None" in message:
            message = f"--config is required (a shipped config such as {example}, or the path of a file)"
    except flags.Error as error:
        message = f"{error} (try --help)"
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(EXIT_BAD_INPUT)


def _find_configs(arguments: list[str]) -> list[tuple[int, str]]:
    configs = []
    for position, argument in enumerate(arguments[1:], start=1):
        flag, separator, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and flag in _CONFIG_FLAGS:
            if separator:
                configs.append((position, value))
            elif position + 1 < len(arguments):
                configs.append((position + 1, arguments[position + 1]))
    return configs


def _resolve_configs(arguments: list[str]) -> list[str]:
    from stepcot_jax.run.configs import find_config, load_config

    resolved = list(arguments)
    for position, value in _find_configs(arguments):
        load_config(value)
        name, *argument = value.split(":", 1)
        flag = arguments[position].partition("=")[0] + "=" if arguments[position].startswith("-") else ""
        resolved[position] = flag + ":".join([str(find_config(name)), *argument])
    return resolved
