"""The metrics log of a run: metrics.jsonl and TensorBoard event files in the workdir, and other loggers."""

import contextlib
import json
import math
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from stepcot_jax.host.errors import RunStopped
from stepcot_jax.host.files import write_whole

METRICS_FILE = "metrics.jsonl"
BOARD_FOLDER = "tensorboard"

_FLUSH_SECONDS = 30.0


class Logger(Protocol):
    """A destination of numbers besides `metrics.jsonl`: TensorBoard, or a writer of `extras.loggers`."""

    def write(self, numbers: Mapping[str, float], *, step: int) -> None:
        """Append finite numbers of an update, by names such as "train/teacher/total"."""

    def close(self) -> None:
        """Write pending numbers and close."""


class MetricsLog:
    """Append the numbers of a run to `metrics.jsonl`, to TensorBoard event files and to other loggers."""

    def __init__(
        self, workdir: pathlib.Path, *, first_step: int, silent: bool = False, loggers: Sequence[Logger] = ()
    ) -> None:
        self._silent = silent
        if silent:
            return
        self._path = workdir / METRICS_FILE
        with self._explain_failure():
            if self._path.exists():
                # The scores of the test split are computed again at the end of this start.
                kept = [
                    line
                    for line in self._path.read_text().splitlines()
                    if _step_of(line) <= first_step and '"kind": "test"' not in line
                ]
                write_whole(self._path, "".join(line + "\n" for line in kept).encode())
            elif first_step:
                print(f"note: {self._path} is missing; it begins anew after update {first_step}", file=sys.stderr)
            self._file = self._path.open("a", buffering=1)
            self._board = _Board(workdir / BOARD_FOLDER, first_step=first_step)
        self._loggers: tuple[Logger, ...] = (self._board, *loggers)

    def write(self, kind: str, *, step: int, epoch: int, numbers: Mapping[str, float | None]) -> None:
        """Append an entry; `kind` is "train", "val" or "test"; an undefined number, NaN or None, is null."""
        if self._silent:
            return
        # tensorboardX warns of numbers that are not finite on the terminal.
        finite = {name: number for name, number in numbers.items() if number is not None and math.isfinite(number)}
        with self._explain_failure():
            entry = {"kind": kind, "step": step, "epoch": epoch, **dict.fromkeys(numbers), **finite}
            self._file.write(json.dumps(entry) + "\n")
            named = {f"{kind}/{name}".replace(" ", "_"): number for name, number in finite.items()}
            for logger in self._loggers:
                logger.write(named, step=step)

    def write_picture(self, name: str, png: bytes, *, step: int) -> None:
        """Append a picture to the TensorBoard event file."""
        if not self._silent:
            with self._explain_failure():
                self._board.write_picture(name, png, step=step)

    @contextlib.contextmanager
    def _explain_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunStopped(
                f"{error.filename or self._path}: metrics cannot be written ({error.strerror}); the checkpoints stay, "
                "and the same command resumes from the latest once the disk has room"
            ) from error

    def close(self) -> None:
        """Flush and close the file and all loggers."""
        if self._silent:
            return
        for close in (self._file.close, *(logger.close for logger in self._loggers)):
            with contextlib.suppress(OSError):  # reported when it happened
                close()


class Means:
    """Running means of numbers by name, without NaN, since a reward may be undefined; their state is JSON."""

    def __init__(self, saved: Mapping[str, Sequence[float]] | None = None) -> None:
        self._sums = {name: (float(total), int(count)) for name, (total, count) in (saved or {}).items()}

    def add(self, numbers: Mapping[str, float]) -> None:
        """Add the numbers of an update."""
        for name, number in numbers.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total, count) if math.isnan(number) else (total + float(number), count + 1)

    def pop(self) -> dict[str, float]:
        """Return the means and reset them."""
        means = {name: total / count if count else math.nan for name, (total, count) in self._sums.items()}
        self._sums = {}
        return means

    def get_state(self) -> dict[str, list[float]]:
        """Return the sum and the count of each number, which the constructor takes."""
        return {name: [total, count] for name, (total, count) in self._sums.items()}


class _Board:
    # Written synchronously: the thread of tensorboardX's own writer dies on a full disk, and its callers hang.

    def __init__(self, folder: pathlib.Path, *, first_step: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import scalar

        folder.mkdir(exist_ok=True)
        self._make_event, self._make_scalar, self._summary = Event, scalar, Summary
        self._writer = EventsWriter(str(folder / "events"))
        start = SessionLog(status=SessionLog.START)  # hides later steps of an interrupted start
        self._writer.write_event(Event(wall_time=time.time(), step=first_step + 1, session_log=start))
        self._writer.flush()
        self._flushed_at = time.monotonic()

    def write(self, numbers: Mapping[str, float], *, step: int) -> None:
        for name, number in numbers.items():
            summary = self._make_scalar(name, number)
            self._writer.write_event(self._make_event(wall_time=time.time(), step=step, summary=summary))
        self._flush_in_time()

    def write_picture(self, name: str, png: bytes, *, step: int) -> None:
        width, height = (int.from_bytes(png[start : start + 4]) for start in (16, 20))  # of a PNG's header
        picture = self._summary.Image(width=width, height=height, colorspace=3, encoded_image_string=png)
        summary = self._summary(value=[self._summary.Value(tag=name, image=picture)])
        self._writer.write_event(self._make_event(wall_time=time.time(), step=step, summary=summary))
        self._flush_in_time()

    def _flush_in_time(self) -> None:
        if time.monotonic() - self._flushed_at > _FLUSH_SECONDS:
            self._writer.flush()
            self._flushed_at = time.monotonic()

    def close(self) -> None:
        self._writer.close()


def _step_of(line: str) -> float:
    """Return the step of an entry; infinity for a truncated line."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")
