"""Models that answer the dialogues: behind an OpenAI-compatible endpoint, in a local folder, or simulated.

Each of them implements the protocol `Model`.
"""

import dataclasses
import datetime
import functools
import hashlib
import json
import string
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from stepcot_jax.annotate.annotation import CannotAnnotate, Reason
from stepcot_jax.annotate.llm.answers import Answers, Ledger, digest_messages, digest_text
from stepcot_jax.annotate.llm.client import Budget, Endpoint, RequestRefused
from stepcot_jax.annotate.llm.crew import Crew
from stepcot_jax.annotate.llm.prompts import Message, Prompt
from stepcot_jax.annotate.llm.replies import Entry, reply_text
from stepcot_jax.annotate.recipes.pictures import write_data_url
from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file
from stepcot_jax.policies.qwen_chat import QwenReader, Turn, load_qwen_reader
from stepcot_jax.policies.qwen_weights import COPIED
from stepcot_jax.reasoning.endings import goes_on_behind
from stepcot_jax.tools.constrain.levels import DIAGNOSIS, Dialogue, Key, position_of


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
    """Answers dialogues."""

    name: str
    about: str

    async def reply(self, request: Request) -> Reply:
        """Answer one dialogue."""

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

    async def reply(self, request: Request) -> Reply:
        """See `Model`."""
        messages = attach(request.messages, [image.data_url for image in request.images])
        about = _Asked(request.case, request.messages[-1]["content"])
        try:
            text, entry = await self._interviewer.hear(about, messages)
        except CannotAnnotate as error:
            return Reply.without(error)
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


def _describe_decoding(endpoint: Endpoint) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in endpoint.decoding)


# A Qwen2.5-VL in a local folder as the model that answers; its replies are kept in a ledger, so that a run resumes.


LONGEST_REPLY = 2048


class LocalModel:
    """Answers dialogues on this machine's default device, one at a time and likeliest token first.

    Args:
      source: a folder, or a Hugging Face id whose files are downloaded; pictures never leave the machine.
    """

    def __init__(self, source: str, prompt: Prompt, *, folder: Path, longest: int = LONGEST_REPLY) -> None:
        self._reader: QwenReader = load_qwen_reader(source)
        if self._reader.preprocessing is None:
            raise BadInput(f"--local: {source} is a text model; one with a vision tower is required")
        self._longest = longest
        self.name = Path(source).name
        device = jax.devices()[0].device_kind
        self.about = f"{self.name} on this machine ({device}); likeliest token, at most {longest} tokens a reply"
        identity = {
            "task": prompt.task,
            "prompt_version": prompt.version,
            "prompt_digest": prompt.digest,
            "model": self.name,
            "decoding": {"max_answer_tokens": longest, "weights": _digest_checkpoint(self._reader.model.folder)},
        }
        self._answers = Answers(folder)
        self._ledger = Ledger(self._answers, identity)

    async def reply(self, request: Request) -> Reply:
        """See `Model`."""
        digest = digest_messages(attach(request.messages, [image.data_url for image in request.images]))
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
        pictures = [np.array(image.pixels.convert("RGB")) for image in request.images]
        reply = self._reader.answer([as_turns(request.messages, pictures)], longest=self._longest)[0]
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


def as_turns(messages: Sequence[Message], pictures: Sequence[UInt8[np.ndarray, "height width 3"]]) -> list[Turn]:
    """Return messages as the turns of a chat, with the pictures in the last one."""
    turns = [Turn(message["role"], message["content"]) for message in messages]
    return [*turns[:-1], turns[-1]._replace(images=pictures)]


def _digest_checkpoint(folder: Path) -> str:
    """Return a digest of weights, config, preprocessing, tokenizer and chat template."""
    small = [folder / name for name in COPIED if (folder / name).is_file()]
    paths = sorted([*folder.glob("*.safetensors"), *small])
    return digest_text(" ".join(f"{path.name} {digest_file(path)}" for path in paths))


# A simulated model with known accuracies, to try the measurement offline and to check it.
#
# It reads a case through a noisy copy of its true answers. Each step is read right with a known probability. The
# diagnosis is right with probability `direct` if nothing else is in the dialogue; each right answer to an earlier step
# in the dialogue raises that by the step's gain, each wrong one lowers it by the step's loss. It also breaks
# constraints at known rates. These numbers are ours and describe no real model; the expected curve follows from them
# in closed form.


@dataclasses.dataclass(frozen=True)
class Faults:
    """How often a reply breaks constraints."""

    cut: float = 0.02
    fenced: float = 0.10
    chatty: float = 0.05
    bare: float = 0.05
    mismatched: float = 0.03

    @property
    def readable(self) -> float:
        """Expected share of the answers that can be read."""
        return (1 - self.cut) * (1 - self.mismatched)


@dataclasses.dataclass(frozen=True)
class Skill:
    """Accuracies of a simulated model."""

    accuracy: tuple[float, ...]
    direct: float
    gains: tuple[float, ...]
    losses: tuple[float, ...]

    @staticmethod
    def default(chain: Chain) -> "Skill":
        """Return a skill for any chain: steps are read right in 90 to 65 % of cases, the diagnosis in 40 % at level 0.

        Right answers to all steps add 45 points to it, wrong ones take away 30.
        """
        count = chain.num_steps - 1
        return Skill(
            accuracy=tuple(np.linspace(0.9, 0.65, count).round(4).tolist()),
            direct=0.4,
            gains=(0.45 / max(count, 1),) * count,
            losses=(0.3 / max(count, 1),) * count,
        )


class SimulatedModel:
    """Answers from a noisy copy of the true answers; the same request always has the same reply."""

    def __init__(
        self,
        truth: Mapping[str, Sequence[int]],
        chain: Chain,
        *,
        skill: Skill | None = None,
        faults: Faults | None = None,
        seed: int = 0,
    ) -> None:
        self.name = "simulated model"
        self.about = f"A simulated model of known accuracy reads the true answers through noise, seed {seed}"
        self._truth, self._chain, self._seed = truth, chain, seed
        self.skill, self.faults = skill or Skill.default(chain), faults or Faults()

    async def reply(self, request: Request) -> Reply:
        """See `Model`."""
        case, dialogue = request.case, request.dialogue
        fields = {
            field: {"reasoning": "As read from the noisy copy.", "answer": self._write(case, dialogue, field)}
            for field in dialogue.fields
        }
        text, drawn = json.dumps(fields, indent=1), self._draw(case, dialogue.level, "form")
        if drawn < self.faults.cut:
            return Reply(text[: len(text) // 2])
        if (drawn := drawn - self.faults.cut) < self.faults.fenced:
            return Reply(f"```json\n{text}\n```")
        return Reply(f"Here is my reading.\n{text}" if drawn - self.faults.fenced < self.faults.chatty else text)

    async def close(self) -> None:
        """See `Model`."""

    def expected_accuracy(self, key: Key, truth: Int[np.ndarray, "case step"]) -> float:
        """Return the expected accuracy of the diagnosis, unreadable answers counted as wrong."""
        variant, level = key
        expected = np.full(len(truth), self.skill.direct)
        for position in range(min(level, self._chain.num_steps - 1)):
            accuracy, gain, loss = (
                values[position] for values in (self.skill.accuracy, self.skill.gains, self.skill.losses)
            )
            change = accuracy * gain - (1 - accuracy) * loss
            if variant != "constraints" and position < level - 1:
                change = gain if variant == "true" else self.faults.readable * change
            expected += change * (truth[:, position] != NOT_ANNOTATED)
        known = truth[:, -1] != NOT_ANNOTATED
        return float(self.faults.readable * expected[known].mean()) if known.any() else float("nan")

    def _draw(self, *about: object) -> float:
        """Return a number from 0 to 1, from a hash of the seed and `about`."""
        digest = hashlib.sha256(json.dumps([self._seed, *map(str, about)]).encode()).digest()
        return int.from_bytes(digest[:7], "big") / 256**7

    def _write(self, case: str, dialogue: Dialogue, field: str) -> str:
        step = self._chain.steps[position_of(field, self._chain.num_steps)]
        label = self._read(case, dialogue, position_of(field, self._chain.num_steps))
        letters, drawn = string.ascii_uppercase, self._draw(case, dialogue.level, field, "letter")
        if drawn < self.faults.mismatched:
            return f"{letters[(label + 1) % step.num_answers]}. {step.options[label]}"
        is_bare = drawn - self.faults.mismatched < self.faults.bare
        return f"({letters[label]})" if is_bare else step.lettered_options[label]

    def _read(self, case: str, dialogue: Dialogue, position: int) -> int:
        """Return the label that the model answers; a step before the last has the same one in all dialogues."""
        step, truth = self._chain.steps[position], self._truth[case][position]
        if position < self._chain.num_steps - 1:
            return self._choose(step, truth, self.skill.accuracy[position], case, position)
        known = {asked: self._read(case, dialogue, asked) for asked in dialogue.asked if asked != position}
        known |= dict(dialogue.given)
        chance = self.skill.direct
        for earlier, label in known.items():
            if self._truth[case][earlier] != NOT_ANNOTATED:
                is_right = label == self._truth[case][earlier]
                chance += self.skill.gains[earlier] if is_right else -self.skill.losses[earlier]
        return self._choose(step, truth, chance, case, dialogue.level, DIAGNOSIS)

    def _choose(self, step: Step, truth: int, chance: float, *about: object) -> int:
        """Return the true label with this chance, otherwise any other one; without a true label, any label."""
        if truth == NOT_ANNOTATED:
            return int(self._draw(*about, "any") * step.num_answers)
        if self._draw(*about, "right") < chance:
            return int(truth)
        return (truth + 1 + int(self._draw(*about, "wrong") * (step.num_answers - 1))) % step.num_answers
