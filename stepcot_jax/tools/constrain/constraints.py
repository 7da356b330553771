"""Verify by code whether a reply follows each constraint, strictly and loosely, after IFEval (Zhou et al. 2023).

Strict: the reply as it is. Loose: a constraint is followed if one of IFEval's eight forms of the reply follows it:
with or without asterisks, its first line, its last line. A reply follows its prompt if it follows every constraint.

Nothing raises on any text. A reply is read up to `MAX_CHARACTERS`, each form at most `_MAX_OBJECTS` times, so that
the time is linear in its length.
"""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from stepcot_jax.annotate.llm.json_objects import BadAnswer, find_object
from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step, fold
from stepcot_jax.evaluation.consistency import find_clear_chest
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.levels import DIAGNOSIS, Dialogue, position_of

MAX_CHARACTERS = 100_000

KINDS: Mapping[str, str] = {
    "json": "one JSON object and nothing else",
    "schema": "the names asked for, each with reasoning and answer",
    "order": "names in the order asked for",
    "answered": "an answer that is not blank",
    "option": "the answer is one of the options",
    "letter": "letter and text as listed",
    "consistent": "no contradiction with other answers",
}
"""Kinds of constraints, in words. `json`, `schema`, `order` and `consistent` are of the whole reply, the others of each
field."""

_ENTRY = ["reasoning", "answer"]
_MAX_OBJECTS = 16
_BLANKS = " \t\r\n"


@dataclasses.dataclass(frozen=True)
class Constraint:
    """One verifiable instruction: its kind, and the field that it is about ("" for the whole reply)."""

    kind: str
    field: str = ""


@dataclasses.dataclass(frozen=True)
class Verified:
    """The verification of a reply."""

    constraints: tuple[Constraint, ...]
    strict: tuple[bool, ...]
    loose: tuple[bool, ...]
    labels: Mapping[str, int]


class _Repeated(dict[str, Any]):
    """A JSON object in which a name occurs twice."""


@dataclasses.dataclass(frozen=True)
class _Form:
    """A form of a reply: its object, and whether it consists of that object alone."""

    content: dict[str, Any]
    is_alone: bool


def list_constraints(chain: Chain, dialogue: Dialogue, *, lists_diagnoses: bool = True) -> tuple[Constraint, ...]:
    """Return the constraints that the prompt of a dialogue states."""
    constraints = [Constraint("json"), Constraint("schema")]
    if len(dialogue.fields) > 1:
        constraints.append(Constraint("order"))
    for field in dialogue.fields:
        constraints.append(Constraint("answered", field))
        if field != DIAGNOSIS or lists_diagnoses or dialogue.level == chain.num_steps:
            constraints += [Constraint("option", field), Constraint("letter", field)]
    is_rule = find_clear_chest(chain) is not None and dialogue.level > 0
    if is_rule or chain.num_steps - 1 in dialogue.asked:
        constraints.append(Constraint("consistent"))
    return tuple(constraints)


def verify(text: str | None, *, chain: Chain, dialogue: Dialogue, lists_diagnoses: bool = True) -> Verified:
    """Verify every constraint of a dialogue, and read the answers."""
    constraints = list_constraints(chain, dialogue, lists_diagnoses=lists_diagnoses)
    if text is None:
        nothing = (False,) * len(constraints)
        return Verified(constraints, nothing, nothing, {})
    is_open = not lists_diagnoses and dialogue.level < chain.num_steps
    labels: dict[str, int] = {}
    checked: list[list[bool]] = []
    for form in (_parse(reply, dialogue) for reply in loose_forms(text)):
        if checked and all(checked[0]):
            break  # no other form can follow more
        read = {field: label for field in dialogue.fields if (label := _read(form, field, chain, is_open)) is not None}
        labels = {**read, **labels}
        checked.append([_is_followed(constraint, form, read, chain, dialogue) for constraint in constraints])
    loose = tuple(any(column) for column in zip(*checked, strict=True))
    if not labels:  # no JSON breaks the constraints, but what it plainly answers is its answer
        with contextlib.suppress(BadAnswer):
            form = _Form(find_object(text[:MAX_CHARACTERS], dialogue.fields), is_alone=False)
            answers = {field: _read(form, field, chain, is_open) for field in dialogue.fields}
            labels = {field: label for field, label in answers.items() if label is not None}
    return Verified(constraints, tuple(checked[0]), loose, labels)


def loose_forms(text: str) -> list[str]:
    r"""Return the forms of a reply that IFEval's loose accuracy accepts, the reply itself first, each once.

    >>> loose_forms("Sure:\n*A*")
    ['Sure:\n*A*', 'Sure:\nA', '*A*', 'A', 'Sure:', '']
    """
    reply = text[:MAX_CHARACTERS].strip()
    lines = reply.split("\n")
    cut = [reply, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return list(dict.fromkeys(form for kept in cut for form in (kept, kept.replace("*", ""))))


def _parse(text: str, dialogue: Dialogue) -> _Form:
    """Return the last outermost object that has one of the names asked for."""
    decoder = json.JSONDecoder(object_pairs_hook=_keep_repetition)
    content: dict[str, Any] = {}
    is_alone, position = False, text.find("{")
    for _ in range(_MAX_OBJECTS):
        if position < 0:
            break
        try:
            value, end = decoder.raw_decode(text, position)
        # A number of thousands of digits is a ValueError, arrays in arrays a RecursionError.
        except (ValueError, RecursionError):
            position = text.find("{", position + 1)
            continue
        if any(field in value for field in dialogue.fields) or not content:
            content = value
        is_alone = is_alone or not (text[:position].strip(_BLANKS) or text[end:].strip(_BLANKS))
        position = text.find("{", end)
    return _Form(content, is_alone)


def _keep_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    return content if len(content) == len(pairs) else _Repeated(content)


def _entry_answer(form: _Form, field: str) -> str:
    """Return the written answer of a field; "" if there is none."""
    entry = form.content.get(field)
    answer = entry.get("answer") if isinstance(entry, dict) else None
    return answer.strip() if isinstance(answer, str) else ""


def _read(form: _Form, field: str, chain: Chain, is_open: bool) -> int | None:
    """Return the label of a field's answer; None if it is not one of the options."""
    answer, step = _entry_answer(form, field), chain.steps[position_of(field, chain.num_steps)]
    try:
        label = step.read_answer(answer)
    except BadInput:
        label = NOT_ANNOTATED
    if label == NOT_ANNOTATED and is_open and field == DIAGNOSIS:
        return find_option(answer, step)
    return None if label == NOT_ANNOTATED else label


def find_option(text: str, step: Step) -> int | None:
    """Return the one option that a text mentions as whole words; None if it mentions none or several.

    >>> step = Step("Diagnosis", "Which?", ("Normal", "Mass", "Pleural effusion"))
    >>> find_option("Most likely a mass.", step), find_option("Massive pleural effusion", step), find_option("?", step)
    (1, 2, None)
    """
    words = "".join(letter if letter.isalnum() else " " for letter in fold(text)).split()
    spaced = f" {' '.join(words)} "
    options = ["".join(letter if letter.isalnum() else " " for letter in fold(option)) for option in step.options]
    mentioned = [label for label, option in enumerate(options) if f" {' '.join(option.split())} " in spaced]
    return mentioned[0] if len(mentioned) == 1 else None


def _is_followed(
    constraint: Constraint, form: _Form, read: Mapping[str, int], chain: Chain, dialogue: Dialogue
) -> bool:
    kind, field = constraint.kind, constraint.field
    if kind == "json":
        return form.is_alone
    if kind == "schema":
        return _has_schema(form.content, dialogue)
    if kind == "order":
        return [name for name in form.content if name in dialogue.fields] == list(dialogue.fields)
    if kind == "answered":
        return bool(_entry_answer(form, field))
    if kind == "option":
        return field in read
    if kind == "letter":
        step, label = chain.steps[position_of(field, chain.num_steps)], read.get(field)
        return label is not None and fold(_entry_answer(form, field)) == fold(step.lettered_options[label])
    return _is_consistent(read, chain, dialogue)


def _has_schema(content: dict[str, Any], dialogue: Dialogue) -> bool:
    if set(content) != set(dialogue.fields) or isinstance(content, _Repeated):
        return False
    return all(
        isinstance(entry, dict)
        and not isinstance(entry, _Repeated)
        and list(entry) == _ENTRY
        and all(isinstance(text, str) for text in entry.values())
        for entry in content.values()
    )


def _is_consistent(read: Mapping[str, int], chain: Chain, dialogue: Dialogue) -> bool:
    """Return whether the diagnosis is readable and contradicts no known answer, in the reply or given."""
    last = chain.num_steps - 1
    if DIAGNOSIS not in read:
        return False
    in_reply = {position_of(field, chain.num_steps): label for field, label in read.items()}
    if last in dialogue.asked and read.get(f"step_{chain.num_steps}") != read[DIAGNOSIS]:
        return False
    clear, known = find_clear_chest(chain), {**dict(dialogue.given), **in_reply}
    if clear is None or 0 not in known:
        return True
    if known[0] != clear.label:
        return read[DIAGNOSIS] != clear.settled[last]
    # A contradiction among given answers is not the reply's.
    changed = known if 0 in in_reply else in_reply
    return all(known[position] == label for position, label in clear.settled.items() if position in changed)
