"""Exceptions with one-line messages, and the exit codes that every tool gives them."""

import os
import sys
import traceback
from collections.abc import Callable

_LONGEST_MESSAGE = 4000

EXIT_BAD_INPUT = 2
EXIT_STOPPED = 3
EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: try again later
EXIT_INTERRUPTED = 130  # 128 + signal number, as in shells


class BadInput(ValueError):
    """A file, setting or flag that cannot be used; every tool prints the message on one line and exits with 2."""


class RunStopped(RuntimeError):
    """A run stopped itself, with its checkpoints kept; every tool prints the message on one line and exits with 3."""


class Preempted(BaseException):
    """A run received SIGTERM and has saved a checkpoint; the same command resumes it.

    Not an `Exception`, like KeyboardInterrupt: it may be raised anywhere, and error handlers must not catch it.

    Every tool prints the message on one line and exits with 75.
    """


def end_process(code: int) -> None:
    """Exit the process; after a failure without any cleanup."""
    # At jax's shutdown a failed process would wait for the others, and Orbax's threads for a failed disk.
    if code and "jax" in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _cut(message: str) -> str:
    """Return a message with at most 4,000 characters: libraries quote what a file holds in full."""
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"


def run_tool(main: Callable[[], int | None], *, end: Callable[[int], None] = sys.exit) -> None:
    """Run a tool's main and exit with its code: one line on stderr for the expected ends."""
    try:
        code = main()
    except BadInput as error:
        print(f"error: {_cut(str(error))}", file=sys.stderr)
        code = EXIT_BAD_INPUT
    except RunStopped as error:
        print(f"stopped: {error}", file=sys.stderr)
        code = EXIT_STOPPED
    except Preempted as error:
        print(f"preempted: {error}", file=sys.stderr)
        code = EXIT_PREEMPTED
    except KeyboardInterrupt as error:
        print("; ".join(("interrupted", *map(str, error.args))), file=sys.stderr)
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output (head, grep -q) closed it
        sys.stderr.close()
        code = 0
    except Exception:
        if end is sys.exit:
            raise
        traceback.print_exc()
        code = 1
    end(code or 0)
