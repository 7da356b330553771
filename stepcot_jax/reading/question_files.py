"""Ask a model a file of questions: every reply is a line of a file at once, so that a kill loses and repeats none."""

import collections
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from PIL import Image

from stepcot_jax.annotate.llm.answers import digest_text
from stepcot_jax.data.images.image_decoding import MAX_PIXELS, decode_picture, most_bytes
from stepcot_jax.data.images.image_files import FolderFiles
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.files import lock_file, writing_whole
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.host.text import one_line
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


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a question."""

    reply: str | None  # as the model wrote it; None without one
    finish_reason: str = ""
    image_size: tuple[int, int] | None = None  # width and height of the picture as the model saw it
    error: str = ""  # what failed, so that another run asks again; "" if nothing did

    @property
    def outcome(self) -> str:
        """One of `OUTCOMES`."""
        if self.finish_reason in ("refusal", "content_filter"):
            return "refused"
        return self.error.partition(":")[0] or ("cut" if self.finish_reason == "length" else "answered")


class AnswerLine(Said, frozen=True, kw_only=True):
    """A line of the file; `data.questions.reply_files` reads id and what came of the question."""

    id: str
    model: str
    asked: str  # what else the reply depends on: weights or address, decoding
    question: str  # digest of prompt and picture's path


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
        return digest_text(json.dumps([self.text, self.record.image]))[:16]

    def read_picture(self, max_pixels: int = MAX_PIXELS) -> Image.Image:
        """Return the picture at its own size."""
        files = FolderFiles(self.root, (self.record.image,), most_bytes(max_pixels))
        with naming("picture"):
            return decode_picture(files.read(0), name=files.name(0), max_pixels=max_pixels)


@contextlib.contextmanager
def naming(outcome: str) -> Iterator[None]:
    """Let the message of wrong input begin with an outcome."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{outcome}: {error}") from None


Tell = Callable[[Question, Said], None]


@dataclasses.dataclass(frozen=True)
class Asker:
    """A model that is asked; `ask` tells of each question what came of it, in any order."""

    name: str
    asked: str  # what a reply depends on besides the question
    ask: Callable[[Iterable[Question], Tell], None]


def ask_file(
    path: Path, questions: Sequence[Question], asker: Asker, *, terminal: Terminal
) -> collections.Counter[str]:
    """Ask those questions whose replies the file lacks, append the replies, and return the number of each outcome."""
    last = ["refused"]
    with lock_file(path.with_name(f".{path.name}.lock")):
        answered = _resume(path, asker, {question.id: question.digest for question in questions})
        counts = collections.Counter(answered.values())
        with path.open("ab") as file, terminal.bar("asking", total=len(questions), done=len(answered)):

            def tell(question: Question, said: Said) -> None:
                about: dict[str, Any] = {"model": asker.name, "asked": asker.asked, "question": question.digest}
                line = AnswerLine(id=question.id, **msgspec.structs.asdict(said), **about)
                file.write(msgspec.json.encode(line) + b"\n")
                file.flush()
                counts[said.outcome] += 1
                last[0] = said.error or last[0]
                terminal.update(counts.total(), describe({**counts, "answered": 0}))

            try:
                asker.ask((question for question in questions if question.id not in answered), tell)
            except KeyboardInterrupt:
                raise RunStopped(f"interrupted; every reply is in {path}, rerun the command to resume") from None
    if not counts["answered"] + counts["cut"]:
        raise BadInput(f"{path}: none of {len(questions)} questions was answered (the last: {last[0]})")
    return counts


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
                line = msgspec.json.decode(content, type=AnswerLine)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise BadInput(f"{where}: not written by stepcot answer ({one_line(error)[:80]}); {other}") from None
            if line.error:
                continue
            if (line.model, line.asked) != (asker.name, asker.asked):
                now = f"this command asks {asker.name} ({asker.asked})"
                raise BadInput(f"{where}: a reply of {line.model} ({line.asked}), while {now}; {other}")
            if digests.get(line.id) != line.question:
                raise BadInput(f"{where}: this command does not ask {line.id[:80]!r}, or in other words; {other}")
            answered[line.id] = line.outcome
            new.write(content)
    return answered
