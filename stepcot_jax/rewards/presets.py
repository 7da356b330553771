"""The weighted sum of the package's rewards, with the options of `RewardSettings`, and the systems' own `PRESETS`."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.claims import stage_consistency
from stepcot_jax.reasoning.replies import Judged, Reply
from stepcot_jax.record import Record
from stepcot_jax.rewards.answers import answer_reward, suit, why_unread
from stepcot_jax.rewards.boxes import grounding_reward, localisation
from stepcot_jax.rewards.functions import FUNCTIONS, RewardFunction, apply_functions, check_function
from stepcot_jax.rewards.options import PRESETS, RewardSettings

__all__ = ["PRESETS", "Rewards", "reward"]

Rate = Callable[[Iterable[tuple[Record, Reply]]], Sequence[Judged | None]]
"""A judge's scores of open answers, one for each reply; None where none is needed or usable."""


class Rewards(dict[str, float]):
    """Rewards of a reply by name, with their weighted sum as "total"."""

    @property
    def total(self) -> float:
        """The weighted sum; NaN for an unscored reply."""
        return self["total"]


def reward(reply: Reply, record: Record, settings: RewardSettings, *, judged: Judged | None = None) -> Rewards:
    """Return the rewards of a reply by name, unweighted, and their weighted sum as "total".

    An ill-formed reply earns nothing, unless `settings.ill_formed` is "parts". A NaN total marks an unscored reply,
    which is left out of its group.

    Args:
      reply: the reply.
      record: its question, answer and boxes.
      settings: weights and definitions, such as `PRESETS["gemex"]`.
      judged: scores of the reply's open answer.

    >>> from stepcot_jax.reasoning.dialects import read_reply
    >>> from stepcot_jax.record import Box
    >>> record = Record(id="1", image="1.png", image_size=(64, 64), patient="p", kind="closed", answer="Yes",
    ...                    question="Is the heart enlarged?", references=(Box("heart", (9, 9, 40, 40)),))
    >>> reply = read_reply("<answer> Yes <reason> It is wide. <location> [[9, 9, 40, 38]]", "gemex_plain")
    >>> reward(reply, record, PRESETS["gemex"])
    {'answer': 1.0, 'grounding': 1.0, 'well_formed': 1.0, 'total': 2.0}
    """
    named = make_functions(settings, rate=lambda replies: [judged for _ in replies])
    return Rewards((name, value) for name, (value,) in apply_settings(settings, named, [reply], [record]).items())


def make_functions(settings: RewardSettings, *, rate: Rate | None = None) -> dict[str, tuple[RewardFunction, float]]:
    """Return the function and weight of each reward that the settings name, with their options.

    Args:
      settings: weights and definitions.
      rate: scores open answers with `settings.open_answer="judge"`; called once for a batch of replies, also for none.

    Raises:
      BadInput: a name that is not in `functions.FUNCTIONS`.
    """

    def answer(replies: Sequence[Reply], records: Sequence[Record]) -> list[float]:
        judged = [None] * len(replies) if rate is None else rate(zip(records, replies, strict=True))
        return [
            answer_reward(
                reply,
                record,
                multi_choice=settings.multi_choice,
                open_answer=settings.open_answer,
                choice_reading=settings.choice_reading,
                ill_formed=settings.ill_formed,
                judged=scores,
            )
            for reply, record, scores in zip(replies, records, judged, strict=True)
        ]

    def grounding(replies: Sequence[Reply], records: Sequence[Record]) -> list[float]:
        return [_grounding(reply, record, settings) for reply, record in zip(replies, records, strict=True)]

    functions = FUNCTIONS | {"answer": answer, "grounding": grounding}
    if settings.ill_formed == "parts":
        functions["consistency"] = lambda replies, _: [stage_consistency(reply) for reply in replies]
    if unknown := [name for name in settings.weights if name not in functions]:
        raise BadInput(f"config.rewards.functions: {unknown[0]!r} is not one of {', '.join(functions)}")
    named = {name: (functions[name], weight) for name, weight in settings.weights.items()}
    for name, (function, _) in named.items():
        check_function(f"config.rewards.functions: {name}", function)
    return named


def apply_settings(
    settings: RewardSettings,
    named: Mapping[str, tuple[RewardFunction, float]],
    replies: Sequence[Reply],
    records: Sequence[Record],
) -> dict[str, list[float]]:
    """Return what `apply_functions` returns, with totals of 0 where the gate of the settings is closed."""
    replies = [suit(reply, record) for reply, record in zip(replies, records, strict=True)]
    rewards = apply_functions(named, replies, records)
    if settings.gate == "released":
        passed = [_passes_gate(reply, record) for reply, record in zip(replies, records, strict=True)]
        rewards["total"] = [total if passes else 0.0 for total, passes in zip(rewards["total"], passed, strict=True)]
    return rewards


def _grounding(reply: Reply, record: Record, settings: RewardSettings) -> float:
    by_threshold = functools.partial(grounding_reward, least_iou=settings.least_iou)
    score = by_threshold if settings.grounding == "threshold" else localisation
    return score(
        reply, record, matching=settings.matching, empty_boxes=settings.empty_boxes, ill_formed=settings.ill_formed
    )


def _passes_gate(reply: Reply, record: Record) -> bool:
    """Return whether a reply is well formed, has a conclusion, and has as many boxes as the record, if that has any."""
    has_conclusion = bool(reply.answer and reply.stages.get("conclusion", reply.answer))
    are_counts_right = why_unread(reply, record)[1] is None or len(reply.references or ()) == len(record.references)
    return reply.is_well_formed and has_conclusion and are_counts_right
