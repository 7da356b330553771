"""A question as a user asks it: its kind, its prompt, and words that a closed vocabulary does not have."""

import collections
import difflib
import pathlib
import re
from collections.abc import Sequence
from typing import get_args

from stepcot_jax.data.grounded.record_files import read_vqa_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import make_printable
from stepcot_jax.policies.policy_files import AnyTokenizer
from stepcot_jax.policies.tokenizers import Vocabulary, split_pieces
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.reasoning.record import Kind, VqaRecord
from stepcot_jax.settings.run_settings import Settings

QUESTIONS_FILE = "records/test.jsonl"

_YES_OR_NO = re.compile(r"\W*(?:is|are|was|were|does|do|did|has|have|had|can|could|should|will|would)\b", re.IGNORECASE)
_ANSWERS: dict[str, str | tuple[str, ...]] = {"closed": "Yes", "open": "?", "single": "A", "multi": ("A",)}
_WORD = re.compile(r"[^\W\d_]+")
_NUM_NEAR = 4


def guess_kind(question: str, *, choices: Sequence[str] = ()) -> Kind:
    """Return the kind of a question: "single" with choices, "closed" if it asks for yes or no, else "open".

    >>> guess_kind("Is there an effusion?"), guess_kind("Where is the mass?"), guess_kind("Which?", choices=("A", "B"))
    ('closed', 'open', 'single')
    """
    if choices:
        return "single"
    return "closed" if _YES_OR_NO.match(question) else "open"


def ask_question(
    question: str, *, image_size: tuple[int, int], choices: Sequence[str] = (), kind: str | None = None
) -> VqaRecord:
    """Return a question as a record, whose answer is a placeholder.

    Args:
      image_size: width and height in pixels of the picture that boxes of the reply refer to.
    """
    if isinstance(choices, str):
        raise BadInput(f"choices: {choices[:80]!r} is one text; a sequence of texts is required")
    kind = kind or guess_kind(question, choices=choices)
    if kind not in _ANSWERS:
        raise BadInput(f"kind: {kind!r} is not one of {', '.join(get_args(Kind))}")
    return VqaRecord(
        id="asked",
        image_path="image",
        image_size=image_size,
        patient_id="asked",
        kind=kind,  # type: ignore[arg-type]
        question=question,
        choices=tuple(choices),
        answer=_ANSWERS[kind],
    )


def list_questions(workdir: pathlib.Path, *, most: int) -> list[str]:
    """Return the most frequent questions without choices of a run's test records; none without the file."""
    counts = collections.Counter(record.question for record in _read_questions(workdir) if not record.choices)
    return [question for question, _ in counts.most_common(most)]


def _read_questions(workdir: pathlib.Path) -> Sequence[VqaRecord]:
    """Return the run's test records; none if the file is missing or cannot be used."""
    try:
        return read_vqa_records(workdir / QUESTIONS_FILE, on_bad_record="skip").records
    except BadInput:
        return ()


def encode_prompt(
    record: VqaRecord, tokenizer: AnyTokenizer, settings: Settings, *, prompt_length: int, workdir: pathlib.Path
) -> list[int]:
    """Return the tokens of a question's prompt, in the words of the run's dialect."""
    prompt = write_question(record, settings.vqa.dialect, with_thinking=settings.vqa.with_thinking)
    try:
        tokens = tokenizer.encode_prompt(prompt)
    except BadInput as error:
        if tokenizer.closed is None:
            raise
        raise BadInput(_explain_unknown(record, prompt, tokenizer.closed, workdir) or str(error)) from None
    if not 1 <= len(tokens) <= prompt_length:
        raise BadInput(
            f"question: {len(tokens)} tokens with choices and instruction; the run was trained on prompts of at most "
            f"{prompt_length}"
        )
    return tokens


def _explain_unknown(record: VqaRecord, prompt: str, tokenizer: Vocabulary, workdir: pathlib.Path) -> str:
    """Return the message on the first word of a prompt that the vocabulary lacks; "" if each piece alone is known."""
    piece = next((piece for piece in split_pieces(prompt) if not _is_known(piece, tokenizer)), None)
    if piece is None:
        return ""
    word = make_printable(piece.strip())
    other = piece.strip() if piece.startswith(" ") else f" {piece}"
    where = f" {'after' if piece.startswith(' ') else 'without'} a space" if _is_known(other, tokenizer) else ""
    message = (
        f"question or choices: the word {word!r}{where} is not in the run's vocabulary, which has the words of its "
        "training records"
    )
    near = difflib.get_close_matches(word.casefold(), _known_words(tokenizer), n=_NUM_NEAR, cutoff=0.5)
    if near:
        message += f"; similar words: {', '.join(near)}"
    questions = _similar_questions(record, workdir)
    if questions:
        message += f"; questions that it knows: {' | '.join(questions)}"
    return message


def _is_known(piece: str, tokenizer: Vocabulary) -> bool:
    try:
        tokenizer.encode(piece)
    except BadInput:
        return False
    return True


def _known_words(tokenizer: Vocabulary) -> list[str]:
    return sorted({word for piece in tokenizer.pieces for word in _WORD.findall(piece.casefold()) if len(word) > 1})


def _similar_questions(record: VqaRecord, workdir: pathlib.Path) -> list[str]:
    """Return the most similar questions of the run's test records that have the same kind."""
    known = {each.question.casefold(): each.question for each in _read_questions(workdir) if each.kind == record.kind}
    near = difflib.get_close_matches(record.question.casefold(), known, n=_NUM_NEAR - 1, cutoff=0.0)
    return [make_printable(known[question]) for question in near]
