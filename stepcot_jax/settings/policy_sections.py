"""The sections of the settings that policies read: records, network, fine-tuning, GRPO, rewards, self-check, stages.

As in `sections`, types give the accepted values and `configs/base.py` documents every key with its unit.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from stepcot_jax.host.errors import BadInput
from stepcot_jax.settings.configs import load_config
from stepcot_jax.settings.fields import Count, NotNegative, Positive, PositiveShare, Share, Whole

_EvenCount = Annotated[int, msgspec.Meta(ge=2, multiple_of=2)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqaSettings:
    """The reasoning records of the jobs "sft" and "grpo"."""

    source: Literal["phantom", "folder"]
    root: str
    dialect: Literal["gemex", "gemex_plain", "lvkc", "lvkc_released", "medclm"]
    with_thinking: bool
    num_validated: Whole

    def __post_init__(self) -> None:
        if (self.source == "folder") != bool(self.root):
            raise BadInput(
                f"config.vqa.root: {self.root!r} does not fit config.vqa.source={self.source!r} (a folder with "
                "records.jsonl for 'folder', empty for 'phantom')"
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
    num_merges: Whole
    grid: Count
    encoder_widths: tuple[Count, ...]
    width: Count
    num_layers: Count
    num_heads: Count
    num_kv_heads: Count
    head_width: _EvenCount
    mlp_width: Count
    longest_reply: Whole

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise BadInput(
                f"config.policy.num_kv_heads: {self.num_kv_heads} is not a divisor of config.policy.num_heads "
                f"({self.num_heads})"
            )
        if not self.encoder_widths:
            raise BadInput("config.policy.encoder_widths: () is not a tuple of channels, one for each stage")
        if not self.weights:
            for name, unused in (("random", False), ("shrink", 1), ("low_rank", 0)):
                if (found := getattr(self, name)) != unused:
                    raise BadInput(f"config.policy.{name}: {found!r} needs config.policy.weights (a Qwen2.5-VL)")
        if self.shrink > 1 and not self.random:
            raise BadInput(
                f"config.policy.shrink: {self.shrink} needs config.policy.random=True (weights of a checkpoint have "
                "its size)"
            )
        try:
            re.compile(self.low_rank_targets)
        except re.error as error:
            raise BadInput(
                f"config.policy.low_rank_targets: {self.low_rank_targets!r} is not a regular expression ({error})"
            ) from None
        defaults = load_config("base").policy
        for name, reason in list_unread(vars(self)).items():
            if (found := getattr(self, name)) != defaults[name]:
                raise BadInput(f"config.policy.{name}: {found!r} {reason}")


_OF_THE_SMALL_DECODER = (
    "tokenizer", "grid", "encoder_widths", "width", "num_layers", "num_heads", "num_kv_heads", "head_width",
    "mlp_width",
)  # fmt: skip


def list_unread(policy: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of a policy's settings that nothing reads, each with the reason.

    A new run must leave them at their defaults; of runs of earlier versions `stored_settings.read_settings` drops them.
    """
    unread: dict[str, str] = {}
    if policy.get("weights"):
        names = _OF_THE_SMALL_DECODER if policy.get("random") else (*_OF_THE_SMALL_DECODER, "num_merges")
        others = ", ".join(_OF_THE_SMALL_DECODER)
        reason = "has no effect with config.policy.weights, which brings its own network and tokenizer"
        unread |= dict.fromkeys(names, f"{reason}; leave out {others}")
    if not policy.get("low_rank"):
        of_low_rank = ("low_rank_alpha", "low_rank_targets")
        unread |= dict.fromkeys(of_low_rank, "needs config.policy.low_rank above 0 (LoRA's rank)")
    return unread


@dataclasses.dataclass(frozen=True, kw_only=True)
class SftSettings:
    """Supervised fine-tuning."""

    epochs: Whole
    batch_size: Count
    pack_length: Whole
    learning_rate: Positive
    first_learning_rate: NotNegative
    warmup_epochs: NotNegative
    schedule: Literal["cosine", "constant"]
    weight_decay: NotNegative
    reduction: Literal["tokens", "parts"]
    answer_weight: NotNegative
    reasoning_weight: NotNegative

    def __post_init__(self) -> None:
        if self.answer_weight == 0 == self.reasoning_weight:
            raise BadInput("config.sft.answer_weight: 0 with config.sft.reasoning_weight=0; one must be positive")
        if self.reduction == "parts" and self.pack_length:
            raise BadInput(
                f"config.sft.pack_length: {self.pack_length} must be 0 with config.sft.reduction='parts' (means of "
                "parts are of one question a row)"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrpoSettings:
    """Group-relative policy optimisation; choices that GEMeX-RMCoT leaves open are in docs/departures.md."""

    epochs: Whole
    batch_size: Count
    updates_per_epoch: Whole
    group_size: Annotated[int, msgspec.Meta(ge=2)]
    num_updates: Count
    learning_rate: Positive
    schedule: Literal["cosine", "constant"]
    weight_decay: NotNegative
    temperature: Positive
    ratio: Literal["token", "sequence", "sequence_mean"]
    clip_low: Share
    clip_high: NotNegative
    dual_clip: NotNegative
    beta: NotNegative
    kl: Literal["k1", "k2", "k3"]
    clamp_log_ratio: NotNegative
    clamp_kl: NotNegative
    length_norm: Literal["sequence_mean", "token_mean", "constant", "sequence_sum"]
    std_ddof: Literal[0, 1]
    std_epsilon: NotNegative
    scale: Literal["group", "batch", "none"]
    mask_truncated: bool
    shuffle_rewards: bool

    def __post_init__(self) -> None:
        if self.dual_clip and self.dual_clip <= 1:
            raise BadInput(f"config.grpo.dual_clip: {self.dual_clip} is not above 1, or 0 for none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardsSettings:
    """Rewards of a reply, see `rewards.presets.RewardSettings`; and of a chain, for the job "chain_grpo"."""

    answer_weight: NotNegative
    grounding_weight: NotNegative
    format_weight: NotNegative
    consistency_weight: NotNegative
    grounding: Literal["threshold", "mean_iou"]
    least_iou: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    matching: Literal["optimal", "ordered"]
    empty_boxes: Literal["one", "zero"]
    multi_choice: Literal["exact", "jaccard"]
    open_answer: Literal["judge", "exact", "equal", "token_f1"]
    choice_reading: Literal["plain", "strict"]
    ill_formed: Literal["nothing", "parts"]
    gate: Literal["none", "released"]
    judge_url: str
    judge_model: str
    judge_cap: Whole
    diagnosis_weight: NotNegative
    steps_weight: NotNegative
    chain_weight: NotNegative

    def __post_init__(self) -> None:
        if (self.open_answer == "judge") != bool(self.judge_url and self.judge_model):
            raise BadInput(
                "config.rewards.open_answer: 'judge' needs config.rewards.judge_url and config.rewards.judge_model, "
                f"which nothing else uses; got {self.open_answer!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelfCheckSettings:
    """Retry after a wrong first attempt (MEDSAGE)."""

    enabled: bool
    alpha: NotNegative
    norm: Literal["sum", "mean"]
    context: Literal["check", "first"]
    first_attempt: Literal["zero", "outcome"]
    sft_share: Share


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurriculumSettings:
    """Easy, medium and hard views in fine-tuning (MedCLM); the constants of "adaptive" are those of its public code."""

    schedule: Literal["none", "epochs", "adaptive", "mixed"]
    shares: tuple[Share, ...]
    easy_epochs: Whole
    ramp_epochs: Count
    hard_epoch: Whole
    gap_centre: NotNegative
    gap_width: Positive
    decay: Share
    first_loss: NotNegative
    first_overall: NotNegative
    least_loss: Positive
    plateau_values: Count
    plateau_tolerance: NotNegative
    rise: NotNegative
    hard_gap: NotNegative
    hard_increase: NotNegative
    most_hard: Share
    hard_factor: PositiveShare

    def __post_init__(self) -> None:
        if len(self.shares) != 3 or abs(sum(self.shares) - 1) > 1e-6:
            raise BadInput(f"config.curriculum.shares: {self.shares} is not three shares that add up to 1")
