"""The one exception for input that a person can put right, and how every tool reports it."""

import os
import pathlib
import sys
import tempfile
import traceback
from collections.abc import Callable

EXIT_BAD_INPUT = 2
EXIT_STOPPED = 3
EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: try again later
EXIT_INTERRUPTED = 130  # as shells have it: 128 and the number of the signal


class BadInput(ValueError):
    """Input from outside (a file, a setting, a flag) that cannot be used as it is.

    Its message is the whole report: it names the place (file, record, field or key), what was found
    there and what is accepted. Every tool prints it on one line and exits with 2, without a traceback.
    """


def make_workdir(folder: pathlib.Path) -> None:
    """Make a folder to write to, and its parents, unless it is there.

    Raises:
      BadInput: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written to ({error.strerror}), accepted is a folder that can") from None


class RunStopped(RuntimeError):
    """A run that had to stop by itself, such as at a loss that is not finite; its message says where and why.

    What was saved before stays; every tool prints the message on one line and exits with 3.
    """


class Preempted(BaseException):
    """A run that was asked to end (SIGTERM) and has saved what it had; the same command goes on.

    Like KeyboardInterrupt no `Exception`: it may come anywhere, and what handles errors must not take it for one.

    Every tool prints the message on one line and exits with 75.
    """


def end_process(code: int) -> None:
    """Exit; a run that failed does so without waiting for anything.

    Of several processes one that fails would wait for the rest at jax's shutdown until that ends them all, and its exit
    code would be lost; and Orbax's threads may wait for a disk that has failed.
    """
    if code and "jax" in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run_tool(main: Callable[[], int | None], *, end: Callable[[int], None] = sys.exit) -> None:
    """Run a tool's main and exit with its code, by `end`.

    `BadInput` becomes one line on stderr and exit code 2, `RunStopped` one line and exit code 3, `Preempted` one line
    and exit code 75, Ctrl-C one line and exit code 130.
    """
    try:
        code = main()
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        code = EXIT_BAD_INPUT
    except RunStopped as error:
        print(f"stopped: {error}", file=sys.stderr)
        code = EXIT_STOPPED
    except Preempted as error:
        print(f"preempted: {error}", file=sys.stderr)
        code = EXIT_PREEMPTED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output (head, grep -q) has seen enough
        sys.stderr.close()
        code = 0
    except Exception:
        if end is sys.exit:
            raise
        traceback.print_exc()
        code = 1
    end(code or 0)
