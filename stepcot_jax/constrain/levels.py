"""Levels and variants: which questions a dialogue asks, and which earlier answers it gives.

Level 0 asks for the diagnosis alone. Level k adds the first k steps of the chain. Each level is a dialogue of its own
(paper: Section 4.2 and Figure 3); the paper names neither the number of levels nor the prompts, so both are ours.

The diagnosis is a field of its own at every level, so that the same thing is measured at each of them. At the last
level the diagnosis is a step too, and both answers must agree.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.host.errors import BadInput

Variant: TypeAlias = Literal["constraints", "own", "true"]
"""`constraints`: every step up to the level is asked in one reply. `own` and `true`: the step of the level is asked,
and the answers to the steps before it are given: the model's own from the lower levels, or the true ones."""

VARIANTS: tuple[Variant, ...] = get_args(Variant)

DIAGNOSIS = "diagnosis"
"""Name of the field with the final diagnosis, which is the answer to the chain's last step."""

Key: TypeAlias = tuple[Variant, int]
"""Variant and level. Level 0 is the same in every variant and is measured once, as `constraints`."""


@dataclasses.dataclass(frozen=True)
class Dialogue:
    """One dialogue about one case.

    Attributes:
      variant: where earlier answers come from.
      level: number of steps that are constraints, 0 to the chain's.
      asked: positions of the steps that the reply must answer, before the diagnosis.
      given: position and label of each earlier answer that the prompt states.
    """

    variant: Variant
    level: int
    asked: tuple[int, ...]
    given: tuple[tuple[int, int], ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the reply's fields, in the order that the prompt requires."""
        return (*(name_step(position) for position in self.asked), DIAGNOSIS)


def name_step(position: int) -> str:
    """Return the name of a step's field.

    >>> name_step(0)
    'step_1'
    """
    return f"step_{position + 1}"


def position_of(field: str, num_steps: int) -> int:
    """Return the step that a field answers.

    >>> position_of("step_1", 7), position_of("diagnosis", 7)
    (0, 6)
    """
    return num_steps - 1 if field == DIAGNOSIS else int(field.removeprefix("step_")) - 1


def list_keys(variants: Sequence[Variant], levels: Sequence[int]) -> list[Key]:
    """Return every (variant, level) to measure; level 0 once and first.

    >>> list_keys(["own"], [0, 1, 2])
    [('constraints', 0), ('own', 1), ('own', 2)]
    """
    first: list[Key] = [("constraints", 0)]
    return first + [(variant, level) for variant in variants for level in levels if level > 0]


def choose_levels(text: str | None, num_steps: int) -> tuple[int, ...]:
    """Return the levels of a comma-separated list, level 0 included; None stands for all.

    >>> choose_levels("7,3", 7)
    (0, 3, 7)
    """
    if text is None:
        return tuple(range(num_steps + 1))
    entries = [entry.strip() for entry in text.split(",")]
    wrong = [entry for entry in entries if not (entry.isascii() and entry.isdecimal() and len(entry) < 4)]
    if wrong or max(map(int, entries)) > num_steps:
        raise BadInput(
            f"--levels: {text[:80]!r} is not a list of levels from 0 to {num_steps}, such as 0,3,{num_steps}"
        )
    return tuple(sorted({0, *map(int, entries)}))


def make_dialogue(key: Key, *, own: Mapping[int, int], truth: Sequence[int], chain: Chain) -> Dialogue:
    """Return the dialogue of a variant and level about one case.

    The true answer to the last step is never given: no level gives the step that it asks.

    Args:
      own: the model's readable answers to steps at lower levels of this variant, by position.
    """
    variant, level = key
    if not 0 <= level <= chain.num_steps:
        raise ValueError(f"level must be 0 to {chain.num_steps}; got {level}")
    if variant == "constraints" or not level:
        return Dialogue(variant, level, tuple(range(level)))
    earlier = range(level - 1)
    if variant == "own":
        given = [(position, own[position]) for position in earlier if position in own]
    else:
        given = [(position, int(truth[position])) for position in earlier if truth[position] != NOT_ANNOTATED]
    return Dialogue(variant, level, (level - 1,), tuple(given))
