"""All settings of a run as frozen dataclasses; `configs/base.py` has the defaults and documents every key."""

import copy
import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole
from stepcot_jax.settings.configs import load_config
from stepcot_jax.settings.fields import ADDED, RENAMED, Seed, describe_key, make
from stepcot_jax.settings.policy_sections import (
    CurriculumSettings,
    GrpoSettings,
    PolicySettings,
    RewardsSettings,
    SelfCheckSettings,
    SftSettings,
    VqaSettings,
)
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
    """All settings of a run."""

    job: Literal["teacher", "distill", "baseline", "sft", "grpo", "chain_grpo"]
    seed: Seed
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
    vqa: VqaSettings
    policy: PolicySettings
    sft: SftSettings
    grpo: GrpoSettings
    rewards: RewardsSettings
    self_check: SelfCheckSettings
    curriculum: CurriculumSettings
    training: TrainingSettings
    parallel: ParallelSettings
    evaluation: EvaluationSettings

    def __post_init__(self) -> None:
        encoder, augment = self.image_encoder, self.data.augment
        if self.grpo.shuffle_rewards and self.self_check.enabled:
            raise BadInput(
                "config.grpo.shuffle_rewards: must be False with config.self_check.enabled=True; got True (who tries "
                "again follows the true answer, so that the control would learn from it)"
            )
        if self.curriculum.schedule != "none" and self.sft.pack_length:
            raise BadInput(
                f"config.sft.pack_length: {self.sft.pack_length} must be 0 with config.curriculum.schedule="
                f"{self.curriculum.schedule!r} (boxes are drawn and images chosen for each question)"
            )
        if self.job == "baseline" and not self.teacher.text:
            raise BadInput(
                "config.teacher.text: must be True with config.job='baseline'; got False (only prompts distinguish the "
                "baseline's steps)"
            )
        if augment != "none" and encoder.name == "imported":
            raise BadInput(
                f"config.data.augment: must be 'none' with config.image_encoder.name='imported'; got {augment!r}"
            )
        if augment != "none" and encoder.is_frozen and self.features.store:
            raise BadInput(
                f"config.data.augment: must be 'none' with config.features.store=True; got {augment!r} (stored "
                "features are of unaugmented images)"
            )
        if self.prompts.encoder == "imported" and encoder.name != "imported":
            raise BadInput(
                "config.prompts.encoder: 'imported' needs config.image_encoder.name='imported'; got "
                f"{encoder.name!r} (prompt features are imported with image features)"
            )


POLICY_JOBS = ("sft", "grpo")
"""Jobs that read reasoning records; the others read chains."""

_SECTIONS_OF_POLICIES = ("vqa", "policy", "sft", "grpo", "rewards", "self_check", "curriculum")


def make_settings(config: Mapping[str, Any]) -> Settings:
    """Return the settings of a ConfigDict or any nested mapping.

    With the job "baseline", `training.batch_size` becomes `baseline.batch_size`.

    Raises:
      BadInput: a key is unknown, renamed or missing, or a value has the wrong type or is out of range.
    """
    settings = make(Settings, config, "config")
    if settings.job == "baseline":
        training = dataclasses.replace(settings.training, batch_size=settings.baseline.batch_size)
        settings = dataclasses.replace(settings, training=training)
    return settings


def load_settings(config: str | pathlib.Path | Mapping[str, Any], **overrides: Any) -> Settings:
    """Load the settings of a config, with some of them changed.

    Args:
      config: name of a shipped config, path of a config file, or a nested mapping such as a ConfigDict.
      **overrides: full names without "config." -> values.

    Raises:
      BadInput: there is no such config, it fails, or a setting is refused.

    >>> load_settings("quickstart", **{"training.joint_epochs": 3}).training.joint_epochs
    3
    """
    found: Any = load_config(str(config)) if isinstance(config, str | pathlib.Path) else config
    found = found.to_dict() if hasattr(found, "to_dict") else copy.deepcopy(found)
    for key, value in overrides.items():
        describe_key(Settings, f"config.{key}")
        *groups, name = key.split(".")
        node = found
        for group in groups:
            node = node.setdefault(group, {})
        node[name] = value
    return make_settings(found)


def write_settings(path: pathlib.Path, settings: Settings) -> None:
    """Write the resolved settings as JSON, atomically."""
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
        "config.rewards.judge_cap",
        "config.rewards.judge_url",
        "config.training.joint_epochs",
        "config.training.profile_updates",
        "config.training.log_every",
        "config.training.checkpoint_minutes",
        "config.parallel.transform",
        "config.parallel.num_devices",
        "config.parallel.num_passes",
        "config.parallel.remat",
        "config.evaluation.batch_size",
        "config.evaluation.num_resamples",
        "config.evaluation.coverage",
        "config.evaluation.coverage_by",
        "config.evaluation.decoding",
        "config.evaluation.step_costs",
    }
)
"""Settings that a resumed run may change: none affects the result of a finished epoch."""


def changed_keys(before: Settings, after: Settings) -> list[str]:
    """Return the full names of the settings that differ, except those in `MAY_CHANGE`."""

    def walk(one: Any, other: Any, where: str) -> list[str]:
        if isinstance(one, dict):
            return [name for key in one for name in walk(one[key], other[key], f"{where}.{key}")]
        return [where] if one != other and where not in MAY_CHANGE else []

    return walk(dataclasses.asdict(before), dataclasses.asdict(after), "config")


def read_settings(path: pathlib.Path) -> Settings:
    """Read the settings that `write_settings` wrote, also under names of earlier versions or without later settings.

    Raises:
      BadInput: the file is missing or is not JSON, or its settings are refused.
    """
    found = read_json(path, dict[str, Any], accepted="expected the settings.json of a run")
    for old, new in RENAMED.items():
        _move(found, old.split(".")[1:], new.split(".")[1:])
    for added, value in ADDED.items():
        _add(found, added.split(".")[1:], value)
    defaults = load_config("base").to_dict()
    for section in _SECTIONS_OF_POLICIES:  # earlier versions had no policies, and their jobs read none of these
        found.setdefault(section, defaults[section])
    try:
        return make_settings(found)
    except BadInput as error:
        raise BadInput(f"{path}: {error} (written by another version? start in a new workdir)") from None


def _add(tree: dict[str, Any], key: list[str], value: Any) -> None:
    node: Any = tree
    for name in key[:-1]:
        node = node.get(name) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.setdefault(key[-1], value)


def _move(tree: dict[str, Any], old: list[str], new: list[str]) -> None:
    source: Any = tree
    for name in old[:-1]:
        source = source.get(name, {})
    if old[-1] in source:
        target = tree
        for name in new[:-1]:
            target = target.setdefault(name, {})
        target[new[-1]] = source.pop(old[-1])
