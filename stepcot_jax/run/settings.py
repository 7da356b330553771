"""All settings of a run as frozen dataclasses; `configs/base.py` has the defaults and documents every key."""

import copy
import dataclasses
import functools
import operator
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from stepcot_jax.host.download import check_scheme, is_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.own_folder import load, save
from stepcot_jax.host.ranges import Seed
from stepcot_jax.run import sections
from stepcot_jax.run.configs import load_config
from stepcot_jax.run.fields import describe_key, make, naming
from stepcot_jax.systems.options import STAGED, CurriculumOptions, DpoOptions, GrpoOptions, SelfCheckOptions, SftOptions


@dataclasses.dataclass(frozen=True)
class Job:
    """One `config.job`."""

    name: str
    names: tuple[str, ...]  # networks, or phases of a policy, whose best weights are kept, in order
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
        Job("baseline", ("baseline",), ("baseline.epochs",)),
        Job("sft", ("sft",), ("sft.epochs",), is_policy=True),
        Job("grpo", ("grpo",), ("sft.epochs", "grpo.epochs"), is_policy=True),
        Job("dpo", ("dpo",), ("sft.epochs", "dpo.epochs"), is_policy=True),
        Job("own", ("own",), ()),
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a run."""

    job: Literal["teacher", "distill", "baseline", "sft", "grpo", "dpo", "own"]
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
        """The job of the run, with the plain network where it trains one."""
        job = JOBS[self.job]
        if self.reads_alone:
            name = {"heads": "plain", "student": "student"}[self.baseline.form]
            return dataclasses.replace(job, names=(name,), parts=(name, "image_encoder"))
        if self.loss.plain_scale and "teacher" in job.names:
            return dataclasses.replace(job, names=(*job.names, "plain"), parts=(*job.parts, "plain"))
        return job

    @property
    def reads_alone(self) -> bool:
        """Whether the job trains a network that reads images without a teacher and without prompts."""
        return self.job == "baseline" and self.baseline.form != "perceptron"

    @property
    def reads_prompts(self) -> bool:
        """Whether its networks read the steps' prompts."""
        return self.teacher.text and not self.reads_alone

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
        for key, is_wrong, expected in self._contradictions():
            if is_wrong:
                found = operator.attrgetter(key)(self)
                raise BadInput(f"config.{key}: {found!r} with {self.named_job}; expected {expected}")

    def _contradictions(self) -> Iterator[tuple[str, bool, str]]:
        """Yield a setting, whether a result would silently be of something else than it says, and what is expected."""
        encoder, policy, is_large = self.image_encoder, self.policy, bool(self.policy.weights)
        is_imported, retries = encoder.name == "imported", self.self_check.enabled
        is_elsewhere = self.job not in ("teacher", "distill")
        expected = "''" + " (config.policy.start names the run that a policy starts from)" * self.trains_policy
        yield "start.checkpoint", bool(self.start.checkpoint) and is_elsewhere, expected
        if self.trains_policy:
            yield "data.root", bool(self.data.root), "'': config.vqa.source and config.vqa.root name the records"
            for key in _OF_CHAINS:
                found, unused = (operator.attrgetter(key)(settings) for settings in (self, _base()))
                yield key, found != unused, f"{unused!r} (a policy reads questions, on pictures stretched to a square)"
            expected = "an encoder that reads pictures, and none beside a Qwen2.5-VL"
            yield "image_encoder.name", is_imported or (encoder.is_frozen and is_large), expected
        else:
            for key in ("policy.weights", "policy.start"):
                yield key, bool(operator.attrgetter(key)(self)), "the job 'sft', 'grpo' or 'dpo'"
            is_unread = self.data.source == "phantom" and bool(self.data.root)
            yield "data.root", is_unread, "'', or config.data.source='folder'"
        yield from self._contradictions_of_baselines()
        is_stored = is_imported or (encoder.is_frozen and self.features.store)
        expected = "'none' with imported features or config.features.store=True, which are of unaugmented images"
        yield "data.augment", self.data.augment != "none" and is_stored, expected
        expected = "0, or config.policy.weights of a Qwen2.5-VL"
        yield "policy.low_rank", policy.low_rank > 0 and not is_large, expected
        expected = "1, or config.policy.random=True: weights of a checkpoint have its size"
        yield "policy.shrink", policy.shrink > 1 and not policy.random, expected
        expected = "config.policy.weights of a Qwen2.5-VL, or another transform"
        yield "parallel.transform", self.parallel.transform == "mesh" and not is_large, expected
        expected = "False with config.self_check.enabled=True, which follows the true answer, as the control then would"
        yield "grpo.shuffle_rewards", self.grpo.shuffle_rewards and retries, expected
        expected = f"config.vqa.dialect of {', '.join(STAGED)} and config.self_check.enabled=False"
        is_read = self.vqa.dialect in STAGED and not retries
        yield "grpo.stage_credit", self.grpo.stage_credit != "none" and not is_read, expected
        is_gated = self.rewards.gate == "released" and self.rewards.weights.get("well_formed", 0) > 0
        expected = "'released' and well_formed in config.rewards.functions (a valid reply has a reward above 0)"
        yield "rewards.gate", self.optimising is self.dpo and not is_gated, expected
        is_alone = self.trains_policy and (self.curriculum.schedule != "none" or is_large)
        expected = "0 with config.curriculum.schedule or config.policy.weights (a row is one question)"
        yield "sft.pack_length", is_alone and self.sft.pack_length > 0, expected

    def _contradictions_of_baselines(self) -> Iterator[tuple[str, bool, str]]:
        """Yield what `_contradictions` does, of the job "baseline"."""
        expected = "True (only prompts tell the steps of a baseline apart)"
        yield "teacher.text", self.job == "baseline" and not self.reads_alone and not self.teacher.text, expected
        has_dropout = self.reads_alone and self.baseline.form == "student" and self.student.dropout > 0
        yield "student.dropout", has_dropout, "0.0 with config.baseline.form='student', which trains without dropout"
        batch_sizes = (self.baseline.batch_size, _base().training.batch_size)
        is_unread = self.reads_alone and self.training.batch_size not in batch_sizes
        yield "training.batch_size", is_unread, f"{batch_sizes[0]}: config.baseline.batch_size counts"


_OF_CHAINS = (
    *("data.fold", "data.origins", "data.augment", "data.sampling", "data.uncertain", "data.num_train"),
    *("data.withhold_chains", "data.withhold_answers", "image_encoder.fit", "training.updates_per_epoch"),
)
"""Settings that a policy does not read, although they would change what it learns."""


@functools.cache
def _base() -> Any:
    return load_config("base")


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

# Settings in a workdir: written, read back, and compared.


_MAY_CHANGE = {
    "data": "cache_megabytes check_images num_threads num_workers",
    "features": "batch_size folder patches",
    "loggers": "mode names project run",
    "rewards": "judge_cap judge_url",
    "training": "checkpoint_minutes log_every profile_updates",
    "parallel": "model_devices num_devices num_passes remat transform",
    "evaluation": "batch_size coverage coverage_confidence gate_false_alarms "
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
    save(path, settings)


def read_settings(path: pathlib.Path) -> Settings:
    """Return the settings that `write_settings` wrote."""
    return load(path, Settings)


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
