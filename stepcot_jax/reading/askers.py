"""The models that `question_files` asks: a run and a Qwen2.5-VL in batches, an endpoint with requests in flight."""

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from stepcot_jax.annotate.annotation import Aside, Provenance, Reason
from stepcot_jax.annotate.llm.client import Endpoint
from stepcot_jax.annotate.llm.crew import process_items
from stepcot_jax.annotate.llm.prompts import Prompt
from stepcot_jax.data.images.preprocessing import drop_equal_channels, resize_image
from stepcot_jax.data.questions.reply_files import ReplyLine
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file
from stepcot_jax.policies.qwen_chat import Turn
from stepcot_jax.policies.qwen_inputs import QwenPrompt
from stepcot_jax.reading.chat_models import EndpointModel, ShownImage, digest_checkpoint, load_local
from stepcot_jax.reading.policy_reader import PolicyReader
from stepcot_jax.reading.question_files import REQUEST, Asker, Question, Tell, naming

_Given = TypeVar("_Given")
_Reply: TypeAlias = tuple[str, bool, tuple[int, int] | None]  # text, whether it was cut, and the size of the picture
_REFUSALS: dict[str, str] = {Reason.REFUSED: "refusal", Reason.FILTERED: "content_filter"}


def run_asker(reader: PolicyReader, *, num_at_once: int = 32) -> Asker:
    """Return the trained policy of a run, which takes the likeliest token each time.

    In place of a picture that is not shown it sees the grey that its preprocessing turns into 0.
    """
    trained, side = reader.trained, reader.trained.preprocessing.size
    blank = np.full((side, side), round(255 * float(np.mean(trained.preprocessing.mean))), np.uint8)

    def prepare(question: Question) -> tuple[np.ndarray, list[int]]:
        with naming("question"):
            tokens = reader.encode(question.text)
        if not question.shows_picture:
            return blank, tokens
        pixels = drop_equal_channels(np.array(question.read_picture(trained.run.max_pixels)))
        return resize_image(pixels, trained.preprocessing), tokens

    def reply(given: Sequence[tuple[np.ndarray, list[int]]]) -> list[_Reply]:
        filled = [*given, *[given[-1]] * (num_at_once - len(given))]  # so that one program answers all batches
        return [(text, is_cut, (side, side)) for text, is_cut in reader.answer_prompts(filled)[: len(given)]]

    settings = digest_file(trained.workdir / "settings.json")[1][:16]
    asked = f"{trained.phase} at update {trained.step}, settings {settings}, likeliest token"
    ask = functools.partial(_ask_in_batches, size=num_at_once, prepare=prepare, reply=reply)
    return Asker(trained.workdir.resolve().name, asked, ask)


def local_asker(source: str, *, longest: int, longest_side: int, num_at_once: int = 8) -> Asker:
    """Return a Qwen2.5-VL of a folder or a Hugging Face id, which takes the likeliest token each time."""
    reader = load_local(source)

    def prepare(question: Question) -> QwenPrompt:
        images = list[np.ndarray]()
        if question.shows_picture:
            shown = ShownImage(question.read_picture, longest_side=longest_side)
            images.append(np.array(shown.pixels.convert("RGB")))
        with naming("question"):
            return reader.write_prompt([Turn("user", question.text, images)])

    def reply(given: Sequence[QwenPrompt]) -> list[_Reply]:
        replies = reader.answer_prompts(given, longest=longest)
        sizes = [reader.size_of(prompt.images[0]) if prompt.images else None for prompt in given]
        return [(chat.text, chat.is_cut, size) for chat, size in zip(replies, sizes, strict=True)]

    weights = digest_checkpoint(reader.model.folder)[:16]
    asked = f"weights {weights}, likeliest token, at most {longest} tokens a reply and {longest_side} pixels a side"
    ask = functools.partial(_ask_in_batches, size=num_at_once, prepare=prepare, reply=reply)
    return Asker(Path(source).name, asked, ask)


def _ask_in_batches(
    questions: Iterable[Question],
    tell: Tell,
    *,
    size: int,
    prepare: Callable[[Question], _Given],
    reply: Callable[[Sequence[_Given]], list[_Reply]],
) -> None:
    batch = list[tuple[Question, _Given]]()

    def ask() -> None:
        replies = reply([given for _, given in batch])
        for (question, _), (text, is_cut, size) in zip(batch, replies, strict=True):
            tell(question, ReplyLine(question.id, text, "length" if is_cut else "stop", image_size=size))
        batch.clear()

    for question in questions:
        try:
            batch.append((question, prepare(question)))
        except BadInput as error:
            tell(question, ReplyLine(question.id, None, error=str(error)))
        if len(batch) == size:
            ask()
    if batch:
        ask()


def endpoint_asker(
    endpoint: Endpoint, *, folder: Path, cap: int | None, longest_side: int, num_at_once: int = 4
) -> Asker:
    """Return a model behind an OpenAI-compatible endpoint, with a ledger of its answers and a spending cap."""

    async def ask(questions: Iterable[Question], tell: Tell) -> None:
        model = EndpointModel(endpoint, Prompt("answer", "", "", "", "", {}), folder=folder, cap=cap)

        async def process(question: Question) -> tuple[ReplyLine, Provenance]:
            image = ShownImage(question.read_picture, longest_side=longest_side) if question.shows_picture else None
            try:
                size = image.pixels.size if image else None
            except BadInput as error:
                return ReplyLine(question.id, None, error=str(error)), ()
            try:
                entry = await model.fetch(question.id, [{"role": "user", "content": question.text}], image)
            finally:
                if image:
                    image.release()  # thousands of pictures would fill the memory
            if entry.answer is not None:
                return ReplyLine(question.id, entry.answer, entry.finish, image_size=size), ()
            finish = _REFUSALS.get(entry.problem)
            failure = None if finish else f"{REQUEST}: {entry.problem}"
            return ReplyLine(question.id, "" if finish else None, finish, error=failure), ()

        try:
            async for outcome in process_items(questions, process, budget=model.budget, concurrency=num_at_once):
                tell(outcome.item, outcome.made or _give_up(outcome.item, outcome.aside))
        finally:
            await model.close()

    decoding = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in endpoint.decoding)
    asked = f"{endpoint.origin[1]}, {decoding}, at most {longest_side} pixels a side"
    return Asker(endpoint.model, asked, lambda questions, tell: asyncio.run(ask(questions, tell)))


def _give_up(question: Question, aside: Aside | None) -> ReplyLine:
    finish = "refusal" if aside and aside.reason is Reason.REFUSED else None
    error = f"{REQUEST}: {aside.detail if aside else ''}"
    return ReplyLine(question.id, "" if finish else None, finish, error=error)
