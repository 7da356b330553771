"""A trace of some updates for XProf: what the device and the host did, and how long each part took."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax


class Profiler:
    """Traces the updates from the first to the last, wherever a run starts among them."""

    def __init__(
        self, folder: pathlib.Path, updates: tuple[int, ...] = (), *, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._folder, self._say = folder, say
        self._first, self._last = updates or (0, -1)
        self._is_on = False

    def before(self, update: int) -> None:
        """Start at the first update that is traced."""
        if not self._is_on and self._first <= update <= self._last:
            jax.profiler.start_trace(str(self._folder))
            self._is_on = True

    def after(self, update: int, results: Any) -> None:
        """Stop when the last update is done; `results` are its arrays, which are waited for."""
        if self._is_on and update >= self._last:
            jax.block_until_ready(results)
            self.close()

    def close(self) -> None:
        """End a trace that the run ended before."""
        if self._is_on:
            jax.profiler.stop_trace()
            self._is_on = False
            self._say(f"profile: {self._folder}; open it with: pip install xprof && xprof --logdir={self._folder}")
