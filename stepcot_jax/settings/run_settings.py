"""The settings of a run as frozen dataclasses, made from a ConfigDict; `configs/base.py` has the defaults.

Every field says what it accepts. An unknown key, a missing one, a wrong type or a value out of range is refused
with the key's full name, what was found, what is accepted and the nearest valid key.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.settings.fields import make, seed
from stepcot_jax.settings.sections import (
    BaselineSettings,
    DataSettings,
    EvaluationSettings,
    FeatureSettings,
    ImageEncoderSettings,
    LossSettings,
    ParallelSettings,
    PhantomSettings,
    PromptSettings,
    StudentSettings,
    TeacherSettings,
    TrainingSettings,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides a run."""

    job: Literal["teacher", "distill", "baseline"]
    seed: int = seed()
    resume: bool
    data: DataSettings
    phantom: PhantomSettings
    image_encoder: ImageEncoderSettings
    prompts: PromptSettings
    features: FeatureSettings
    teacher: TeacherSettings
    student: StudentSettings
    baseline: BaselineSettings
    loss: LossSettings
    training: TrainingSettings
    parallel: ParallelSettings
    evaluation: EvaluationSettings

    def __post_init__(self) -> None:
        encoder = self.image_encoder
        if self.job == "baseline" and not self.teacher.text:
            raise BadInput(
                "config.teacher.text: found False with config.job='baseline', accepted is True with it: the baseline "
                "tells the steps apart by their prompts"
            )
        if self.data.augment != "none" and encoder.name == "imported":
            raise BadInput(
                f"config.data.augment: found {self.data.augment!r} with config.image_encoder.name='imported', accepted "
                "is 'none' with it: features that were made elsewhere stay as they are"
            )
        if self.data.augment != "none" and encoder.is_frozen and self.features.store:
            raise BadInput(
                f"config.data.augment: found {self.data.augment!r} with config.features.store=True, accepted is "
                "config.features.store=False with it: a stored feature is of the image as it is"
            )
        if self.prompts.encoder == "imported" and self.image_encoder.name != "imported":
            raise BadInput(
                f"config.prompts.encoder: found 'imported' with config.image_encoder.name={self.image_encoder.name!r}, "
                "accepted is 'imported' for both: the prompts' features are in the images' file"
            )


def make_settings(config: Mapping[str, Any]) -> Settings:
    """Settings from a ConfigDict or any nested mapping.

    The batch size of the job "baseline" is `baseline.batch_size`, which takes the place of the general one.

    Raises:
      BadInput: a key is unknown or missing, or a value has the wrong type or is out of range.
    """
    settings = make(Settings, config, "config")
    if settings.job == "baseline":
        training = dataclasses.replace(settings.training, batch_size=settings.baseline.batch_size)
        settings = dataclasses.replace(settings, training=training)
    return settings


def write_settings(path: pathlib.Path, settings: Settings) -> None:
    """Write the resolved settings as JSON, whole or not at all."""
    write_whole(path, (json.dumps(dataclasses.asdict(settings), indent=2) + "\n").encode())


MAY_CHANGE = frozenset(
    {
        "config.resume",
        "config.data.cache_megabytes",
        "config.data.check_images",
        "config.data.num_threads",
        "config.data.num_workers",
        "config.features.folder",
        "config.features.patches",
        "config.features.batch_size",
        "config.training.joint_epochs",
        "config.training.log_every",
        "config.training.checkpoint_minutes",
        "config.parallel.transform",
        "config.parallel.num_devices",
        "config.parallel.num_passes",
        "config.parallel.remat",
        "config.evaluation.batch_size",
        "config.evaluation.num_resamples",
        "config.evaluation.coverage",
        "config.evaluation.decoding",
    }
)
"""Keys that a resumed run may set anew: none of them changes what a finished epoch has computed."""


def changed_keys(before: Settings, after: Settings) -> list[str]:
    """The full names of the keys that differ, but for those that may."""

    def walk(one: Any, other: Any, where: str) -> list[str]:
        if isinstance(one, dict):
            return [name for key in one for name in walk(one[key], other[key], f"{where}.{key}")]
        return [where] if one != other and where not in MAY_CHANGE else []

    return walk(dataclasses.asdict(before), dataclasses.asdict(after), "config")


def read_settings(path: pathlib.Path) -> Settings:
    """The settings that `write_settings` wrote.

    Raises:
      BadInput: the file is missing, is not JSON, or its settings are refused.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: found no settings ({error}), accepted is what a run wrote there") from None
    try:
        return make_settings(found)
    except BadInput as error:
        raise BadInput(f"{path}: {error} (it may be of another version; a new workdir starts anew)") from None
