"""Ask a model a file of questions: every reply is a line of a file at once, so that a kill loses and repeats none."""

import collections
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from PIL import Image

from stepcot_jax.annotate.llm.answers import digest_text
from stepcot_jax.data.images.image_decoding import MAX_PIXELS, decode_picture, most_bytes
from stepcot_jax.data.images.image_files import FolderFiles
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.files import lock_file, writing_whole
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.host.text import one_line
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.record import Record

ANSWERED, CUT, REFUSED = "answered", "cut", "refused"
PICTURE, QUESTION, REQUEST = "picture", "question", "request"
OUTCOMES = {
    ANSWERED: "answered",
    CUT: "cut at the limit of their length",
    REFUSED: "refused",
    PICTURE: "whose picture cannot be read",
    QUESTION: "that cannot be asked",
    REQUEST: "given up",
}
"""Outcomes of a question, in words; the last three begin the `error` of a line that has no reply."""

NUM_DIGITS = 16
"""Digits of digests in a file of replies."""

_OTHER_FILE = "choose another --out, or move the file away"


class AnswerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the file; `data.questions.reply_files` reads id, reply, finish_reason, error and image_size."""

    id: str
    reply: str | None  # as the model wrote it; None without one
    finish_reason: str = ""
    error: str = ""  # what failed, so that another run asks again; "" if nothing did
    image_size: tuple[int, int] | None = None  # width and height of the picture as the model saw it
    model: str
    asked: str  # all else that a reply depends on: weights or address, decoding, dialect
    question: str  # digest of prompt and picture's path

    @property
    def outcome(self) -> str:
        """One of `OUTCOMES`."""
        if self.finish_reason in ("refusal", "content_filter"):
            return REFUSED
        return self.error.partition(":")[0] or (CUT if self.finish_reason == "length" else ANSWERED)


@dataclasses.dataclass(frozen=True)
class Said:
    """What came of a question: these fields of its line."""

    reply: str | None
    finish_reason: str = ""
    error: str = ""
    image_size: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Form:
    """How questions are asked."""

    dialect: str
    with_thinking: bool = True

    def __str__(self) -> str:
        return f"dialect {self.dialect}{'' if self.with_thinking else ' without thinking'}"


@dataclasses.dataclass(frozen=True)
class Question:
    """A record to ask about."""

    record: Record
    root: Path
    text: str  # the prompt

    @property
    def id(self) -> str:
        """Id of the record."""
        return self.record.id

    @property
    def digest(self) -> str:
        """Digest of prompt and picture's path."""
        return digest_text(json.dumps([self.text, self.record.image]))[:NUM_DIGITS]

    def read_picture(self, max_pixels: int = MAX_PIXELS) -> Image.Image:
        """Return the picture at its own size."""
        files = FolderFiles(self.root, (self.record.image,), most_bytes(max_pixels))
        with naming(PICTURE):
            return decode_picture(files.read(0), name=files.name(0), max_pixels=max_pixels)


@contextlib.contextmanager
def naming(part: str) -> Iterator[None]:
    """Let the message of wrong input begin with an outcome."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{part}: {error}") from None


Tell = Callable[[Question, Said], None]


class Asker(Protocol):
    """A model that is asked."""

    name: str
    asked: str  # all else that a reply depends on
    form: Form

    def ask(self, questions: Iterable[Question], tell: Tell) -> None:
        """Ask the questions, and tell of each what came of it, in any order."""


def ask_file(
    path: Path, records: Sequence[Record], asker: Asker, *, root: Path, terminal: Terminal
) -> collections.Counter[str]:
    """Ask about the records whose replies the file lacks, append the replies, and return the number of each outcome."""
    form = asker.form
    prompts = (write_question(record, form.dialect, with_thinking=form.with_thinking) for record in records)
    questions = [Question(record, root, prompt) for record, prompt in zip(records, prompts, strict=True)]
    failed = list[str]()
    with lock_file(path.with_name(f".{path.name}.lock")):
        answered = _resume(path, asker, {question.id: question.digest for question in questions})
        left = [question for question in questions if question.id not in answered]
        counts = collections.Counter(answered.values())
        with path.open("ab") as file, terminal.bar("asking", total=len(questions), done=len(answered)):

            def tell(question: Question, said: Said) -> None:
                line = AnswerLine(
                    id=question.id,
                    **dataclasses.asdict(said),
                    model=asker.name,
                    asked=asker.asked,
                    question=question.digest,
                )
                file.write(msgspec.json.encode(line) + b"\n")
                file.flush()
                counts[line.outcome] += 1
                if said.error and not failed:
                    failed.append(said.error)
                terminal.update(counts.total(), describe(counts, but=ANSWERED))

            try:
                asker.ask(left, tell)
            except KeyboardInterrupt:
                raise RunStopped(f"interrupted; every reply is in {path}, rerun the command to resume") from None
    if not counts[ANSWERED] + counts[CUT]:
        first = failed[0] if failed else "all were refused"
        raise BadInput(f"{path}: none of {len(questions)} questions was answered ({first})")
    return counts


def describe(counts: Mapping[str, int], *, but: str = "") -> str:
    """Return counts of outcomes in words, without one outcome."""
    return ", ".join(f"{counts[name]} {word}" for name, word in OUTCOMES.items() if counts.get(name) and name != but)


def _resume(path: Path, asker: Asker, digests: Mapping[str, str]) -> dict[str, str]:
    """Return the outcomes that a file has by id, and take failures, and half a line at its end, out of it."""
    if not path.exists():
        return {}
    answered = dict[str, str]()
    with path.open("rb") as old, writing_whole(path) as new:
        for number, content in enumerate(old, start=1):
            if not content.endswith(b"\n"):
                continue  # of a kill in the middle of a write
            line = _read_line(content, asker, digests, where=f"{path}, line {number}")
            if line is not None and line.id not in answered:
                answered[line.id] = line.outcome
                new.write(content)
    return answered


def _read_line(content: bytes, asker: Asker, digests: Mapping[str, str], *, where: str) -> AnswerLine | None:
    """Return a line that this command would write; None for a failure."""
    try:
        line = msgspec.json.decode(content, type=AnswerLine)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"{where}: not written by stepcot answer ({one_line(error)[:80]}); {_OTHER_FILE}") from None
    if line.error:
        return None
    if (line.model, line.asked) != (asker.name, asker.asked):
        before, now = f"{line.model} ({line.asked})", f"{asker.name} ({asker.asked})"
        raise BadInput(f"{where}: a reply of {before}, while this command asks {now}; {_OTHER_FILE}")
    if digests.get(line.id) != line.question:
        what = "has another question or picture now" if line.id in digests else "is not among those to ask"
        raise BadInput(f"{where}: record {line.id[:80]!r} {what}; {_OTHER_FILE}")
    return line
