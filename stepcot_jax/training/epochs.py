"""The epochs of a run: phases in a row, where an update falls among them, and the positions of their batches."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.training.system import Phase, Stream


@dataclasses.dataclass(frozen=True)
class Plan:
    """The epochs of all phases in a row, and where an update count falls among them.

    Attributes:
      stream: batches of the phases that have none of their own.
    """

    phases: Sequence[Phase]
    stream: Stream

    def __post_init__(self) -> None:
        names = [phase.name for phase in self.phases]
        if len(names) > len(set(names)):
            raise ValueError(f"the names of phases must differ; got {names}")

    def stream_of(self, phase: Phase) -> Stream:
        """Return the batches that a phase trains on."""
        return phase.stream or self.stream

    @property
    def streams(self) -> list[Stream]:
        """The distinct streams, in order of first use."""
        found: list[Stream] = []
        for phase in self.phases:
            if all(self.stream_of(phase) is not stream for stream in found):
                found.append(self.stream_of(phase))
        return found

    def epochs(self) -> Iterator[tuple[Phase, int]]:
        """Yield each epoch's phase and the updates before the epoch."""
        done = 0
        for phase in self.phases:
            for _ in range(phase.num_epochs):
                yield phase, done
                done += self.stream_of(phase).batches_per_epoch

    @property
    def num_epochs(self) -> int:
        """Epochs of all phases."""
        return sum(phase.num_epochs for phase in self.phases)

    def epoch_of(self, step: int) -> int:
        """Return the index of the epoch that update `step` (from 1) belongs to, -1 for 0."""
        return sum(first < step for _, first in self.epochs()) - 1

    def is_over(self, phase: Phase, step: int) -> bool:
        """Return whether `step` updates leave nothing of a phase to do."""
        length = self.stream_of(phase).batches_per_epoch
        return all(first + length <= step for each, first in self.epochs() if each is phase)

    def positions(self) -> Any:
        """Return the positions of the streams, as JSON; that of the only one as it is."""
        found = [stream.batches.get_state() for stream in self.streams]
        return found[0] if len(found) == 1 else {"streams": found}

    def restore_positions(self, saved: Any, *, step: int) -> None:
        """Go to positions that `positions` returned after `step` updates.

        A stream that was added since, for phases that begin later, starts with its first batch.
        """
        if not self.streams:  # no phase has an epoch left
            return
        several = isinstance(saved, dict) and set(saved) == {"streams"}
        positions = saved["streams"] if several else [saved]
        begun = [self.stream_of(phase) for phase, first in self.epochs() if first < step]
        added = self.streams[len(positions) :]
        if len(positions) > len(self.streams) or any(stream is each for stream in added for each in begun):
            raise BadInput(
                f"the checkpoint has the positions of {len(positions)} streams of batches, expected "
                f"{len(self.streams)}; use the same phases or a new workdir"
            )
        for stream, position in zip(self.streams, positions, strict=False):
            stream.batches.set_state(position)
