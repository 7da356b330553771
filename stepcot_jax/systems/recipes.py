"""Recipes by which `fit` trains a policy: the policy, fine-tuning, GRPO. This module does not import jax.

A policy's tokens and lengths come from its records, so a run builds its system after loading them:
`run/policy_task.py` makes the same system from a recipe as from a config.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeGuard, TypeVar

import msgspec

from stepcot_jax.host.errors import BadInput
from stepcot_jax.rewards.functions import RewardFunction, Weighted, name_functions
from stepcot_jax.systems.options import CurriculumOptions, GrpoOptions, SelfCheckOptions, SftOptions

Dialect = Literal["gemex", "gemex_plain", "lvkc", "lvkc_released", "medclm", "plain"]
Options = TypeVar("Options")


@dataclasses.dataclass(frozen=True)
class Policy:
    """A policy before its training, made by `small` or `qwen`.

    Attributes:
      dialect: format of its prompts and replies.
      with_thinking: whether replies have reasoning before the answer.
      network: settings of `config.policy` by name; others keep their defaults.

    >>> Policy.small(dialect="gemex", width=32).network
    {'width': 32}
    """

    dialect: Dialect
    with_thinking: bool
    network: Mapping[str, Any]

    @classmethod
    def small(cls, *, dialect: Dialect = "gemex", with_thinking: bool = True, **network: Any) -> "Policy":
        """Return a decoder of a few layers with its own image encoder.

        Args:
          **network: `width`, `num_layers`, `num_heads` and other settings of `config.policy`.
        """
        if network.get("weights"):
            raise BadInput("Policy.small: weights: of a Qwen2.5-VL; use Policy.qwen")
        return cls(dialect, with_thinking, network)

    @classmethod
    def qwen(
        cls, weights: str, *, dialect: Dialect = "gemex", with_thinking: bool = True, low_rank: int = 0, **network: Any
    ) -> "Policy":
        """Return a Qwen2.5-VL.

        Args:
          weights: folder of a checkpoint, or its name on the Hugging Face hub.
          low_rank: rank of LoRA; 0 trains all weights.
          **network: other settings of `config.policy`, such as `longest_reply`.
        """
        return cls(dialect, with_thinking, {"weights": weights, "low_rank": low_rank, **network})


class SFT:
    """Supervised fine-tuning of a policy.

    Args:
      curriculum: easy, medium and hard views; None for none.
      **options: fields of `systems.options.SftOptions`, such as `epochs=4`.

    Raises:
      BadInput: an option is unknown or out of its range.
    """

    section = "sft"

    def __init__(self, policy: Policy, *, curriculum: CurriculumOptions | None = None, **options: Any) -> None:
        self.policy, self.curriculum = policy, curriculum
        if curriculum is not None:
            options = {"pack_length": 0, **options}
        self.options = _make(SftOptions, options, "SFT")


class GRPO:
    """Group-relative policy optimisation of a policy, from the weights of `fit(..., start=...)`.

    Args:
      rewards: functions (replies, records) -> one number each, or pairs of function and weight; None for the presets of
        `config.rewards`.
      self_check: a second attempt after a wrong first one; None for none.
      **options: fields of `systems.options.GrpoOptions`, such as `group_size=8`.

    Raises:
      BadInput: an option is unknown or out of its range, or a reward is not a function.
    """

    section = "grpo"

    def __init__(
        self,
        policy: Policy,
        *,
        rewards: Sequence[Weighted] | None = None,
        self_check: SelfCheckOptions | None = None,
        **options: Any,
    ) -> None:
        self.policy, self.self_check = policy, self_check
        self.rewards: dict[str, tuple[RewardFunction, float]] = {} if rewards is None else name_functions(rewards)
        if self_check is not None and self.rewards and "answer" not in self.rewards:
            raise BadInput("GRPO: self_check tries wrong answers again; rewards needs sc.rewards.answer")
        self.options = _make(GrpoOptions, options, "GRPO")


def is_recipe(system: Any) -> TypeGuard[SFT | GRPO]:
    """Return whether a system is a recipe for a policy."""
    return isinstance(system, SFT | GRPO)


def _make(cls: type[Options], options: Mapping[str, Any], name: str) -> Options:
    unknown = sorted(options.keys() - _defaults(cls).keys())
    if unknown:
        raise BadInput(f"{name}: {unknown[0]!r} is not one of {', '.join(_defaults(cls))}")
    try:
        return msgspec.convert({**_defaults(cls), **options}, cls, strict=True)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, BadInput):
            raise error.__cause__ from None
        raise BadInput(f"{name}: {error}") from None


def _defaults(cls: Any) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(cls)}
