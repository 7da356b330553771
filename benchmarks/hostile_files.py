"""Run commands on hostile files under limits: `python -m benchmarks.hostile_files [--factor=1] [WORD ...]`.

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
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks import hostile_images  # noqa: F401 - adds its pictures to MAKERS
from benchmarks.hostile_inputs import MAKERS
from stepcot_jax.host.errors import run_tool

MOST_BYTES = 2 * 10**9
MOST_SECONDS = 30
LONGEST_LINE = 2000


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a command did with a hostile file.

    Attributes:
      code: exit code, or the negative number of the signal that ended it.
      seconds: that it took.
      megabytes: its largest resident memory.
      output: what it printed.
    """

    code: int
    seconds: float
    megabytes: float
    output: str

    @property
    def problem(self) -> str:
        """What is wrong; "" if nothing."""
        if self.code not in (0, 1, 2):
            return f"ended with {self.code}"
        if "Traceback" in self.output or "MemoryError" in self.output:
            return "a traceback"
        longest = max(map(len, self.output.splitlines()), default=0)
        return f"a line of {longest} characters" if longest > LONGEST_LINE else ""


def run_command(name: str, folder: Path, *, factor: float = 1.0) -> Outcome:
    """Write the hostile file `name` below a folder and run its command in a forked process."""
    command = MAKERS[name](folder, factor)
    module = importlib.import_module(f"stepcot_jax.{command[0]}.__main__")
    log = folder / "printed.log"
    start = time.monotonic()
    child = os.fork()
    if not child:
        _run_child(lambda: module.main(command[1:]), log)
    _, status, usage = os.wait4(child, 0)
    seconds = time.monotonic() - start
    output = log.read_text(encoding="utf-8", errors="replace")
    return Outcome(os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss / 1000, output)


def _run_child(main, log: Path) -> None:  # type: ignore[no-untyped-def]
    code = 99
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, 2 * (pages * resource.getpagesize() + MOST_BYTES,))
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
    parser.add_argument("--json", action="store_true", help="print a JSON line for each")
    options = parser.parse_args(arguments)
    names = [name for name in MAKERS if not options.words or name.startswith(tuple(options.words))]
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
