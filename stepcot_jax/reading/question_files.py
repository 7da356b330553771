"""Ask a model a file of questions: every reply is a line of a file at once, so that a kill loses and repeats none."""

import collections
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from PIL import Image

from stepcot_jax.annotate.llm.answers import digest_text
from stepcot_jax.data.images.image_decoding import MAX_PIXELS, decode_picture, most_bytes
from stepcot_jax.data.images.image_files import FolderFiles
from stepcot_jax.data.questions.reply_files import ReplyLine
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.files import lock_file, writing_whole
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.host.text import one_line
from stepcot_jax.reading.audit_folder import draw_places
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.record import Record

REQUEST = "request"
OUTCOMES = {
    "answered": "answered",
    "cut": "cut at the limit of their length",
    "refused": "refused",
    "picture": "whose picture cannot be read",
    "question": "that cannot be asked",
    REQUEST: "given up",
}
"""Outcomes of a question, in words; the `error` of a line begins with one of the last three."""


class AskedLine(ReplyLine, frozen=True, kw_only=True):
    """A line of the file, with what its reply depends on; one with an `error` is asked again."""

    model: str
    asked: str  # weights or address, decoding
    question: str  # digest of prompt and picture's path


@dataclasses.dataclass(frozen=True)
class Question:
    """A record to ask about."""

    record: Record
    root: Path
    text: str  # the prompt
    shows_picture: bool = True

    @property
    def id(self) -> str:
        """Id of the record."""
        return self.record.id

    @property
    def digest(self) -> str:
        """Digest of prompt and picture's path."""
        return digest_text(json.dumps([self.text, self.record.image if self.shows_picture else None]))[:16]

    def read_picture(self, max_pixels: int = MAX_PIXELS) -> Image.Image:
        """Return the picture at its own size."""
        files = FolderFiles(self.root, (self.record.image,), most_bytes(max_pixels))
        with naming("picture"):
            return decode_picture(files.read(0), name=files.name(0), max_pixels=max_pixels)


def draw_records(records: Sequence[Record], most: int | None) -> list[Record]:
    """Return all records in order, or `most` of them, drawn at random."""
    return [records[place] for place in draw_places(len(records), most or len(records))]


def write_questions(records: Iterable[Record], root: Path, dialect: str, *, with_thinking: bool) -> list[Question]:
    """Return the records as questions in the words of a dialect."""
    return [Question(record, root, write_question(record, dialect, with_thinking=with_thinking)) for record in records]


@contextlib.contextmanager
def naming(outcome: str) -> Iterator[None]:
    """Let the message of wrong input begin with an outcome."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{outcome}: {error}") from None


Tell = Callable[[Question, ReplyLine], None]


class Asker(NamedTuple):
    """A model that is asked; `ask` tells of each question what came of it, in any order."""

    name: str
    asked: str  # what a reply depends on besides the question
    ask: Callable[[Iterable[Question], Tell], None]


def ask_file(
    path: Path, questions: Sequence[Question], asker: Asker, *, terminal: Terminal, may_refuse_all: bool = False
) -> collections.Counter[str]:
    """Ask those questions whose replies the file lacks, append the replies, and return the number of each outcome."""
    last = ["refused"]
    with lock_file(path.with_name(f".{path.name}.lock")):
        answered = _resume(path, asker, {question.id: question.digest for question in questions})
        counts = collections.Counter(answered.values())
        with path.open("ab") as file, terminal.bar("asking", total=len(questions), done=len(answered)):

            def tell(question: Question, line: ReplyLine) -> None:
                about: dict[str, Any] = {"model": asker.name, "asked": asker.asked, "question": question.digest}
                file.write(msgspec.json.encode(AskedLine(**msgspec.structs.asdict(line), **about)) + b"\n")
                file.flush()
                counts[_outcome(line)] += 1
                last[0] = line.error or last[0]
                terminal.update(counts.total(), describe({**counts, "answered": 0}))

            try:
                asker.ask((question for question in questions if question.id not in answered), tell)
            except KeyboardInterrupt:
                raise RunStopped(f"interrupted; every reply is in {path}, rerun the command to resume") from None
    if not counts["answered"] + counts["cut"] + counts["refused"] * may_refuse_all:
        raise BadInput(f"{path}: none of {len(questions)} questions was answered (the last: {last[0]})")
    return counts


def _outcome(line: ReplyLine) -> str:
    if line.finish_reason in ("refusal", "content_filter"):
        return "refused"
    return (line.error or "").partition(":")[0] or ("cut" if line.finish_reason == "length" else "answered")


def describe(counts: Mapping[str, int]) -> str:
    """Return numbers of outcomes in words."""
    return ", ".join(f"{counts[name]} {words}" for name, words in OUTCOMES.items() if counts.get(name))


def _resume(path: Path, asker: Asker, digests: Mapping[str, str]) -> dict[str, str]:
    """Return the outcomes that a file has by id, and take failures, and half a line at its end, out of it."""
    answered, other = dict[str, str](), "choose another --out, or move the file away"
    if not path.exists():
        return answered
    with path.open("rb") as old, writing_whole(path) as new:
        for number, content in enumerate(old, start=1):
            if not content.endswith(b"\n"):
                continue  # of a kill in the middle of a write
            where = f"{path}, line {number}"
            try:
                line = msgspec.json.decode(content, type=AskedLine)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise BadInput(f"{where}: not written by stepcot answer ({one_line(error)[:80]}); {other}") from None
            if line.error:
                continue
            if (line.model, line.asked) != (asker.name, asker.asked):
                now = f"this command asks {asker.name} ({asker.asked})"
                raise BadInput(f"{where}: a reply of {line.model} ({line.asked}), while {now}; {other}")
            if digests.get(str(line.id)) != line.question:
                raise BadInput(f"{where}: this command does not ask {str(line.id)[:80]!r}, or in other words; {other}")
            answered[str(line.id)] = _outcome(line)
            new.write(content)
    return answered
