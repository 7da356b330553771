"""What answers the dialogues: the protocol `Model`, and a model behind an OpenAI-compatible endpoint.

A local folder of weights is one more class with `reply`; nothing else here knows where a reply comes from.
"""

import base64
import dataclasses
import functools
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from stepcot_jax.annotate.annotation import CannotAnnotate
from stepcot_jax.annotate.llm.budget import Budget
from stepcot_jax.annotate.llm.client import RequestRefused
from stepcot_jax.annotate.llm.endpoint import Endpoint
from stepcot_jax.annotate.llm.prompt import Message, Prompt
from stepcot_jax.annotate.runs import Crew
from stepcot_jax.constrain.levels import Dialogue
from stepcot_jax.host.errors import BadInput


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
        written = io.BytesIO()
        self.pixels.save(written, "PNG")
        return f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"

    def release(self) -> None:
        """Free picture and data URL; the next use reads the picture again."""
        for name in ("pixels", "data_url"):
            self.__dict__.pop(name, None)


@dataclasses.dataclass(frozen=True)
class Request:
    """One dialogue for a model to answer.

    Attributes:
      case: name of the case in ledgers and files; it is never sent.
      dialogue: what the messages ask, for models that are simulated; it is never sent.
      messages: system and user message, as text.
      images: shown with the user message.
    """

    case: str
    dialogue: Dialogue
    messages: Sequence[Message]
    images: Sequence[ShownImage]


@dataclasses.dataclass(frozen=True)
class Reply:
    """A model's reply: its text, or None and why there is none; `is_cut` if it reached the limit of its length."""

    text: str | None
    problem: str = ""
    is_cut: bool = False


class Model(Protocol):
    """Answers dialogues.

    Attributes:
      name: of its rows in tables.
      about: how it was asked, in words, for the page.
    """

    name: str
    about: str

    async def reply(self, request: Request) -> Reply:
        """Answer one dialogue."""
        ...

    async def close(self) -> None:
        """Free what the model holds."""
        ...


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
        self._crew.charge_other_ledgers()

    @property
    def budget(self) -> Budget:
        """The spending cap, which stops new requests when the run has to stop."""
        return self._crew.budget

    async def reply(self, request: Request) -> Reply:
        """See `Model`."""
        messages = attach(request.messages, [image.data_url for image in request.images])
        about = _Asked(request.case, request.messages[-1]["content"])
        try:
            text, entry = await self._interviewer.ask(about, messages, lambda text: text)
        except CannotAnnotate as error:
            return Reply(None, error.detail)
        except RequestRefused as error:
            return Reply(None, f"refused: {error}")
        return Reply(text, is_cut=entry.finish == "length")

    async def close(self) -> None:
        """Close connection and ledger."""
        await self._crew.close()


def attach(messages: Sequence[Message], urls: Sequence[str]) -> list[Message]:
    """Return the messages with pictures in the last one, before its text.

    >>> attach([{"role": "user", "content": "Read."}], ["data:,"])[0]["content"][0]
    {'type': 'image_url', 'image_url': {'url': 'data:,'}}
    """
    if not urls:
        return [dict(message) for message in messages]
    *others, last = messages
    shown: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*others, {**last, "content": [*shown, {"type": "text", "text": last["content"]}]}]


def check_side(longest_side: int) -> int:
    """Return a side in pixels that pictures may be resized to."""
    if not 32 <= longest_side <= 4096:
        raise BadInput(f"--image-size: {longest_side} is not 32 to 4096 pixels")
    return longest_side


def _describe_decoding(endpoint: Endpoint) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in endpoint.decoding)
