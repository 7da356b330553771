"""All settings of a run as frozen dataclasses; `configs/base.py` has the defaults and documents every key."""

import copy
import dataclasses
import json
import operator
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

from stepcot_jax.host.download import check_scheme, is_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole
from stepcot_jax.host.ranges import Seed
from stepcot_jax.run import sections
from stepcot_jax.run.configs import load_config
from stepcot_jax.run.fields import describe_key, make, naming
from stepcot_jax.run.sections import list_unread
from stepcot_jax.systems.options import STAGED, CurriculumOptions, DpoOptions, GrpoOptions, SelfCheckOptions, SftOptions


@dataclasses.dataclass(frozen=True)
class Job:
    """One `config.job`."""

    name: str
    names: tuple[str, ...]  # networks, or phases of a policy, whose best weights are kept; the default one last
    epochs: tuple[str, ...]  # settings with the epochs of its phases, in order
    parts: tuple[str, ...] = ()  # parameters that another run's `start.checkpoint` copies
    is_policy: bool = False  # whether it trains a policy on reasoning records; else it reads chains

    @property
    def reads_steps(self) -> bool:
        """Whether its networks answer every step for an image."""
        return bool(self.parts)

    @property
    def files(self) -> tuple[str, ...]:
        """Files of a finished run that tables read besides report.json."""
        if self.is_policy:
            return ("records/test.jsonl", self.replies)
        return ("predictions/val.npz", "predictions/test.npz")

    @property
    def replies(self) -> str:
        """File with a policy's replies to the test questions."""
        return f"replies/{self.names[-1]}_test.jsonl"

    def __str__(self) -> str:
        return self.name


_TEACHER = ("teacher", "image_encoder")
_STUDENT = (*_TEACHER, "student", "teacher_projection", "student_projection")

JOBS = {
    job.name: job
    for job in (
        Job("teacher", ("teacher",), ("training.teacher_job_epochs",), _TEACHER),
        Job("distill", ("teacher", "student"), ("training.teacher_epochs", "training.joint_epochs"), _STUDENT),
        Job("chain_grpo", ("teacher",), ("training.teacher_job_epochs", "grpo.epochs"), _TEACHER),
        Job("baseline", ("baseline",), ("baseline.epochs",)),
        Job("sft", ("sft",), ("sft.epochs",), is_policy=True),
        Job("grpo", ("grpo",), ("sft.epochs", "grpo.epochs"), is_policy=True),
        Job("dpo", ("dpo",), ("sft.epochs", "dpo.epochs"), is_policy=True),
        Job("own", ("own",), ()),
    )
}


# Settings that the jobs of policies ("sft" and "grpo") do not read; they are refused.


_ENCODER = (
    "is read by chain networks alone; a policy trains its own encoder (config.policy.encoder_widths) or reads the "
    "patches of a frozen one ('pretrained')"
)
_RECORDS = "is read of cases alone; reasoning records are named by config.vqa.source and config.vqa.root"
_CHAINS = "is a reward of the job 'chain_grpo'; those of replies are config.rewards.answer_weight and others"
_REASONS = {
    "image_encoder.name": _ENCODER,
    "image_encoder.fit": "has no effect on reasoning records, whose images and boxes are stretched to a square",
    **dict.fromkeys(
        ("data.source", "data.root", "data.layout", "data.augment", "data.sampling", "data.uncertain"), _RECORDS
    ),
    **dict.fromkeys(("rewards.diagnosis_weight", "rewards.steps_weight", "rewards.chain_weight"), _CHAINS),
}
_ACCEPTED = {"image_encoder.name": ("resnet_small", "resnet18", "pretrained")}
"""Further accepted values: of a config for chains whose job is changed, and of a frozen encoder that a policy reads."""


def find_unread(config: Mapping[str, Any]) -> dict[str, tuple[Any, Any, str]]:
    """Return the settings that a policy's run does not read and that are not at their defaults."""
    defaults, unread = load_config("base"), {}
    for name, reason in _REASONS.items():
        section, key = name.split(".")
        of_section = config.get(section)
        if not isinstance(of_section, Mapping) or key not in of_section:
            continue
        value, default = of_section[key], defaults[section][key]
        if value != default and value not in _ACCEPTED.get(name, ()):
            unread[name] = (value, default, reason)
    return unread


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a run."""

    job: Literal["teacher", "distill", "baseline", "sft", "grpo", "dpo", "chain_grpo", "own"]
    seed: Seed
    resume: bool
    data: sections.DataSettings
    phantom: sections.PhantomSettings
    image_encoder: sections.ImageEncoderSettings
    prompts: sections.PromptSettings
    features: sections.FeatureSettings
    teacher: sections.TeacherSettings
    student: sections.StudentSettings
    baseline: sections.BaselineSettings
    loss: sections.LossSettings
    vqa: sections.VqaSettings
    policy: sections.PolicySettings
    sft: SftOptions
    grpo: GrpoOptions
    dpo: DpoOptions
    rewards: sections.RewardsSettings
    self_check: SelfCheckOptions
    curriculum: CurriculumOptions
    start: sections.StartSettings
    training: sections.TrainingSettings
    loggers: sections.LoggerSettings
    parallel: sections.ParallelSettings
    evaluation: sections.EvaluationSettings

    @property
    def trains(self) -> Job:
        """The job of the run."""
        return JOBS[self.job]

    @property
    def trains_policy(self) -> bool:
        """Whether the job trains a policy on reasoning records; other jobs read chains."""
        return self.trains.is_policy

    @property
    def optimising(self) -> GrpoOptions | DpoOptions | None:
        """Options of the phase after fine-tuning, for a policy that has one."""
        options: dict[str, GrpoOptions | DpoOptions] = {"grpo.epochs": self.grpo, "dpo.epochs": self.dpo}
        return options.get(self.trains.epochs[-1]) if self.trains_policy else None

    @property
    def named_job(self) -> str:
        """The setting of the job, for messages."""
        return f"config.job={self.job!r}"

    def __post_init__(self) -> None:
        for key in PATH_KEYS:
            value = operator.attrgetter(key)(self).removeprefix(sections.TRANSFORMERS)
            with naming(f"config.{key}"):
                if is_address(value):
                    check_scheme(value)  # before anything is read
        self._check_policy_training()
        self._check_chain_training()
        if self.trains_policy:
            for name, (value, default, reason) in find_unread(dataclasses.asdict(self)).items():
                raise BadInput(
                    f"config.{name}: {value!r} has no effect with {self.named_job}; expected {default!r} (it {reason})"
                )
            self._check_policy_encoder()
        if self.policy.weights:
            self._check_large_policy()
        elif self.parallel.transform == "mesh":
            raise BadInput(
                "config.parallel.transform: 'mesh' needs config.policy.weights (a Qwen2.5-VL); the other networks are "
                "small and lie whole on every device ('shard_map')"
            )

    def _check_policy_training(self) -> None:
        if self.grpo.shuffle_rewards and self.self_check.enabled:
            raise BadInput(
                "config.grpo.shuffle_rewards: must be False with config.self_check.enabled=True; got True (who tries "
                "again follows the true answer, so that the control would learn from it)"
            )
        if self.optimising is self.dpo and not (self.rewards.gate == "released" and self.rewards.format_weight):
            raise BadInput(
                "config.rewards.gate: must be 'released', with config.rewards.format_weight above 0, with "
                f"config.job='dpo'; got {self.rewards.gate!r} and {self.rewards.format_weight} (a reply is valid where "
                "its reward is above 0)"
            )
        if self.grpo.stage_credit != "none" and (self.vqa.dialect not in STAGED or self.self_check.enabled):
            raise BadInput(
                f"config.grpo.stage_credit: {self.grpo.stage_credit!r} needs config.vqa.dialect of {', '.join(STAGED)} "
                f"and config.self_check.enabled=False; got {self.vqa.dialect!r} and {self.self_check.enabled}"
            )
        if self.curriculum.schedule != "none" and self.sft.pack_length:
            raise BadInput(
                f"config.sft.pack_length: {self.sft.pack_length} must be 0 with config.curriculum.schedule="
                f"{self.curriculum.schedule!r} (boxes are drawn and images chosen for each question)"
            )

    def _check_chain_training(self) -> None:
        job, encoder, augment = self.job, self.image_encoder, self.data.augment
        if self.start.checkpoint and job not in ("teacher", "distill"):
            instead = "" if job == "baseline" else "; config.policy.start names the run that it starts from"
            raise BadInput(f"config.start.checkpoint: must be '' with {self.named_job}{instead}")
        if job == "baseline" and not self.teacher.text:
            raise BadInput(
                f"config.teacher.text: must be True with {self.named_job}; got False (only prompts distinguish the "
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

    def _check_policy_encoder(self) -> None:
        if not self.image_encoder.is_frozen:
            return
        for name, default in (("weights", ""), ("encoder_widths", load_config("base").policy.encoder_widths)):
            if (value := getattr(self.policy, name)) != default:
                raise BadInput(
                    f"config.policy.{name}: {value!r} has no effect with config.image_encoder.name="
                    f"{self.image_encoder.name!r}, whose patches the policy reads; expected {default!r}"
                )

    def _check_large_policy(self) -> None:
        if not self.trains_policy:
            raise BadInput(
                f"config.policy.weights: {self.policy.weights!r} needs the job 'sft', 'grpo' or 'dpo'; got "
                f"{self.named_job}"
            )
        if self.sft.pack_length:
            raise BadInput(
                f"config.sft.pack_length: {self.sft.pack_length} must be 0 with config.policy.weights (the image "
                "stands in the prompt, so that a row is one question)"
            )


def make_settings(config: Mapping[str, Any]) -> Settings:
    """Return the settings of a `ConfigDict` or any nested mapping."""
    settings = make(Settings, config, "config")
    if settings.job == "baseline":
        training = dataclasses.replace(settings.training, batch_size=settings.baseline.batch_size)
        settings = dataclasses.replace(settings, training=training)
    return settings


def load_settings(config: str | pathlib.Path | Mapping[str, Any], **overrides: Any) -> Settings:
    """Return the settings of a config, with some of them changed.

    Args:
      config: name of a shipped config, path of a config file, or a nested mapping such as a ConfigDict.
      **overrides: full names without "config." -> values.

    Raises:
      BadInput: there is no such config, it fails, or a setting is refused.

    >>> load_settings("quickstart", **{"training.joint_epochs": 3}).training.joint_epochs
    3
    """
    tree: Any = load_config(str(config)) if isinstance(config, str | pathlib.Path) else config
    tree = tree.to_dict() if hasattr(tree, "to_dict") else copy.deepcopy(tree)
    for key, value in overrides.items():
        describe_key(Settings, f"config.{key}")
        *groups, name = key.split(".")
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
        node[name] = value
    return make_settings(tree)


PATH_KEYS = (
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
"""Settings whose value may be a path or an address, without "config."."""

# Settings in a workdir: written, read back (also from earlier versions), and compared.


_LATER_SECTIONS = ("vqa", "policy", "sft", "grpo", "dpo", "rewards", "self_check", "curriculum", "start", "loggers")
_LATER = {
    "curriculum": "first_loss first_overall least_loss",
    "data": "fold uncertain uncertain_weight",
    "evaluation": "coverage_by gate_false_alarms least_gain miss_cost operating_point operating_target step_costs",
    "grpo": "epoch_end kl_norm stage_credit",
    "loss": "parts",
    "parallel": "model_devices",
    "phantom": "style",
    "policy": "low_rank low_rank_alpha low_rank_targets random shrink weights",
    "sft": "epoch_end",
    "training": "given_answers given_noise given_rate given_to profile_updates schedule",
}
"""Sections and settings that earlier versions lacked; their defaults reproduce those versions."""

_READS_PATCHES = "first_loss"
"""A setting of the curriculum that is as old as frozen encoders for policies: runs without it did not read one."""

_MAY_CHANGE = {
    "data": "cache_megabytes check_images num_threads num_workers",
    "features": "batch_size folder patches",
    "loggers": "mode names project run",
    "rewards": "judge_cap judge_url",
    "training": "checkpoint_minutes log_every profile_updates",
    "parallel": "model_devices num_devices num_passes remat transform",
    "evaluation": "batch_size coverage coverage_by coverage_confidence gate_false_alarms "
    "least_gain miss_cost num_resamples operating_point operating_target step_costs",
}
MAY_CHANGE = {"config.resume"} | {
    f"config.{part}.{name}" for part, names in _MAY_CHANGE.items() for name in names.split()
}
"""Settings that a resumed run may change: none affects the result of a finished epoch."""


def flatten_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings by full name without "config."."""
    flat: dict[str, Any] = {}
    for name, value in dataclasses.asdict(settings).items():
        flat |= {f"{name}.{key}": own for key, own in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def changed_keys(before: Settings, after: Settings) -> list[str]:
    """Return the full names of the settings that differ, except those in `MAY_CHANGE`."""
    one, other = flatten_settings(before), flatten_settings(after)
    changed = [f"config.{name}" for name in one if one[name] != other[name]]
    return [name for name in changed if name not in MAY_CHANGE]


def write_settings(path: pathlib.Path, settings: Settings) -> None:
    """Write the resolved settings as JSON, atomically."""
    write_whole(path, (json.dumps(dataclasses.asdict(settings), indent=2) + "\n").encode())


def read_settings(path: pathlib.Path) -> Settings:
    """Return the settings that `write_settings` wrote, also of earlier versions."""
    stored = read_json(path, dict[str, Any], accepted="expected the settings.json of a run")
    is_earlier = _READS_PATCHES not in (stored["curriculum"] if isinstance(stored.get("curriculum"), dict) else {})
    defaults = load_config("base").to_dict()
    for section in _LATER_SECTIONS:
        stored.setdefault(section, defaults[section])
    for section, names in _LATER.items():
        if isinstance(values := stored.get(section), dict):
            stored[section] = {name: defaults[section][name] for name in names.split()} | values
    if isinstance(stored.get("evaluation"), dict):
        stored["evaluation"].setdefault("coverage_confidence", 0.0)  # on average over validation splits
    if isinstance(stored["policy"], dict):
        stored["policy"] |= {name: defaults["policy"][name] for name in list_unread(stored["policy"])}
    job = stored.get("job")
    if isinstance(job, str) and job in JOBS and JOBS[job].is_policy:
        encoder = stored.get("image_encoder")
        if is_earlier and isinstance(encoder, dict) and encoder.get("name") in ("pretrained", "imported"):
            # Such runs did not read them.
            encoder |= {name: defaults["image_encoder"][name] for name in ("name", "weights")}
        for name, (_, default, _) in find_unread(stored).items():
            section, key = name.split(".")
            stored[section][key] = default
    try:
        return make_settings(stored)
    except BadInput as error:
        raise BadInput(f"{path}: {error} (written by another version? start in a new workdir)") from None


def read_run_settings(workdir: pathlib.Path) -> Settings:
    """Return the settings of a run."""
    if not workdir.is_dir():
        raise BadInput(f"{workdir} is not the workdir of a run (no such folder)")
    if not (workdir / "settings.json").exists():
        near = [path.parent for path in (workdir.parent / "settings.json", *sorted(workdir.glob("*/settings.json")))]
        known = [str(folder) for folder in near if (folder / "settings.json").is_file()][:3]
        meant = f"; did you mean {' or '.join(known)}?" if known else ""
        raise BadInput(f"{workdir} is not the workdir of a run (no settings.json){meant}")
    return read_settings(workdir / "settings.json")
