"""A Qwen2.5-VL in a local folder as the model that answers; its replies are kept in a ledger, so that a run resumes."""

import datetime
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import UInt8

from stepcot_jax.annotate.llm.ledger import Ledger, digest_messages, digest_text
from stepcot_jax.annotate.llm.prompt import Message, Prompt
from stepcot_jax.annotate.llm.replies import Entry
from stepcot_jax.constrain.asked_models import Reply, Request, attach
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file
from stepcot_jax.policies.qwen.qwen_chat import QwenReader, Turn, load_qwen_reader
from stepcot_jax.policies.qwen.qwen_export import COPIED

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
        self._ledger = Ledger(folder, identity)

    async def reply(self, request: Request) -> Reply:
        """See `asked_models.Model`."""
        digest = digest_messages(attach(request.messages, [image.data_url for image in request.images]))
        entry = self._ledger.find(request.case, digest)
        if entry is None:
            entry = self._answer(request, digest)
            self._ledger.append(entry)
        return Reply(entry.answer, is_cut=entry.finish == "length")

    def _answer(self, request: Request, digest: str) -> Entry:
        started = time.monotonic()
        pictures = [np.array(image.pixels.convert("RGB")) for image in request.images]
        found = self._reader.answer([write_turns(request.messages, pictures)], longest=self._longest)[0]
        return Entry(
            report=request.case,
            text=digest_text(request.messages[-1]["content"]),
            request=digest,
            answer=found.text,
            finish="length" if found.is_cut else "stop",
            form="plain",
            prompt_tokens=found.num_prompt,
            answer_tokens=found.num_tokens,
            seconds=round(time.monotonic() - started, 3),
            time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )

    async def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()


def write_turns(messages: Sequence[Message], pictures: Sequence[UInt8[np.ndarray, "height width 3"]]) -> list[Turn]:
    """Return messages as the turns of a chat, with the pictures in the last one."""
    turns = [Turn(message["role"], message["content"]) for message in messages]
    return [*turns[:-1], turns[-1]._replace(images=pictures)]


def _digest_checkpoint(folder: Path) -> str:
    """Return a digest of weights, config, preprocessing, tokenizer and chat template.

    Another checkpoint, or the same one with another of these files, never answers from this one's ledger.
    """
    small = [folder / name for name in COPIED if (folder / name).is_file()]
    paths = sorted([*folder.glob("*.safetensors"), *small])
    return digest_text(" ".join(f"{path.name} {digest_file(path)}" for path in paths))
