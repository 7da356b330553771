"""Rewards as plain functions of replies and their records, for `sc.GRPO(policy, rewards=[...])`."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import Record
from stepcot_jax.rewards.answers import answer_reward, format_reward
from stepcot_jax.rewards.boxes import grounding_reward

RewardFunction = Callable[[Sequence[Reply], Sequence[Record]], Sequence[float]]
"""(replies, records) -> one number each; NaN for a reply that it cannot score."""

Weighted = RewardFunction | tuple[RewardFunction, float]


def answer(replies: Sequence[Reply], records: Sequence[Record]) -> list[float]:
    """Return 1 for each reply whose answer is right, else 0 (`answers.answer_reward`)."""
    return [answer_reward(reply, record) for reply, record in zip(replies, records, strict=True)]


def grounding(replies: Sequence[Reply], records: Sequence[Record]) -> list[float]:
    """Return 1 for each reply whose boxes fit those of its record, else 0 (`boxes.grounding_reward`)."""
    return [grounding_reward(reply, record) for reply, record in zip(replies, records, strict=True)]


def well_formed(replies: Sequence[Reply], records: Sequence[Record]) -> list[float]:
    """Return 1 for each reply that keeps its dialect's grammar, else 0."""
    return [format_reward(reply, record) for reply, record in zip(replies, records, strict=True)]


def name_functions(rewards: Sequence[Weighted]) -> dict[str, tuple[RewardFunction, float]]:
    """Return functions and weights by the functions' names.

    Args:
      rewards: functions, of weight 1, and pairs of function and weight.

    >>> name_functions([answer, (well_formed, 0.1)])["well_formed"][1]
    0.1
    """
    named: dict[str, tuple[RewardFunction, float]] = {}
    for position, reward in enumerate(rewards):
        function, weight = reward if isinstance(reward, tuple) else (reward, 1.0)
        name = getattr(function, "__name__", "")
        if not callable(function) or not name.isidentifier() or name in (*named, "total"):
            raise BadInput(f"rewards[{position}]: {name or function!r} is not a function with a name of its own")
        if not 0 <= weight < float("inf"):
            raise BadInput(f"rewards[{position}]: the weight of {name} is {weight!r}; expected a finite number >= 0")
        named[name] = function, float(weight)
    if not any(weight for _, weight in named.values()):
        raise BadInput("rewards: no function has a weight above 0")
    return named


def apply_functions(
    named: Mapping[str, tuple[RewardFunction, float]], replies: Sequence[Reply], records: Sequence[Record]
) -> dict[str, list[float]]:
    """Return each function's rewards by its name, and their weighted sum as "total"; lists of shape [reply].

    Args:
      named: function and weight by name; a function of weight 0 is reported and leaves the total alone.
      replies: one for each record.
      records: what `replies` answer, in their order.

    Raises:
      BadInput: a function returns another number of rewards than there are replies, or infinity.
    """
    parts: dict[str, list[float]] = {}
    for name, (function, _) in named.items():
        values = np.asarray(function(replies, records), np.float64)
        if values.shape != (len(replies),) or np.isinf(values).any():
            returned = "infinity" if values.shape == (len(replies),) else f"shape {list(values.shape)}"
            raise BadInput(f"rewards: {name} returned {returned}; expected a number for each of {len(replies)} replies")
        parts[name] = values.tolist()
    weighted = [(weight, parts[name]) for name, (_, weight) in named.items() if weight]
    total = np.sum([weight * np.asarray(values) for weight, values in weighted], axis=0)
    return {**parts, "total": total.tolist()}
