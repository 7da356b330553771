"""SIGTERM, which Slurm, Kubernetes and cloud hosts send before they take a machine away: save, and say so.

Within the training loop the signal is remembered, and the loop saves at the next batch. Anywhere else there is nothing
to save that is not on disk already, and the run ends where it is.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from stepcot_jax.host.errors import Preempted


class Preemption:
    """Whether the run was asked to end."""

    def __init__(self) -> None:
        self.asked = False
        self._patient = False

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Listen for SIGTERM while the context lasts; in another thread than the main one nobody can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextlib.contextmanager
    def patience(self) -> Iterator[None]:
        """Within the context the signal is only remembered: whoever is in it asks, saves and stops by itself."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False

    def _hear(self, signal_number: int, frame: Any) -> None:  # noqa: ARG002 (as signal.signal wants it)
        self.asked = True
        if not self._patient:
            raise Preempted("asked to end (SIGTERM) while nothing was being trained; the same command goes on")
