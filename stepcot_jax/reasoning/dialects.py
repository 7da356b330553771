"""Dialects: how four published systems write a question's prompt and a grounded reply, and how replies are read.

| dialect | of | boxes | references keep |
|---|---|---|---|
| `gemex` | GEMeX-RMCoT, Figure 3 | whole pixels, x first | names and boxes |
| `gemex_plain` | GEMeX as released | whole pixels, x first | boxes |
| `lvkc` | MEDSAGE, Figure 12 | 0 to 1000, y first | names and boxes |
| `lvkc_released` | MEDSAGE's public code | whole pixels, x first | boxes |
| `medclm` | MedCLM's public code | unit square, four decimals, x first | names and boxes |
| `free` | any model, without a grammar; read only | as written | names and boxes |

Reading a written record returns its answer and these references, rounded half up to the dialect's precision.
"""

import dataclasses
import functools
import string
from collections.abc import Callable
from typing import NamedTuple

from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.free_replies import UNCLOSED, read_free, read_free_answer, split_thoughts
from stepcot_jax.reasoning.gemex_replies import read_gemex, read_gemex_plain, write_gemex, write_gemex_plain
from stepcot_jax.reasoning.lvkc_replies import read_lvkc, read_lvkc_released, write_lvkc, write_lvkc_released
from stepcot_jax.reasoning.medclm_replies import read_medclm, write_medclm
from stepcot_jax.reasoning.replies import Reply, normalise, read_answer, without_stop_tokens
from stepcot_jax.record import Record


class _Dialect(NamedTuple):
    """A dialect: writer, reader, the form that prompts ask for (with and without thinking), and the answer's mark."""

    write: Callable[[Record], str]
    read: Callable[[str], Reply]
    form: str
    form_without_thinking: str
    answer_mark: str


_GEMEX_FORM = "final answer ({answer}) with corresponding visual location in <response> </response> tags."
_LVKC_FORM = (
    "Please describe the image, then output the location in <LOC> </LOC>, the visual analysis in <VISUAL> </VISUAL>, "
    "the medical knowledge in <KNOWLEDGE> </KNOWLEDGE>, the conclusion in <CON> </CON> and the final answer ({answer}) "
    "in <ANSWER> </ANSWER> tags."
)
_RELEASED_FORM = (
    "Please output the boxes in <LOC> </LOC>, the visual analysis in <VIS> </VIS>, the medical knowledge in "
    "<KNO> </KNO> and the final answer ({answer}) in <CON> </CON> tags."
)
_PLAIN_FORM = (
    "Please output the final answer ({answer}) after <answer>, the reason "
    "after <reason> and the boxes after <location>."
)

_DIALECTS = {
    "gemex": _Dialect(
        write_gemex,
        read_gemex,
        f"Please output the thinking process in <think> </think> and {_GEMEX_FORM}",
        f"Please output the {_GEMEX_FORM}",
        "<response>",
    ),
    "gemex_plain": _Dialect(write_gemex_plain, read_gemex_plain, _PLAIN_FORM, _PLAIN_FORM, "<answer>"),
    "lvkc": _Dialect(write_lvkc, read_lvkc, _LVKC_FORM, _LVKC_FORM, "<ANSWER>"),
    "lvkc_released": _Dialect(write_lvkc_released, read_lvkc_released, _RELEASED_FORM, _RELEASED_FORM, "<CON>"),
    "medclm": _Dialect(
        write_medclm,
        read_medclm,
        'Please output the reasoning with boxes after "Reasoning:" and the final answer ({answer}) after "Answer:".',
        'Please output the final answer ({answer}) after "Answer:".',
        "Answer:",
    ),
}

DIALECTS: tuple[str, ...] = tuple(_DIALECTS)
"""Dialects of the published systems, in the order in which `choose_dialect` tries them."""
FREE = "free"
"""The dialect of replies without a grammar: it is read, never written."""
AUTO = "auto"
"""In place of a dialect: `evaluation.replies.choose_dialect` chooses one for each file of replies."""

_KINDS = {
    "open": ("an open-ended", "a short text"),
    "closed": ("a closed-ended", "Yes or No"),
    "single": ("a single-choice", "an option"),
    "multi": ("a multi-choice", "all correct options"),
}


def write_reply(record: Record, dialect: str) -> str:
    """Write a record as a reply: the target of fine-tuning.

    Args:
      record: its answer, boxes and reasoning.
      dialect: of `DIALECTS`.

    Raises:
      BadInput: the dialect is unknown, or the record lacks a part that it needs.
    """
    return _find(dialect).write(record)


def read_reply(text: str, dialect: str, *, with_thinking: bool = True, in_any_space: bool = False) -> Reply:
    """Read a reply; no text raises, `Reply.problems` says what is wrong with it.

    Args:
      text: what the model wrote.
      dialect: of `DIALECTS`, or "free" for replies without a grammar.
      with_thinking: False for replies of "gemex" without thinking (GEMeX-200K), and of "medclm" without reasoning.
      in_any_space: whether boxes of "medclm" and "lvkc" may have coordinates beyond those of the dialect.

    Raises:
      BadInput: the dialect is unknown.
    """
    if dialect == FREE:
        return dataclasses.replace(read_free(text), text=text)
    read: Callable[..., Reply] = _find(dialect).read
    if read in (read_gemex, read_medclm):
        read = functools.partial(read, with_thinking=with_thinking)
    if in_any_space and dialect in ("lvkc", "medclm"):
        read = functools.partial(read, in_any_space=True)
    reply = read(without_stop_tokens(text))
    plain = normalise(text)  # with ASCII for full-width brackets, commas and digits
    if reply.problems and plain != text:
        reply = min(reply, read(plain), key=lambda reply: len(reply.problems))
    thinking, behind, is_open = split_thoughts(plain)
    if is_open and not plain.endswith("</response>"):  # a draft; GEMeX's complete response only lacks a </think>
        reply = Reply(dialect, thinking=thinking, problems=(*reply.problems, UNCLOSED), space=reply.space)
    elif thinking and not is_open and reply.problems:
        problems = reply.problems
        reply = dataclasses.replace(read(behind), thinking=thinking, regions=reply.regions, problems=problems)
    return dataclasses.replace(reply, text=text)


def interpret_answer(reply: Reply, record: Record) -> str | tuple[str, ...] | None:
    """Return the answer of a reply in the form of `record.answer`; None if it has none that can be read."""
    if reply.answer is None:
        return None
    return (read_free_answer if reply.dialect == FREE else read_answer)(reply.answer, record)


def answer_start(reply: str, dialect: str) -> int:
    """Return the position at which the answer of a written reply begins; "gemex_plain" begins with it."""
    return max(reply.rfind(_find(dialect).answer_mark), 0)


def write_question(record: Record, dialect: str, *, with_thinking: bool = True) -> str:
    """Write the prompt: question, choices, kind of question and form of the reply.

    Args:
      record: its question, kind and options.
      dialect: of `DIALECTS`; names the form that is asked for.
      with_thinking: whether to ask for reasoning before the answer.

    Raises:
      BadInput: the dialect is unknown.
    """
    style = _find(dialect)
    kind, answer = _KINDS[record.kind]
    form = (style.form if with_thinking else style.form_without_thinking).format(answer=answer)
    choices = [f"{letter}: {choice}" for letter, choice in zip(string.ascii_uppercase, record.options, strict=False)]
    lines = [record.question.strip(), f"This is {kind} question. {form}"]
    if choices:
        lines.insert(1, f"<choices>: [{', '.join(choices)}]")
    return "\n".join(lines)


def _find(dialect: str) -> _Dialect:
    if dialect not in _DIALECTS:
        raise BadInput(f"dialect must be one of {', '.join(DIALECTS)}; got {dialect!r}")
    return _DIALECTS[dialect]
