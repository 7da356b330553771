"""GEMeX-RMCoT: from a grounded report, a question and its answer to thinking with regions and boxes (Section 3)."""

from collections.abc import Sequence

import msgspec

from stepcot_jax.annotate.annotation import Aside, CannotAnnotate, Reason
from stepcot_jax.annotate.checks import (
    check_answer,
    check_markup,
    check_options,
    check_regions,
    check_speech,
    options_named,
    require,
)
from stepcot_jax.annotate.llm.prompts import RMCOT, RMCOT_TRUST, RMCOT_VOTE
from stepcot_jax.annotate.recipes.items import Parts, Question, Request, Task, TaskSettings
from stepcot_jax.box import Box
from stepcot_jax.data.questions import vocabulary as wording
from stepcot_jax.data.questions.vocabulary import term_of, write_box
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import read_reply, write_reply
from stepcot_jax.record import Record


def plan_questions(questions: Sequence[Question], _: TaskSettings) -> list[Question | Aside]:
    """Return the questions; one without a boxed region is set aside."""
    return [
        question
        if question.statements and question.record.references
        else Aside(question.id, Reason.NO_REGION, "the source has no box for it")
        for question in questions
    ]


def write_thinking(question: Question) -> dict[str, str]:
    """Write the thinking offline: a sentence per region, one per rejected option, one with the answer."""
    record = question.record
    boxes = {write_box(box.corners) for box in record.references}
    chosen = [statement for statement in question.statements if write_box(statement.corners) in boxes]
    rejected = [
        f"Option {letter}, {choice.rstrip('.')}, does not fit what I see."
        for letter, choice in zip(record.letters, record.options, strict=True)
        if letter not in record.answer
    ]
    looks = [_quote(statement, question) for statement in chosen or question.statements]
    return {"thinking": wording.write_thinking((), options=(*looks, *rejected), answer=question.spoken_answer)}


def _quote(statement: Box, question: Question) -> str:
    """Return the sentence of a grounded report with its region and box, or one that looks at the region."""
    # Grounded reports may end without a full stop, or hold several sentences.
    words, name = statement.sentence.strip().rstrip("."), question.region_of(statement)
    if not words and (statement in question.findings or not name):
        placed = Box(statement.label, statement.corners, region=name)
        return wording.look_at(placed, f"signs of {term_of(statement.label).name}")
    region = f"**{name or statement.label}** ({write_box(statement.corners)})"
    before, named, after = words.partition(name or statement.label)
    if named and before:
        return f"{before}{region}{after}."
    return f"I {'look at the' if name else 'see'} {region}{f': {words}' if words else ''}."


def assemble(question: Question, parts: Parts) -> Record:
    """Return the question's record with the thinking, without the source's own reasoning in stages."""
    return msgspec.structs.replace(question.record, thinking=parts["thinking"], preamble="", stages=None)


def check(question: Question, parts: Parts, record: Record) -> None:
    """Require thinking that is grounded, speaks of the picture, judges every option and ends with the answer."""
    thinking = parts["thinking"]
    check_markup([thinking])
    check_speech(thinking, "thinking")
    check_regions(thinking, question)
    check_answer(thinking, question)
    missing = sorted(set(question.record.letters) - options_named(thinking, question.record))
    require(not missing, Reason.OPTION_NOT_NAMED, f"option {', '.join(missing)}")
    check_options(thinking, question)
    require_assembled(record, assemble(question, parts), dialect="gemex")


def require_assembled(record: Record, assembled: Record, *, dialect: str) -> None:
    """Require a record made of its parts alone, `NOT_ASSEMBLED`, that its dialect reads back well formed, `MARKUP`."""
    same = msgspec.structs.replace(assembled, provenance=record.provenance)
    require(record == same, Reason.NOT_ASSEMBLED, "the record is not its source with these parts")
    try:
        has_thinking = bool(record.thinking.strip()) or dialect != "medclm"
        problems = read_reply(write_reply(record, dialect), dialect, with_thinking=has_thinking).problems
    except BadInput as error:
        raise CannotAnnotate(Reason.MARKUP, str(error).partition(":")[0]) from None
    require(not problems, Reason.MARKUP, "; ".join(problems)[:80])


_REQUEST: Request[Question] = Request(RMCOT, ("thinking",), lambda question, _: question.data())

TASK: Task[Question] = Task(
    name="rmcot",
    units="questions",
    plan=plan_questions,
    requests=(_REQUEST,),
    choose=lambda _: (_REQUEST,),
    write=write_thinking,
    assemble=assemble,
    check=check,
    data=lambda question: question.data(),
    trust=RMCOT_TRUST,
    vote=RMCOT_VOTE,
)
