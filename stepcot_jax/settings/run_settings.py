"""All settings of a run as frozen dataclasses; `configs/base.py` has the defaults and documents every key."""

import copy
import dataclasses
import operator
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

from stepcot_jax.host.addresses import is_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.stores import check_store_address
from stepcot_jax.settings.configs import load_config
from stepcot_jax.settings.fields import Seed, describe_key, make
from stepcot_jax.settings.policy_sections import (
    CurriculumSettings,
    GrpoSettings,
    PolicySettings,
    RewardsSettings,
    SelfCheckSettings,
    SftSettings,
    VqaSettings,
)
from stepcot_jax.settings.policy_unread import find_unread
from stepcot_jax.settings.sections import (
    TRANSFORMERS,
    BaselineSettings,
    DataSettings,
    EvaluationSettings,
    FeatureSettings,
    ImageEncoderSettings,
    LoggerSettings,
    LossSettings,
    ParallelSettings,
    PhantomSettings,
    PromptSettings,
    StartSettings,
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
    start: StartSettings
    training: TrainingSettings
    loggers: LoggerSettings
    parallel: ParallelSettings
    evaluation: EvaluationSettings

    def __post_init__(self) -> None:
        for place in PLACES:
            _check_place(operator.attrgetter(place)(self).removeprefix(TRANSFORMERS), place)
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
        if self.start.checkpoint and self.job not in ("teacher", "distill"):
            instead = "" if self.job == "baseline" else "; config.policy.start names the run that it starts from"
            raise BadInput(f"config.start.checkpoint: must be '' with config.job={self.job!r}{instead}")
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
        if self.job in POLICY_JOBS:
            for name, (value, default, reason) in find_unread(dataclasses.asdict(self)).items():
                raise BadInput(
                    f"config.{name}: {value!r} has no effect with config.job={self.job!r}; expected {default!r} (it "
                    f"{reason})"
                )
            self._check_policy_encoder()
        if self.policy.weights:
            self._check_large_policy()
        elif self.parallel.transform == "mesh":
            raise BadInput(
                "config.parallel.transform: 'mesh' needs config.policy.weights (a Qwen2.5-VL); the other networks are "
                "small and lie whole on every device ('shard_map')"
            )

    def _check_policy_encoder(self) -> None:
        """Refuse a frozen encoder beside another network that reads pictures."""
        if not self.image_encoder.is_frozen:
            return
        for name, default in (("weights", ""), ("encoder_widths", load_config("base").policy.encoder_widths)):
            if (found := getattr(self.policy, name)) != default:
                raise BadInput(
                    f"config.policy.{name}: {found!r} has no effect with config.image_encoder.name="
                    f"{self.image_encoder.name!r}, whose patches the policy reads; expected {default!r}"
                )

    def _check_large_policy(self) -> None:
        """Refuse settings that a Qwen2.5-VL does not read."""
        if self.job not in POLICY_JOBS:
            raise BadInput(
                f"config.policy.weights: {self.policy.weights!r} needs config.job 'sft' or 'grpo'; got {self.job!r}"
            )
        if self.sft.pack_length:
            raise BadInput(
                f"config.sft.pack_length: {self.sft.pack_length} must be 0 with config.policy.weights (the image "
                "stands in the prompt, so that a row is one question)"
            )


def _check_place(value: str, place: str) -> None:
    """Refuse an address of another form than the setting takes, before anything is read."""
    try:
        if is_address(value):
            check_store_address(value)
    except BadInput as error:
        raise BadInput(f"config.{place}: {error}, or a path of this machine") from None


POLICY_JOBS = ("sft", "grpo")
"""Jobs that read reasoning records; the others read chains."""


def make_settings(config: Mapping[str, Any]) -> Settings:
    """Return the settings of a ConfigDict or any nested mapping.

    With the job "baseline", `training.batch_size` becomes `baseline.batch_size`.
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


PLACES = (
    "data.root",
    "image_encoder.weights",
    "prompts.weights",
    "features.folder",
    "vqa.root",
    "policy.start",
    "policy.weights",
    "policy.tokenizer",
    "start.checkpoint",
)
"""Settings that may name a folder of the machine or on a store, without "config."."""
