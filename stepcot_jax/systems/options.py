"""Options of fine-tuning, GRPO, DPO, the self-check and the curriculum; `configs/base.py` documents every field.

Defaults are those of `configs/base.py` (a test compares them), except for the two that enable a part. This module does
not import jax, as settings import it.
"""

import dataclasses
from typing import Annotated, Literal

import msgspec

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.ranges import Count, NotNegative, Positive, PositiveShare, Share, Whole

EpochEnd = Literal["floor", "ceil"]

STAGED = ("lvkc", "lvkc_released")
"""Dialects whose replies run through MEDSAGE's stages."""

REFERENCE = "reference"
"""Name of the parameters of GRPO's frozen start."""

DPO = "dpo"
"""Name of DPO's phase, its optimizer and its best weights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SftOptions:
    """Supervised fine-tuning."""

    epochs: Whole = 8
    batch_size: Count = 16
    epoch_end: EpochEnd = "floor"
    pack_length: Whole = 256
    learning_rate: Positive = 0.002
    first_learning_rate: NotNegative = 0.0
    warmup_epochs: NotNegative = 0.5
    schedule: Literal["cosine", "constant"] = "cosine"
    weight_decay: NotNegative = 0.01
    reduction: Literal["tokens", "parts"] = "tokens"
    answer_weight: NotNegative = 1.0
    reasoning_weight: NotNegative = 1.0

    def __post_init__(self) -> None:
        if self.answer_weight == 0 == self.reasoning_weight:
            raise BadInput("config.sft.answer_weight: 0 with config.sft.reasoning_weight=0; one must be positive")
        if self.reduction == "parts" and self.pack_length:
            raise BadInput(
                f"config.sft.pack_length: {self.pack_length} must be 0 with config.sft.reduction='parts' (means of "
                "parts are of one question a row)"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrpoOptions:
    """Group-relative policy optimisation; choices that GEMeX-RMCoT leaves open are in docs/departures.md."""

    epochs: Whole = 4
    batch_size: Count = 32
    epoch_end: EpochEnd = "floor"
    updates_per_epoch: Whole = 0
    group_size: Annotated[int, msgspec.Meta(ge=2)] = 8
    num_updates: Count = 1
    learning_rate: Positive = 0.0005
    schedule: Literal["cosine", "constant"] = "constant"
    weight_decay: NotNegative = 0.0
    temperature: Positive = 1.0
    ratio: Literal["token", "sequence", "sequence_mean"] = "token"
    clip_low: Share = 0.2
    clip_high: NotNegative = 0.2
    dual_clip: NotNegative = 0.0
    beta: NotNegative = 0.001
    kl: Literal["k1", "k2", "k3"] = "k3"
    clamp_log_ratio: NotNegative = 0.0
    clamp_kl: NotNegative = 0.0
    length_norm: Literal["sequence_mean", "token_mean", "constant", "sequence_sum"] = "sequence_mean"
    kl_norm: Literal["length_norm", "sequence_sum"] = "length_norm"
    std_ddof: Literal[0, 1] = 1
    std_epsilon: NotNegative = 1e-06
    scale: Literal["group", "batch", "none"] = "group"
    mask_truncated: bool = False
    shuffle_rewards: bool = False
    stage_credit: Literal["none", "released"] = "none"

    def __post_init__(self) -> None:
        if self.dual_clip and self.dual_clip <= 1:
            raise BadInput(f"config.grpo.dual_clip: {self.dual_clip} is not above 1, or 0 for none")
        if self.stage_credit != "none" and self.shuffle_rewards:
            raise BadInput(
                "config.grpo.shuffle_rewards: must be False with config.grpo.stage_credit='released', which follows "
                "the true answers; got True"
            )
        if self.kl_norm == "sequence_sum" and self.length_norm in ("token_mean", "constant"):
            raise BadInput(
                f"config.grpo.kl_norm: 'sequence_sum' needs config.grpo.length_norm='sequence_mean' or 'sequence_sum'; "
                f"got {self.length_norm!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DpoOptions:
    """Direct preference optimisation on pairs of the start's replies (MEDSAGE's public code)."""

    epochs: Whole = 1
    batch_size: Count = 32
    epoch_end: EpochEnd = "floor"
    updates_per_epoch: Whole = 0
    group_size: Annotated[int, msgspec.Meta(ge=2)] = 6
    learning_rate: Positive = 5e-05
    schedule: Literal["cosine", "constant"] = "constant"
    weight_decay: NotNegative = 0.0
    temperature: Positive = 1.0
    beta: Positive = 0.1


def count_updates(options: SftOptions | GrpoOptions | DpoOptions, num_rows: int) -> int:
    """Return the updates of an epoch, at least one; batches go on over its end, so none is short."""
    if not isinstance(options, SftOptions) and options.updates_per_epoch:
        return options.updates_per_epoch
    number, rest = divmod(num_rows, options.batch_size)
    return max(number + (options.epoch_end == "ceil" and rest > 0), 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelfCheckOptions:
    """Retry after a wrong first attempt (MEDSAGE)."""

    enabled: bool = True
    alpha: NotNegative = 0.2
    norm: Literal["sum", "mean"] = "sum"
    context: Literal["check", "first"] = "check"
    first_attempt: Literal["zero", "outcome"] = "zero"
    sft_share: Share = 0.25
    chunk: Whole = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurriculumOptions:
    """Easy, medium and hard views in fine-tuning (MedCLM); the constants of "adaptive" are those of its public code."""

    schedule: Literal["none", "epochs", "adaptive", "mixed"] = "epochs"
    shares: tuple[Share, Share, Share] = (0.4, 0.4, 0.2)
    easy_epochs: Whole = 4
    ramp_epochs: Count = 10
    hard_epoch: Whole = 19
    gap_centre: NotNegative = 0.5
    gap_width: Positive = 0.1
    decay: Share = 0.1
    first_loss: NotNegative = 0.001
    first_overall: NotNegative = 0.0001
    least_loss: Positive = 1e-08
    plateau_values: Count = 5
    plateau_tolerance: NotNegative = 0.01
    rise: NotNegative = 0.05
    hard_gap: NotNegative = 0.6
    hard_increase: NotNegative = 0.05
    most_hard: Share = 0.3
    hard_factor: PositiveShare = 0.9

    def __post_init__(self) -> None:
        if abs(sum(self.shares) - 1) > 1e-6:
            raise BadInput(f"config.curriculum.shares: {self.shares} is not three shares that add up to 1")
