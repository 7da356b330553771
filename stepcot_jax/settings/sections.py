"""The sections of the settings, a frozen dataclass each; `configs/base.py` says what each key is and in which unit.

Every field says what it accepts, and every section refuses what does not go together in it.
"""

import dataclasses
from typing import Literal

from stepcot_jax.host.errors import BadInput
from stepcot_jax.settings.fields import number, seed, share


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where cases come from and what happens to bad ones."""

    source: Literal["phantom", "folder", "tfds"]
    root: str
    layout: Literal["auto", "published", "chestxray8", "padchest_gr", "iu_xray", "csv"]
    single_label: bool
    labels_from: Literal["auto", "boxes", "entries"]
    step_names: tuple[str, ...]
    on_bad_record: Literal["stop", "skip"]
    check_images: Literal["ahead", "on_use"]
    split_fractions: tuple[float, ...] = number(above=0, most=1)
    split_seed: int = seed()
    near_duplicate_radius: int = number(least=0, most=16)
    max_megapixels: float = number(above=0)
    cache_megabytes: float = number(least=0)
    num_threads: int = number(least=1)
    num_workers: int = number(least=0)
    origins: tuple[str, ...]
    sampling: Literal["uniform", "inverse_frequency"]
    augment: Literal["none", "light"]

    def __post_init__(self) -> None:
        names = [" ".join(name.split()) for name in self.step_names]
        if not names or "" in names or len(set(names)) < len(names):
            raise BadInput(
                f"config.data.step_names: found {self.step_names}, accepted are names that differ and are not empty"
            )
        if self.source != "phantom" and not self.root:
            raise BadInput(
                f"config.data.root: found nothing, accepted is a folder with config.data.source={self.source!r}"
            )
        if self.check_images == "on_use" and self.on_bad_record == "skip":
            raise BadInput(
                "config.data.check_images: found 'on_use' with config.data.on_bad_record='skip', accepted is 'ahead' "
                "with it, or 'stop': an image that turns out bad in the middle of a run cannot be left out of it"
            )
        if len(self.split_fractions) != 3 or abs(sum(self.split_fractions) - 1) > 1e-6:
            raise BadInput(
                f"config.data.split_fractions: found {self.split_fractions}, accepted are three shares that add up to 1"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhantomSettings:
    """The phantom that is drawn when no folder is given."""

    num_cases: int = number(least=30)
    image_size: int = number(least=32, most=2048)
    prevalence: Literal["published", "flat"]
    seed: int = seed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageEncoderSettings:
    """What turns images into features, and how it wants them."""

    name: Literal["resnet_small", "resnet18", "pretrained", "imported"]
    weights: str
    dtype: Literal["float32", "bfloat16"]
    image_size: int = number(least=32, most=1024)
    fit: Literal["crop", "pad", "stretch"]
    mean: tuple[float, ...]
    std: tuple[float, ...] = number(above=0)

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            if len(getattr(self, name)) != 3:
                raise BadInput(f"config.image_encoder.{name}: found {getattr(self, name)}, accepted are 3 numbers")
        if self.is_frozen != bool(self.weights):
            accepted = "a folder, a file or a Hugging Face id" if self.is_frozen else "nothing"
            raise BadInput(
                f"config.image_encoder.weights: found {self.weights!r}, accepted is {accepted} when "
                f"config.image_encoder.name={self.name!r}"
            )

    @property
    def is_frozen(self) -> bool:
        """Whether the features are made once, by weights that training does not change."""
        return self.name in ("pretrained", "imported")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptSettings:
    """The text that the teacher reads at each step, and what turns it into vectors."""

    template: str
    encoder: Literal["hashed", "pretrained", "imported"]
    weights: str
    pooling: Literal["cls", "mean"]
    max_tokens: int = number(least=8, most=512)
    width: int = number(least=1)

    def __post_init__(self) -> None:
        if (self.encoder == "pretrained") != bool(self.weights):
            accepted = "a folder or a Hugging Face id" if self.encoder == "pretrained" else "nothing"
            raise BadInput(
                f"config.prompts.weights: found {self.weights!r}, accepted is {accepted} when "
                f"config.prompts.encoder={self.encoder!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """Where the features of frozen encoders are kept."""

    store: bool
    folder: str
    patches: Literal["none", "float16", "float32"]
    batch_size: int = number(least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherSettings:
    """The graph-attention teacher."""

    width: int = number(least=1)
    num_layers: int = number(least=1)
    num_heads: int = number(least=1)
    negative_slope: float = number(least=0)
    attention_dropout: float = share()
    context_dropout: float = share()
    head_dropout: float = share()
    memory: bool
    write_back: bool
    text: bool

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise BadInput(
                f"config.teacher.num_heads: found {self.num_heads}, accepted are divisors of "
                f"config.teacher.width ({self.width})"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentSettings:
    """The chain student."""

    width: int = number(least=1)
    dropout: float = share()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselineSettings:
    """The two-layer perceptron on pooled embeddings, and how it is trained."""

    hidden: int = number(least=1)
    steps: Literal["all", "last"]
    batch_size: int = number(least=1)
    epochs: int = number(least=1)
    learning_rate: float = number(above=0)
    weight_decay: float = number(least=0)
    schedule: Literal["cosine", "constant"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossSettings:
    """What is minimised."""

    temperature: float = number(above=0)
    soft_label_scale: float = number(least=0)
    channel_alignment_scale: float = number(least=0)
    projection_width: int = number(least=1)
    normaliser: Literal["cka", "trace"]
    alignment_gradient: Literal["features", "projection"]
    train_teacher_projection: bool
    target_dropout: bool
    class_weights: Literal["none", "inverse_frequency"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How it is minimised."""

    batch_size: int = number(least=1)
    teacher_epochs: int = number(least=0)
    teacher_job_epochs: int = number(least=1)
    joint_epochs: int = number(least=0)
    teacher_learning_rate: float = number(above=0)
    student_learning_rate: float = number(above=0)
    weight_decay: float = number(least=0)
    adam_epsilon: float = number(above=0)
    clip_norm: float = number(above=0)
    plateau_patience: int = number(least=1)
    plateau_factor: float = number(above=0, most=1)
    plateau_stop: int = number(least=1)
    log_every: int = number(least=1)
    checkpoint_minutes: float = number(above=0)
    compute_dtype: Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelSettings:
    """How a training step is spread over devices and memory; it changes results by no more than rounding."""

    transform: Literal["pmap", "shard_map"]
    num_devices: int = number(least=0)
    num_passes: int = number(least=1)
    remat: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How it is measured, and which weights are kept."""

    batch_size: int = number(least=1)
    best: Literal["each", "mean"]
    num_resamples: int = number(least=0)
    coverage: float = number(above=0, most=0.999)
    decoding: Literal["independent", "consistent"]
