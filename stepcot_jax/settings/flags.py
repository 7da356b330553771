"""The command line of `main`: a wrong flag, key or config file is one line and exit code 2, never a traceback."""

import pathlib
import re
import sys

from absl import flags
from ml_collections import config_flags

from stepcot_jax.host.errors import EXIT_BAD_INPUT, BadInput
from stepcot_jax.settings.fields import describe_key
from stepcot_jax.settings.run_settings import Settings


def define_flags() -> None:
    """The flags that say what a run is: `--config`, with a flag for each of its keys, and `--workdir`."""
    config_flags.DEFINE_config_file("config", None, "Settings, for example configs/quickstart.py.")
    flags.DEFINE_string("workdir", None, "Folder for checkpoints, logs and the report.")
    flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0, where the platform does not say it.")
    flags.DEFINE_integer("num_processes", None, "How many processes there are; where the platform says it, a check.")
    flags.DEFINE_integer("process_id", None, "Which of them this is, from 0, where the platform does not say it.")
    flags.mark_flags_as_required(["config", "workdir"])


def parse(arguments: list[str]) -> list[str]:
    """Absl's flags from the command line; a wrong one is one line and exit code 2, and help exits with 0."""
    try:
        keys = [
            match for each in arguments[1:] if (match := re.match(r"--?(?:no)?(config\.[\w.]+)(?:=(.*))?", each, re.S))
        ]
        accepted = {match[1]: (match[2], describe_key(Settings, match[1])) for match in keys}
        rest = flags.FLAGS(arguments)
        _ = flags.FLAGS.config.items  # a config file that could not be read raises when it is first looked at
        return rest
    except SystemExit:  # --help and its kin, which absl ends with 1
        sys.exit(0)
    except BadInput as error:
        message = str(error)
    except flags.IllegalFlagValueError as error:
        flag = re.match(r"flag --([\w.]+)=", str(error))
        message = _explain(error, arguments) if flag and flag[1] == "config" else str(error)
        if flag and flag[1] in accepted:
            message = f"{flag[1]}: found {accepted[flag[1]][0]!r}, accepted is {accepted[flag[1]][1]}"
    except flags.Error as error:
        message = f"{error} (try --help)"
    except Exception as error:
        message = _explain(error, arguments)  # a config file is a program, which may raise anything
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(EXIT_BAD_INPUT)


def _explain(error: BaseException, arguments: list[str]) -> str:
    """What went wrong in a config file: its path, the first cause and, for an error in its code, the line."""
    path = re.search(r"--?config[= ](\S+)", " ".join(arguments))
    if path is None:
        return "--config: found nothing, accepted is a config such as configs/quickstart.py"
    name = path[1].partition(":")[0]
    if not pathlib.Path(name).is_file():
        return f"{name}: found no such file, accepted is a config such as configs/quickstart.py"
    while error.__context__ is not None:  # ml_collections and absl wrap it, traceback and all
        error = error.__context__
    line, trace = getattr(error, "lineno", None), error.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename.endswith(name) else line
        trace = trace.tb_next
    where = name if line is None else f"{name}:{line}"
    return f"{where}: found {type(error).__name__}: {error}; accepted is a config such as configs/quickstart.py"
