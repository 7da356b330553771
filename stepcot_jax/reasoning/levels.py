"""Levels: which steps a dialogue asks, which earlier answers it gives, and the reply of dialect "levels".

Level 0 asks for the diagnosis alone. Level k adds the first k steps of the chain. Each level is a dialogue of its own
(paper: Section 4.2 and Figure 3); the paper names neither the number of levels nor the prompts, so both are ours.

The diagnosis is a separate field at every level, so that all levels measure the same. At the last level the diagnosis
is a step too, and both answers must agree. `stepcot constrain` asks in these levels, and `config.vqa.levels` trains on
them.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import msgspec

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import Record

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
    """One dialogue about one case."""

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


def make_dialogue(key: Key, *, answers: Mapping[int, int], truth: Sequence[int]) -> Dialogue:
    """Return the dialogue of a variant and level about one case."""
    variant, level = key
    if variant == "constraints" or not level:
        return Dialogue(variant, level, tuple(range(level)))
    earlier = range(level - 1)
    if variant == "own":
        given = [(position, answers[position]) for position in earlier if position in answers]
    else:
        given = [(position, int(truth[position])) for position in earlier if truth[position] != NOT_ANNOTATED]
    return Dialogue(variant, level, (level - 1,), tuple(given))


# Dialect "levels": the JSON object of all fields of a dialogue, which answers only records made from a chain. Such a
# record's thinking is the object without the answer to the diagnosis, its answer the diagnosis.

LEVELS = "levels"
LEVELS_FORM = (
    "Please output one JSON object with the names above in their order and nothing else. Each of them is an object of "
    'two texts, "reasoning" and "answer". An answer is an option with its letter, such as "B. text of option B".'
)
ANSWER_MARK = ' "answer"'


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    reasoning: str
    answer: str


_REPLY = msgspec.json.Decoder(dict[str, _Entry])
_THINKING = msgspec.json.Decoder(dict[str, dict[str, str]])


def write_thinking(chain: Chain, dialogue: Dialogue, *, answers: Sequence[int], reasoning: Sequence[str]) -> str:
    """Return the reply of a dialogue without the answer to the diagnosis."""
    content: dict[str, dict[str, str]] = {}
    for field in dialogue.fields:
        position = position_of(field, chain.num_steps)
        written = chain.steps[position].lettered_options[answers[position]]
        content[field] = {"reasoning": reasoning[position], "answer": written}
    del content[DIAGNOSIS]["answer"]
    return _encode(content)


def write_levels(record: Record) -> str:
    """Write a record that was made from a chain at a level."""
    try:
        content = _THINKING.decode(record.thinking)
        content[DIAGNOSIS]["answer"] = ""
    except (msgspec.MsgspecError, KeyError):
        raise BadInput("thinking: no steps of a level; dialect 'levels' writes records of config.vqa.levels") from None
    options = Step("choices", record.question, record.options).lettered_options
    content[DIAGNOSIS]["answer"] = options[record.letters.index(str(record.answer))]
    return _encode(content)


def read_levels(text: str) -> Reply:
    """Read a reply; its answer is the diagnosis."""
    start, end = text.find("{"), text.rfind("}") + 1
    try:
        content = _REPLY.decode(text[start:end] if start >= 0 else "")
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        content = {}
    problems = []
    if next(reversed(content), "") != DIAGNOSIS:
        problems.append(f"not one JSON object of names with reasoning and answer, {DIAGNOSIS!r} the last")
    elif text[:start].strip() or text[end:].strip():
        problems.append("text around the JSON object")
    last = content.get(DIAGNOSIS, _Entry("", ""))
    steps = {field: msgspec.structs.asdict(entry) for field, entry in content.items() if field != DIAGNOSIS}
    thinking = _encode({**steps, DIAGNOSIS: {"reasoning": last.reasoning}}) if content else ""
    if content and not last.answer.strip():
        problems.append("the diagnosis is empty")
    answer = last.answer.strip() or None
    return Reply(LEVELS, answer=answer, references=(), thinking=thinking, problems=tuple(problems))


def _encode(content: Mapping[str, Mapping[str, str]]) -> str:
    return json.dumps(content, ensure_ascii=False)
