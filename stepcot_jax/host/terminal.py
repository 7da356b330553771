"""Progress output: a live bar on a terminal, one changing line in a notebook, plain lines elsewhere."""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any


class Terminal:
    """Prints progress: a live bar on a terminal, one line that changes in a notebook, plain lines elsewhere."""

    def __init__(self, *, every_seconds: float = 5.0, silent: bool = False) -> None:
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

    def watch(self, items: Iterable[Any], description: str) -> Iterator[Any]:
        """Yield the items of a sized iterable, with a bar."""
        total = len(items)  # type: ignore[arg-type]
        with self.bar(description, total=total):
            for done, item in enumerate(items, start=1):
                yield item
                self.update(done)
