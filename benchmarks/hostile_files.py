"""Run commands on hostile files under limits: `python -m benchmarks.hostile_files [--factor=1] [--part=0/2] [WORD ..]`.

Each command gets a process with 2 GB of address space beyond what Python's modules take, and 30 s. It must end by
itself with an exit code of 0 to 2, without a traceback, and no line it prints may be longer than 2,000 characters.
WORDs choose the files whose names begin with one of them. `--factor` scales the files' sizes.
"""

import argparse
import dataclasses
import importlib
import json
import os
import resource
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import hostile_arrays, hostile_images, hostile_records, hostile_tables  # noqa: F401 - fill MAKERS
from benchmarks.hostile_commands import CALLS
from benchmarks.hostile_inputs import MAKERS, Command
from benchmarks.hostile_readings import FILES, PRELOADED, sample
from stepcot_jax.__main__ import find_commands
from stepcot_jax.host.errors import run_tool

MOST_BYTES = 2 * 10**9
MOST_SECONDS = 30
LONGEST_LINE = 2000
NUM_CORES = 2
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_TOKEN": "a"}
_WITH_ABSL = ("main", "tables")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a command did with a hostile file.

    Attributes:
      code: exit code, or the negative number of the signal that ended it.
      seconds: that it took.
      megabytes: its largest resident memory.
      output: what it printed.
      file: name of the hostile file, which a message must have; "" if it may be another.
    """

    code: int
    seconds: float
    megabytes: float
    output: str
    file: str = ""

    @property
    def problem(self) -> str:
        """What is wrong; "" if nothing."""
        if self.code not in (0, 1, 2):
            return f"ended with {self.code}"
        if "Traceback" in self.output or "MemoryError" in self.output:
            return "a traceback"
        if self.code and self.file not in self.output:
            return f"nothing names {self.file}"
        longest = max(map(len, self.output.splitlines()), default=0)
        return f"a line of {longest} characters" if longest > LONGEST_LINE else ""


def run_command(name: str, folder: Path, *, factor: float = 1.0) -> Outcome:
    """Write the hostile file `name` below a folder and run its command in a forked process."""
    command = MAKERS[name](folder, factor)
    main = _find_main(command)
    if name in FILES:
        for each in PRELOADED:  # not in each process anew
            importlib.import_module(each)
    log = folder / "printed.log"
    start = time.monotonic()
    child = os.fork()
    if not child:
        _run_child(main, log)
    _, status, usage = os.wait4(child, 0)
    seconds = time.monotonic() - start
    output = log.read_text(encoding="utf-8", errors="replace")
    return Outcome(os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss / 1000, output, FILES.get(name, ""))


def _find_main(command: Command) -> Callable[[], Any]:
    """Return what runs a command: its main, a program with absl's flags, or a function of `CALLS`."""
    name, *arguments = command
    if name in CALLS:
        return lambda: CALLS[name](*arguments)
    where = {"main": "stepcot_jax.main", **find_commands()}[name]
    if name not in _WITH_ABSL:
        module = importlib.import_module(where)
        return lambda: module.main(arguments)

    def run() -> None:
        sys.argv = command
        runpy.run_module(where, run_name="__main__", alter_sys=True)

    return run


def _run_child(main: Callable[[], Any], log: Path) -> None:
    code = 99
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, 2 * (pages * resource.getpagesize() + MOST_BYTES,))
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_CORES])  # threads take address space
        os.environ |= _OFFLINE
        signal.alarm(MOST_SECONDS)
        run_tool(main)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the commands and print a row for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile_files", description="Try hostile files.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="of the files' names; default: all")
    parser.add_argument("--factor", type=float, default=1.0, help="of the files' sizes; default 1")
    parser.add_argument("--sample", action="store_true", help="and one kind of file of each command and file")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th of them from the I-th; default 0/1")
    parser.add_argument("--json", action="store_true", help="print a JSON line for each")
    options = parser.parse_args(arguments)
    chosen = sample() if options.sample else set[str]()
    starts = tuple(options.words) or (() if options.sample else ("",))
    first, step = map(int, options.part.split("/"))
    names = [name for name in MAKERS if name in chosen or name.startswith(starts)][first::step]
    num_bad = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_command(name, Path(folder), factor=options.factor)
            last = next((line for line in reversed(outcome.output.splitlines()) if line.strip()), "").replace(
                folder, ""
            )
        num_bad += bool(outcome.problem)
        if options.json:
            print(json.dumps({"name": name, "problem": outcome.problem, **dataclasses.asdict(outcome)}), flush=True)
            continue
        figures = f"{outcome.seconds:5.1f} s {outcome.megabytes:6.0f} MB"
        print(f"{'BAD' if outcome.problem else 'ok '} {figures}  {name}: {outcome.problem or last[:160]}", flush=True)
    if not options.json:
        print(f"{len(names)} hostile files, {num_bad} without an orderly end")
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
