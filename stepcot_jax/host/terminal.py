"""Progress output: a live bar on a terminal, one changing line in a notebook, plain lines elsewhere."""

import contextlib
import io
import os
import pathlib
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

# Controls except line breaks and tabs, separators of lines, what turns text around, and halves of surrogate pairs.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)")


def escape_controls(text: str) -> str:
    """Return text that keeps its lines, tabs and joiners, but cannot control a terminal or turn its lines around."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def name_command(program: str = "stepcot") -> str:
    """Return a program of this environment as the user's shell finds it: its name, or its path from here."""
    script = pathlib.Path(sys.executable).with_name(program)
    if not script.exists():  # run from a source folder
        return f"{shlex.quote(sys.executable)} -m stepcot_jax" if program == "stepcot" else program
    known = shutil.which(program)
    if known is not None:
        is_here = pathlib.Path(known).parent.resolve() == script.parent.resolve()
        # Every environment's python is a link to one interpreter, but a linked script runs in its own environment.
        if is_here or (program != "python" and pathlib.Path(known).resolve() == script.resolve()):
            return program
    near = os.path.relpath(script)
    return shlex.quote(str(script) if near.startswith(os.pardir) else near)


def open_output() -> None:
    """Let no print fail: what the encoding of an output lacks is escaped, and a closed output drops what it gets."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            try:
                os.fstat(number)
            except OSError:  # else the next opened file gets this number, and with it what libraries in C print
                null = os.open(os.devnull, os.O_RDWR)
                if null != number:
                    os.dup2(null, number)
                    os.close(null)
                os.set_inheritable(number, True)
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif number and isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


class SafeOutput:
    """The standard output of a program, whose prints quote what files hold: no character controls the terminal."""

    def __init__(self, stream: Any) -> None:
        self.unescaped = getattr(stream, "unescaped", stream)

    def write(self, text: str) -> int:
        """Write text."""
        written: int = self.unescaped.write(escape_controls(text))
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


class Terminal:
    """Prints progress: a live bar on a terminal, one line that changes in a notebook, plain lines elsewhere."""

    def __init__(self, *, every_seconds: float = 5.0, silent: bool = False) -> None:
        open_output()
        self._silent = silent
        self._live = sys.stderr.isatty() and not silent
        self._rewrites = type(sys.stderr).__module__.startswith("ipykernel")
        self._shown = ""  # a line of a notebook that the next one replaces
        self._every = every_seconds
        self._bar: Any = None
        self._task: Any = None
        self._last_line = 0.0

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        text = escape_controls(text)
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        elif not self._silent:
            self._finish_line()
            print(text, file=sys.stderr, flush=True)

    def _finish_line(self) -> None:
        if self._shown:
            print(file=sys.stderr, flush=True)
            self._shown = ""

    def _rewrite(self, text: str) -> None:
        print("\r" * bool(self._shown) + text.ljust(len(self._shown)), end="", file=sys.stderr, flush=True)
        self._shown = text

    @contextlib.contextmanager
    def bar(self, description: str, *, total: int, done: int = 0) -> Iterator[None]:
        """Show progress towards `total` within the context."""
        self._start, self._first, self._last_line = time.monotonic(), done, time.monotonic()
        if self._live:
            from rich import console, progress

            columns = (
                progress.TextColumn("{task.description}"),
                progress.BarColumn(bar_width=24),
                progress.MofNCompleteColumn(),
                progress.TimeRemainingColumn(),
                progress.TextColumn("{task.fields[note]}"),
            )
            self._bar = progress.Progress(*columns, console=console.Console(stderr=True))
            self._task = self._bar.add_task(description, total=total, completed=done, note="")
            self._bar.start()
        self._description, self._total = description, total
        try:
            yield
        finally:
            self._finish_line()
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def update(self, done: int, note: str = "") -> None:
        """Move the bar to `done` with a note; without a terminal print a line every few seconds."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=note)
            return
        now = time.monotonic()
        if now - self._last_line < self._every and done < self._total:
            return
        self._last_line = now
        rate = (done - self._first) / max(now - self._start, 1e-9)
        left = (self._total - done) / rate if rate else float("inf")
        remaining = f"{left:.0f} s left" if left != float("inf") else "time left unknown"
        line = " ".join(f"{self._description} {done}/{self._total} {remaining} {note}".split())
        if self._rewrites and not self._silent:
            self._rewrite(line)
        else:
            self.say(line)

    @contextlib.contextmanager
    def clock(self, description: str) -> Iterator[None]:
        """Show the seconds that pass within the context: live on a terminal, else a line every few seconds."""
        self.say(description)
        start, ended = time.monotonic(), threading.Event()

        def tick() -> None:
            while not ended.wait(0.5 if self._live else self._every):
                text = f"{description}: {time.monotonic() - start:.0f} s"
                if self._live and self._bar is None:
                    print(f"\r{text}", end="", file=sys.stderr, flush=True)
                elif self._rewrites and not self._silent:
                    self._rewrite(text)
                elif not self._live:
                    self.say(text)
            if self._live and self._bar is None:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)

        clock = threading.Thread(target=tick, daemon=True)
        clock.start()
        try:
            yield
        finally:
            ended.set()
            clock.join()
            self._finish_line()

    def watch(self, items: Iterable[Any], description: str) -> Iterator[Any]:
        """Yield the items of a sized iterable, with a bar."""
        total = len(items)  # type: ignore[arg-type]
        with self.bar(description, total=total):
            for done, item in enumerate(items, start=1):
                yield item
                self.update(done)
