"""Load the policy of a run with its best weights from its workdir, without its records and optimizers."""

import dataclasses
import pathlib

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.run.stored_policy import StoredPolicy, read_policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedPolicy(StoredPolicy):
    """The trained policy of a run, ready to answer questions."""

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of pictures; boxes of replies refer to the stretched picture."""
        preprocessing = self.run.preprocessing if self.patches is None else self.patches.encoder.preprocessing
        return dataclasses.replace(preprocessing, fit="stretch")

    @property
    def max_pixels(self) -> int:
        """Largest accepted width times height of an image."""
        return self.run.max_pixels


def load_policy(workdir: pathlib.Path, *, phase: str | None = None) -> TrainedPolicy:
    """Load the policy of a run, with the weights of a phase, or of the last that was validated."""
    stored = read_policy(workdir, phase=phase)
    return TrainedPolicy(**{field.name: getattr(stored, field.name) for field in dataclasses.fields(stored)})
