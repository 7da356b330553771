"""Exceptions with one-line messages, and the exit codes that every tool gives them."""

import contextlib
import errno
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO, cast

from stepcot_jax.host.terminal import SafeOutput, open_output
from stepcot_jax.host.text import install_extra, make_printable

_LONGEST_MESSAGE = 4000

EXIT_BAD_INPUT = 2
EXIT_STOPPED = 3
EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: try again later
EXIT_INTERRUPTED = 130  # 128 + signal number, as in shells


DISK_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM}
    | {errno.EMFILE, errno.ENFILE}
)
"""A disk that is full, read-only or failing, a quota, a limit of files: of the machine, not of the program."""

UNUSABLE_NAMES = frozenset({errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR})
"""A ring of links, a name that is too long, a file where a folder is expected: of what the user named."""

_PACKAGE = Path(__file__).parents[1]
_OF_THE_MACHINE = DISK_ERRORS - {errno.EACCES, errno.EPERM}


class BadInput(ValueError):
    """A file, setting or flag that cannot be used; every tool prints the message on one line and exits with 2."""


class RunStopped(RuntimeError):
    """A run stopped itself, with its checkpoints kept; every tool prints the message on one line and exits with 3."""


class Preempted(BaseException):
    """A run received SIGTERM and has saved a checkpoint; the same command resumes it.

    Not an `Exception`, like KeyboardInterrupt: it may be raised anywhere, and error handlers must not catch it.

    Every tool prints the message on one line and exits with 75.
    """


_SHARED_MEMORY = "/dev/shm"  # noqa: S108
_LEAST_SHARED = 2**20


def describe_disk(error: OSError, otherwise: object) -> str:
    """Return what failed and why; errors of the shared memory name no file, and are not those of a disk."""
    if error.errno == errno.ENOSPC and str(error.filename or _SHARED_MEMORY).startswith(_SHARED_MEMORY):
        free = shutil.disk_usage(_SHARED_MEMORY).free if os.path.isdir(_SHARED_MEMORY) else _LEAST_SHARED  # noqa: PTH112
        if free < _LEAST_SHARED:
            return (
                f"{_SHARED_MEMORY}: the shared memory is full ({free} bytes free); worker processes pass images "
                "through it: free some, or set config.data.num_workers=0"
            )
    return f"{error.filename or otherwise}: the disk failed ({error.strerror})"


def is_machine_fault(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised for, is a fault of the disk or a limit of open files."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _describe_memory(error: Exception) -> str:
    """Return a line about memory that a device or this machine does not have; "" for any other error."""
    is_device = type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError") and "RESOURCE_EXHAUSTED" in str(error)
    if not is_device and not isinstance(error, MemoryError):
        return ""
    reason = " ".join(str(error).split())[:200] or "no further word"
    return (
        f"the memory of the {'device' if is_device else 'machine'} is too small ({reason}); a smaller batch or image, "
        "or in training config.parallel.num_passes=2 or more, takes less"
    )


def end_process(code: int) -> None:
    """Exit the process; after a failure without any cleanup."""
    # At jax's shutdown a failed process would wait for the others, and Orbax's threads for a failed disk.
    if code and "jax" in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _say(message: str) -> None:
    """Print a message on one line of at most 4,000 characters: libraries, and we, quote what a file holds."""
    line = make_printable(" ".join(message.splitlines()))
    print(line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]}…", file=sys.stderr)


def _describe_platform(error: Exception) -> str:
    """Return a line about a platform that jax was told to use and cannot start; "" for any other error."""
    asked = os.environ.get("JAX_PLATFORMS", "")
    frames = traceback.extract_tb(error.__traceback__)
    if asked in ("", "cpu") or not any(frame.filename.endswith("jax/_src/xla_bridge.py") for frame in frames):
        return ""
    named = {"cuda": "GPU", "rocm": "GPU", "tpu": "TPU"}.get(asked.split(",")[0], asked)
    return f"no {named} found (JAX_PLATFORMS={asked}); JAX_PLATFORMS=cpu computes on the CPU"


def _describe_missing(error: Exception) -> str:
    """Return a line about a library that the light installation leaves out; "" for any other error."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or error.name.startswith(_PACKAGE.name):
        return ""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    by = next((file for file in reversed(files) if not file.startswith("<frozen ")), "")
    if _PACKAGE not in Path(by).parents:  # a user's own module
        return ""
    return f"this needs {error.name.partition('.')[0]}, which is not installed: {install_extra('')}"


def _flush_output() -> None:
    """Write what was printed: a full disk behind `> FILE` fails here, and not in Python's own exit."""
    try:
        sys.stdout.flush()
    except OSError as error:
        error.filename = error.filename or "the standard output"
        raise


def _drop_output() -> None:
    """Let Python's exit not fail once more on what could not be printed."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: an output without a descriptor, as in a notebook
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def run_tool(main: Callable[[], int | None], *, end: Callable[[int], None] = sys.exit) -> None:
    """Run a tool's main and exit with its code: one line on stderr for the expected ends."""
    open_output()
    logging.basicConfig(format="%(message)s")  # before a library's own, which would name level and module
    try:
        with contextlib.redirect_stdout(cast(TextIO, SafeOutput(sys.stdout))):
            code = main()
        _flush_output()
    except BadInput as error:
        is_fault = is_machine_fault(error)  # of the disk that a file lies on: the input may be right
        _say(f"{'stopped' if is_fault else 'error'}: {error}")
        code = EXIT_STOPPED if is_fault else EXIT_BAD_INPUT
    except RunStopped as error:
        _say(f"stopped: {error}")
        code = EXIT_STOPPED
    except Preempted as error:
        _say(f"preempted: {error}")
        code = EXIT_PREEMPTED
    except KeyboardInterrupt as error:
        _say("; ".join(("interrupted", *map(str, error.args))))
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output (head, grep -q) closed it
        _drop_output()
        code = 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            _drop_output()
            _say(f"stopped: {describe_disk(error, 'a file, or the standard output')}")
            code = EXIT_STOPPED
        elif isinstance(error, OSError) and error.errno in UNUSABLE_NAMES and error.filename:
            _say(f"error: {os.fsdecode(error.filename)}: cannot be used ({error.strerror}); expected another path")
            code = EXIT_BAD_INPUT
        elif problem := _describe_memory(error):
            _say(f"stopped: {problem}")
            code = EXIT_STOPPED
        elif problem := _describe_platform(error) or _describe_missing(error):
            _say(f"error: {problem}")
            code = EXIT_BAD_INPUT
        elif end is sys.exit:
            raise
        else:
            traceback.print_exc()
            code = 1
    end(code or 0)
