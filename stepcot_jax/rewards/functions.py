"""Rewards as functions of replies and records: for `sc.GRPO(policy, rewards=[...])` and `config.rewards.functions`."""

import functools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.extras import find_misfit
from stepcot_jax.host.text import one_line
from stepcot_jax.reasoning.claims import stage_consistency
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import Record
from stepcot_jax.rewards.answers import answer_reward, format_reward, suit
from stepcot_jax.rewards.boxes import grounding_reward

RewardFunction = Callable[[Sequence[Reply], Sequence[Record]], Sequence[float]]
"""(replies, records) -> one number each; NaN for a reply that it cannot score."""

Weighted = RewardFunction | tuple[RewardFunction, float]

_FOREIGN = (
    "prompt prompts prompt_ids query queries completion completions completion_ids solution solutions solution_str "
    "solution_strs data data_source data_sources ground_truth ground_truths extra_info reward_input reward_inputs "
    "predict_str inputs outputs samples labels trainer_state return_dict"
)
"""Parameters of reward functions of TRL, verl, EasyR1 and OpenRLHF, which mean something else than ours."""


def answer(replies: Sequence[Reply], records: Sequence[Record]) -> list[float]:
    """Return 1 for each reply whose answer is right, else 0 (`answers.answer_reward`)."""
    return [answer_reward(reply, record) for reply, record in zip(replies, records, strict=True)]


def grounding(replies: Sequence[Reply], records: Sequence[Record]) -> list[float]:
    """Return 1 for each reply whose boxes fit those of its record, else 0 (`boxes.grounding_reward`)."""
    return [grounding_reward(reply, record) for reply, record in zip(replies, records, strict=True)]


def well_formed(replies: Sequence[Reply], records: Sequence[Record]) -> list[float]:
    """Return 1 for each reply that keeps its dialect's grammar, else 0."""
    return [format_reward(reply, record) for reply, record in zip(replies, records, strict=True)]


def consistency(replies: Sequence[Reply], records: Sequence[Record]) -> list[float]:
    """Return each reply's share of stage facts that agree with each other; 0 if ill-formed, NaN without such facts."""
    return [
        stage_consistency(reply) if suit(reply, record).is_well_formed else 0.0
        for reply, record in zip(replies, records, strict=True)
    ]


FUNCTIONS: dict[str, RewardFunction] = {
    "answer": answer,
    "grounding": grounding,
    "well_formed": well_formed,
    "consistency": consistency,
}
"""The rewards of the package by name, for `config.rewards.functions`; a contributed one is added here."""


def name_functions(rewards: Sequence[Weighted]) -> dict[str, tuple[RewardFunction, float]]:
    """Return functions and weights by the functions' names.

    Args:
      rewards: functions, of weight 1, and pairs of function and weight.

    >>> name_functions([answer, (well_formed, 0.1)])["well_formed"][1]
    0.1
    """
    named: dict[str, tuple[RewardFunction, float]] = {}
    if not isinstance(rewards, Sequence):
        raise BadInput(f"rewards: {rewards!r:.80} is no list of functions, such as [sc.rewards.answer]")
    for position, reward in enumerate(rewards):
        function, weight = reward if isinstance(reward, tuple) and len(reward) == 2 else (reward, 1.0)
        inner = function.func if isinstance(function, functools.partial) else function
        name = getattr(inner, "__name__", type(inner).__name__ if callable(inner) else "")
        if not callable(function) or not name.isidentifier() or name in (*named, "total"):
            raise BadInput(f"rewards[{position}]: {name or function!r} is not a function with a name of its own")
        check_function(f"rewards[{position}]: {name}", function)
        if not isinstance(weight, numbers.Real) or not 0 <= weight < float("inf"):
            raise BadInput(f"rewards[{position}]: the weight of {name} is {weight!r}; expected a finite number >= 0")
        named[name] = function, float(weight)
    if not any(weight for _, weight in named.values()):
        raise BadInput("rewards: no function has a weight above 0")
    return named


def check_function(named: str, function: RewardFunction) -> None:
    """Refuse what does not take replies and records, before the first call."""
    if misfit := find_misfit(function, ("replies", "records"), foreign=_FOREIGN.split()):
        raise BadInput(f"{named} {misfit}; expected (replies, records) -> a number for each reply")


def apply_functions(
    named: Mapping[str, tuple[RewardFunction, float]], replies: Sequence[Reply], records: Sequence[Record]
) -> dict[str, list[float]]:
    """Return each function's rewards by its name, and their weighted sum as "total"; lists of shape [reply].

    Args:
      named: function and weight by name; a function of weight 0 is reported and leaves the total alone.
      replies: one for each record.
      records: what `replies` answer, in their order.

    Raises:
      BadInput: a function fails, or does not return a finite number or NaN for each reply.
    """
    parts: dict[str, list[float]] = {}
    for name, (function, _) in named.items():
        try:
            returned = function(replies, records)
        except (RunStopped, MemoryError):
            raise
        except Exception as error:
            raise BadInput(f"rewards: {name} failed with {type(error).__name__}: {one_line(error)}") from error
        parts[name] = read_numbers(f"rewards: {name}", returned, number=len(replies)).tolist()
    weighted = [[weight * value for value in parts[name]] for name, (_, weight) in named.items() if weight]
    return {**parts, "total": list(map(math.fsum, zip(*weighted, strict=True)))}


def read_numbers(name: str, returned: Any, *, number: int) -> npt.NDArray[np.float64]:
    """Return what a function returned as finite numbers or NaN, one for each reply; texts and None are none."""
    try:
        values = np.asarray(returned)
    except (TypeError, ValueError):  # lists of several lengths, tensors of another device
        values = np.empty((), object)
    if not np.can_cast(values.dtype, np.float64, "same_kind"):
        found = f"{returned!r:.80}"
    elif values.shape != (number,):
        found = f"shape {list(values.shape)}"
    elif (np.abs(values := values.astype(np.float64)) > np.finfo(np.float32).max).any():
        found = "infinity"
    else:
        return values
    raise BadInput(f"{name} returned {found}; expected a number for each of {number} replies")
