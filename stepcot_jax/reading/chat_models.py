"""Large models that are shown a picture and asked: behind an OpenAI-compatible endpoint, or a local Qwen2.5-VL."""

import dataclasses
import datetime
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from PIL import Image

from stepcot_jax.annotate.annotation import CannotAnnotate, Reason
from stepcot_jax.annotate.llm.answers import Answers, Ledger, digest_messages, digest_text
from stepcot_jax.annotate.llm.client import Budget, Endpoint, RequestRefused
from stepcot_jax.annotate.llm.crew import Crew
from stepcot_jax.annotate.llm.prompts import Message, Prompt
from stepcot_jax.annotate.llm.replies import Entry, reply_text
from stepcot_jax.annotate.recipes.pictures import write_data_url
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file
from stepcot_jax.policies.qwen_chat import QwenReader, Turn, load_qwen_reader
from stepcot_jax.policies.qwen_weights import COPIED
from stepcot_jax.reasoning.endings import goes_on_behind


class ShownImage:
    """A picture as models see it: read once, resized, and written as data URL only if a model needs that."""

    def __init__(self, read: Callable[[], Image.Image], *, longest_side: int) -> None:
        self._read, self._longest_side = read, longest_side

    @functools.cached_property
    def pixels(self) -> Image.Image:
        """The resized picture without metadata; `BadInput` if it cannot be read."""
        # Pillow would write the file's comments and colour profile again.
        picture = Image.fromarray(np.asarray(self._read()))
        picture.thumbnail((self._longest_side, self._longest_side), Image.Resampling.LANCZOS)
        return picture

    @functools.cached_property
    def data_url(self) -> str:
        """The resized picture as PNG in a data URL, without metadata and file name."""
        return write_data_url(self.pixels)

    def release(self) -> None:
        """Free picture and data URL; the next use reads the picture again."""
        for name in ("pixels", "data_url"):
            self.__dict__.pop(name, None)


@dataclasses.dataclass(frozen=True)
class Request:
    """One request for a model to answer."""

    case: str  # name in ledgers and files; it is never sent
    messages: Sequence[Message]  # as text, the last of them the user's
    image: ShownImage  # shown with the last message
    dialogue: Any = None  # what the messages ask, for whoever made them; it is never sent


@dataclasses.dataclass(frozen=True)
class Reply:
    """A model's reply: its text, or None and the problem; `is_cut` if it reached the limit of its length."""

    text: str | None
    problem: str = ""
    is_cut: bool = False

    @property
    def answer(self) -> str | None:
        """The text, unless it was cut behind its object: what the model was about to add might take it back."""
        return None if goes_on_behind(self.text or "", "length" if self.is_cut else "") else self.text

    @classmethod
    def without(cls, error: CannotAnnotate) -> "Reply":
        """Return the reply of a model that refused, or that did not end its thoughts."""
        return cls(None, error.detail if error.reason is Reason.NO_ANSWER else str(error.reason))


class Model(Protocol):
    """Answers requests."""

    name: str
    about: str

    async def reply(self, request: Request) -> Reply:
        """Answer one request."""

    async def close(self) -> None:
        """Free what the model holds."""


@dataclasses.dataclass(frozen=True)
class _Asked:
    id: str
    text: str


class EndpointModel:
    """A model behind an OpenAI-compatible endpoint, with a ledger of its replies and a spending cap.

    Pictures go to this endpoint alone, as data URLs. A reply in the ledger is not asked for again, and one that follows
    no instruction is not repaired: it is a measurement.
    """

    def __init__(self, endpoint: Endpoint, prompt: Prompt, *, folder: Path, cap: int | None) -> None:
        self.name = endpoint.model
        self.about = f"{endpoint.model} at {endpoint.origin[1]}; {_describe_decoding(endpoint)}"
        self._crew = Crew(folder, cap=cap, num_repairs=0)
        self._interviewer = self._crew.interview(endpoint, prompt)

    @property
    def budget(self) -> Budget:
        """The spending cap, which stops new requests when the run has to stop."""
        return self._crew.budget

    async def fetch(self, case: str, messages: Sequence[Message], image: ShownImage | None) -> Entry:
        """Return the ledger's entry of a request, or ask; `RequestFailed` if that is given up."""
        shown = attach(messages, image.data_url) if image else list(messages)
        return await self._interviewer.fetch(_Asked(case, messages[-1]["content"]), shown)

    async def reply(self, request: Request) -> Reply:
        """See `Model`."""
        try:
            entry = await self.fetch(request.case, request.messages, request.image)
            text = reply_text(entry, model=self.name)
        except CannotAnnotate as error:
            return Reply.without(error)
        except RequestRefused as error:
            return Reply(None, f"refused: {error}")
        return Reply(text, is_cut=entry.finish == "length")

    async def close(self) -> None:
        """Close connection and ledger."""
        await self._crew.close()


def attach(messages: Sequence[Message], url: str) -> list[Message]:
    """Return the messages with a picture in the last one, before its text.

    >>> attach([{"role": "user", "content": "Read."}], "data:,")[0]["content"][0]
    {'type': 'image_url', 'image_url': {'url': 'data:,'}}
    """
    *others, last = messages
    shown = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": last["content"]}]
    return [*others, {**last, "content": shown}]


def _describe_decoding(endpoint: Endpoint) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in endpoint.decoding)


# A Qwen2.5-VL in a local folder as the model that answers; its replies are kept in a ledger, so that a run resumes.


LONGEST_REPLY = 2048


def load_local(source: str) -> QwenReader:
    """Return a Qwen2.5-VL of a folder, or of a Hugging Face id whose files are downloaded."""
    reader = load_qwen_reader(source)
    if reader.preprocessing is None:
        raise BadInput(f"--local: {source} is a text model; one with a vision tower is required")
    return reader


class LocalModel:
    """Answers requests on this machine's default device, one at a time and likeliest token first.

    Args:
      source: a folder, or a Hugging Face id whose files are downloaded; pictures never leave the machine.
    """

    def __init__(self, source: str, prompt: Prompt, *, folder: Path, longest: int = LONGEST_REPLY) -> None:
        self._reader, self._longest = load_local(source), longest
        self.name = Path(source).name
        device = jax.devices()[0].device_kind
        self.about = f"{self.name} on this machine ({device}); likeliest token, at most {longest} tokens a reply"
        identity = {
            "task": prompt.task,
            "prompt_version": prompt.version,
            "prompt_digest": prompt.digest,
            "model": self.name,
            "decoding": {"max_answer_tokens": longest, "weights": digest_checkpoint(self._reader.model.folder)},
        }
        self._answers = Answers(folder)
        self._ledger = Ledger(self._answers, identity)

    async def reply(self, request: Request) -> Reply:
        """See `Model`."""
        digest = digest_messages(attach(request.messages, request.image.data_url))
        entry = self._ledger.find(request.case, digest)
        if entry is None:
            entry = self._answer(request, digest)
            self._ledger.append(entry)
        try:
            return Reply(reply_text(entry, model=self.name), is_cut=entry.finish == "length")
        except CannotAnnotate as error:
            return Reply.without(error)

    def _answer(self, request: Request, digest: str) -> Entry:
        started = time.monotonic()
        picture = np.array(request.image.pixels.convert("RGB"))
        *others, last = (Turn(message["role"], message["content"]) for message in request.messages)
        reply = self._reader.answer([[*others, last._replace(images=[picture])]], longest=self._longest)[0]
        return Entry(
            report=request.case,
            text=digest_text(request.messages[-1]["content"]),
            request=digest,
            answer=reply.text,
            finish="length" if reply.is_cut else "stop",
            form="plain",
            prompt_tokens=reply.num_prompt,
            answer_tokens=reply.num_tokens,
            seconds=round(time.monotonic() - started, 3),
            time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )

    async def close(self) -> None:
        """Close the ledger."""
        self._answers.close()


def digest_checkpoint(folder: Path) -> str:
    """Return a digest of weights, config, preprocessing, tokenizer and chat template."""
    small = [folder / name for name in COPIED if (folder / name).is_file()]
    paths = sorted([*folder.glob("*.safetensors"), *small])
    return digest_text(" ".join(f"{path.name} {digest_file(path)}" for path in paths))
