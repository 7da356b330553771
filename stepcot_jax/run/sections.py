"""The sections of the settings, one frozen dataclass each; `configs/base.py` documents every key with its unit.

Types give the accepted values; `__post_init__` refuses settings of one section that contradict each other.
"""

import dataclasses
import re
from typing import Annotated, Any, Literal

import msgspec

from stepcot_jax.data.sources.layout_table import CaseLayout, QuestionLayout
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.machine import count_cores
from stepcot_jax.host.ranges import (
    Count,
    Layers,
    NotNegative,
    Number,
    Positive,
    PositiveShare,
    Seed,
    Share,
    Tokens,
    Whole,
    Width,
)
from stepcot_jax.rewards.options import RewardSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The source of the cases, how they are read and split, and how bad records are handled."""

    source: Literal["phantom", "folder", "tfds", "given"]
    root: str
    layout: CaseLayout
    single_label: bool
    labels_from: Literal["auto", "boxes", "entries"]
    step_names: tuple[str, ...]
    on_bad_record: Literal["stop", "skip"]
    check_images: Literal["ahead", "on_use"]
    split_fractions: tuple[PositiveShare, PositiveShare, PositiveShare]
    split_seed: Seed
    fold: str
    near_duplicate_radius: Annotated[int, msgspec.Meta(ge=0, le=16)]
    max_megapixels: Positive
    cache_megabytes: NotNegative
    num_threads: Whole
    num_workers: Whole
    origins: tuple[str, ...]
    num_train: Whole
    withhold_chains: Share
    withhold_answers: Share
    sampling: Literal["uniform", "inverse_frequency", "inverse_frequency_of_steps"]
    augment: Literal["none", "light"]
    uncertain: Literal["ignore", "negative", "positive"]

    @property
    def decoding_threads(self) -> int:
        """Number of images that this process reads and decodes at a time."""
        return self.num_threads or count_cores()

    @property
    def batching_threads(self) -> int:
        """Number of batches, or of images in each of several processes, that are read at a time."""
        return self.num_threads or 2

    @property
    def max_pixels(self) -> int:
        """Largest accepted width times height of an image."""
        return int(self.max_megapixels * 1e6)

    def __post_init__(self) -> None:
        names = [" ".join(name.split()) for name in self.step_names]
        if not names or "" in names or len(set(names)) < len(names):
            raise BadInput(f"config.data.step_names: {self.step_names} is not a list of distinct, non-empty names")
        if self.source in ("folder", "tfds") and not self.root:
            raise BadInput(f"config.data.root is required with config.data.source={self.source!r} (a folder)")
        if abs(sum(self.split_fractions) - 1) > 1e-6:
            raise BadInput(f"config.data.split_fractions: {self.split_fractions} is not three shares that add up to 1")
        if self.fold:
            parts = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", self.fold, re.ASCII)
            if not parts or int(parts[2]) < 2 or int(parts[1]) > int(parts[2]):
                raise BadInput(f"config.data.fold: {self.fold!r} is not a fold of two or more, such as '2/5', or ''")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhantomSettings:
    """The synthetic chest radiographs of `config.data.source='phantom'`."""

    num_cases: Annotated[int, msgspec.Meta(ge=30)]
    image_size: Annotated[int, msgspec.Meta(ge=32, le=2048)]
    prevalence: Literal["published", "flat"]
    seed: Seed

    @property
    def drawing(self) -> dict[str, Any]:
        """Arguments of `draw_case`."""
        return {"seed": self.seed, "size": self.image_size, "prevalence": self.prevalence}


TRANSFORMERS = "transformers:"
"""Prefix in `image_encoder.weights` of the folder or Hugging Face id of an encoder that runs in PyTorch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageEncoderSettings:
    """The image encoder and its preprocessing."""

    name: Literal["resnet_small", "resnet18", "pretrained", "imported"]
    weights: str
    dtype: Literal["float32", "bfloat16"]
    image_size: Annotated[int, msgspec.Meta(ge=32, le=1024)]
    fit: Literal["crop", "pad", "stretch"]
    reduced_jpeg: bool
    mean: tuple[Number, Number, Number]
    std: tuple[Positive, Positive, Positive]

    def __post_init__(self) -> None:
        if self.is_frozen != bool(self.weights):
            raise _weights_error("image_encoder.weights", self.weights, f"image_encoder.name={self.name!r}")

    @property
    def is_frozen(self) -> bool:
        """Whether features are computed once, with weights that training does not change."""
        return self.name in ("pretrained", "imported")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptSettings:
    """The prompt of each step and its text encoder."""

    template: str
    encoder: Literal["hashed", "pretrained", "imported"]
    weights: str
    pooling: Literal["cls", "mean"]
    max_tokens: Annotated[int, msgspec.Meta(ge=8, le=512)]
    width: Width

    def __post_init__(self) -> None:
        if (self.encoder == "pretrained") != bool(self.weights):
            raise _weights_error("prompts.weights", self.weights, f"prompts.encoder={self.encoder!r}")


def _weights_error(key: str, weights: str, condition: str) -> BadInput:
    if weights:
        return BadInput(f"config.{key}: {weights!r} is not used with config.{condition}; leave it empty")
    made = "; the folder that `stepcot features import FEATURES.npz --root=DATA --store=FOLDER` makes"
    accepted = made if "imported" in condition else " (a folder, a file or a Hugging Face id)"
    return BadInput(f"config.{key} is required with config.{condition}{accepted}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """The feature store of frozen encoders."""

    store: bool
    folder: str
    patches: Literal["none", "float16", "float32"]
    batch_size: Whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherSettings:
    """The graph-attention teacher network."""

    width: Width
    num_layers: Layers
    num_heads: Width
    negative_slope: NotNegative
    attention_dropout: Share
    context_dropout: Share
    head_dropout: Share
    memory: bool
    write_back: bool
    text: bool

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise BadInput(
                f"config.teacher.num_heads: {self.num_heads} is not a divisor of config.teacher.width ({self.width})"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentSettings:
    """The chain student network."""

    width: Width
    dropout: Share


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselineSettings:
    """The two-layer perceptron on pooled embeddings, the plain network or a student alone, and its optimizer."""

    form: Literal["perceptron", "heads", "student"]
    hidden: Width
    steps: Literal["all", "last", "shuffled"]
    batch_size: Count
    epochs: Count
    learning_rate: Positive
    weight_decay: NotNegative
    schedule: Literal["cosine", "constant"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossSettings:
    """The loss and its weights."""

    temperature: Positive
    soft_label_scale: NotNegative
    channel_alignment_scale: NotNegative
    projection_width: Width
    normaliser: Literal["cka", "trace"]
    alignment_gradient: Literal["features", "projection"]
    train_teacher_projection: bool
    target_dropout: bool
    plain_scale: NotNegative
    class_weights: Literal["none", "inverse_frequency"]
    parts: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartSettings:
    """The weights that a run starts from."""

    checkpoint: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Epochs, optimizer and checkpoints."""

    batch_size: Count
    updates_per_epoch: Whole
    teacher_epochs: Whole
    teacher_job_epochs: Count
    joint_epochs: Whole
    teacher_learning_rate: Positive
    student_learning_rate: Positive
    schedule: Literal["constant", "cosine"]
    weight_decay: NotNegative
    adam_epsilon: Positive
    clip_norm: Positive
    plateau_patience: Count
    plateau_factor: PositiveShare
    plateau_stop: Count
    log_every: Count
    checkpoint_minutes: Positive
    compute_dtype: Literal["float32", "bfloat16"]
    given_answers: Literal["none", "random", "varied"]
    given_rate: Share
    given_noise: Share
    given_to: Literal["teacher", "both"]
    profile_updates: tuple[Count, ...]

    def __post_init__(self) -> None:
        updates = self.profile_updates
        if updates and (len(updates) != 2 or updates[0] > updates[1]):
            raise BadInput(f"config.training.profile_updates: {updates} is not (first, last), or () for none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggerSettings:
    """Loggers beside metrics.jsonl and TensorBoard."""

    names: tuple[Literal["wandb", "mlflow"], ...]
    mode: Literal["offline", "online"]
    project: str
    run: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelSettings:
    """How one update uses devices and memory; results change by rounding at most."""

    transform: Literal["pmap", "shard_map", "mesh"]
    num_devices: Whole
    model_devices: Count
    num_passes: Count
    gather_once: bool
    scan_layers: bool
    remat: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Evaluation, and the choice of the best weights."""

    batch_size: Count
    best: Literal["each", "mean"]
    num_resamples: Whole
    coverage: Annotated[float, msgspec.Meta(gt=0, le=0.999)]
    coverage_confidence: Annotated[float, msgspec.Meta(ge=0, le=0.999)]
    step_costs: tuple[Positive, ...]
    least_gain: Annotated[float, msgspec.Meta(ge=0, le=1)]
    gate_false_alarms: Annotated[float, msgspec.Meta(ge=0, le=0.5)]
    operating_point: Literal["youden", "sensitivity", "specificity", "cost"]
    operating_target: PositiveShare
    miss_cost: Positive


# The sections of the settings that policies read: records, network, fine-tuning, GRPO, rewards, self-check, stages.
#
# As above, types give the accepted values and `configs/base.py` documents every key with its unit.


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqaSettings:
    """The reasoning records of the jobs "sft" and "grpo"."""

    source: Literal["phantom", "folder", "given"]
    root: str
    layout: QuestionLayout
    box_size: tuple[Whole, Whole]  # (0, 0): the layout states the size of its boxes
    shared_pictures: Literal["keep", "drop"]
    val_share: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    levels: tuple[Whole, ...]
    level_forms: Annotated[tuple[Literal["constraints", "true"], ...], msgspec.Meta(min_length=1)]
    dialect: Literal["gemex", "gemex_plain", "lvkc", "lvkc_released", "medclm", "plain", "levels"]
    with_thinking: bool
    num_validated: Whole

    def __post_init__(self) -> None:
        if (self.source == "folder") != bool(self.root):
            raise BadInput(
                f"config.vqa.root: {self.root!r} does not fit config.vqa.source={self.source!r} (a folder or "
                "file with questions for 'folder', empty for 'phantom')"
            )
        if bool(self.levels) != (self.dialect == "levels") or (self.levels and not (self.root and self.with_thinking)):
            raise BadInput(
                f"config.vqa.levels: {list(self.levels)} with config.vqa.dialect={self.dialect!r}; levels, the dialect "
                "'levels', config.vqa.source='folder' and config.vqa.with_thinking=True go together"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """The vision-prefix decoder, or a Qwen2.5-VL (`weights`); its tokens, and where it starts."""

    start: str
    weights: str
    random: bool
    shrink: Literal[1, 2, 4, 8]
    low_rank: Whole
    low_rank_alpha: Positive
    low_rank_targets: str
    tokenizer: str
    num_merges: Tokens
    grid: Layers
    encoder_widths: Annotated[tuple[Width, ...], msgspec.Meta(min_length=1, max_length=16)]  # one a stage
    width: Width
    num_layers: Layers
    num_heads: Width
    num_kv_heads: Width
    head_width: Annotated[Width, msgspec.Meta(multiple_of=2)]
    mlp_width: Width
    longest_reply: Tokens

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise BadInput(
                f"config.policy.num_kv_heads: {self.num_kv_heads} is not a divisor of config.policy.num_heads "
                f"({self.num_heads})"
            )
        try:
            re.compile(self.low_rank_targets)
        except re.error as error:
            raise BadInput(
                f"config.policy.low_rank_targets: {self.low_rank_targets!r} is not a regular expression ({error})"
            ) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardsSettings(RewardSettings):
    """Rewards of a reply and the judge of open answers."""

    judge_url: str = ""
    judge_model: str = ""
    judge_cap: Whole = 0

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except BadInput as error:
            raise BadInput(f"config.{error}") from None
        if (self.open_answer == "judge") != bool(self.judge_url and self.judge_model):
            raise BadInput(
                "config.rewards.open_answer: 'judge' needs config.rewards.judge_url and config.rewards.judge_model, "
                f"which nothing else uses; got {self.open_answer!r}"
            )
