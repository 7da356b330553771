"""The models that `question_files` asks: a run and a Qwen2.5-VL in batches, an endpoint with requests in flight."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from stepcot_jax.annotate.annotation import Aside, Provenance, Reason
from stepcot_jax.annotate.llm.client import Endpoint
from stepcot_jax.annotate.llm.crew import process_items
from stepcot_jax.annotate.llm.prompts import Prompt
from stepcot_jax.annotate.llm.replies import Entry
from stepcot_jax.data.images.preprocessing import drop_equal_channels, resize_image
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file
from stepcot_jax.host.machine import map_in_threads
from stepcot_jax.policies.qwen_chat import Turn
from stepcot_jax.policies.qwen_inputs import QwenPrompt
from stepcot_jax.reading.chat_models import EndpointModel, Request, ShownImage, digest_checkpoint, load_local
from stepcot_jax.reading.policy_reader import PolicyReader
from stepcot_jax.reading.question_files import NUM_DIGITS, QUESTION, REQUEST, Form, Question, Said, Tell, naming

_NUM_THREADS = 4
_Given = TypeVar("_Given")


class RunAsker:
    """The trained policy of a run, likeliest token first."""

    def __init__(self, reader: PolicyReader, *, form: Form, num_at_once: int = 32) -> None:
        self._reader, self.form, self._num_at_once = reader, form, num_at_once
        trained = reader.trained
        self.name = trained.workdir.resolve().name
        settings = digest_file(trained.workdir / "settings.json")[1][:NUM_DIGITS]
        self.asked = f"{trained.phase} at update {trained.step}, settings {settings}; likeliest token; {form}"

    def ask(self, questions: Iterable[Question], tell: Tell) -> None:
        """See `Asker`."""
        trained, size = self._reader.trained, self._num_at_once
        side = trained.preprocessing.size

        def see(question: Question) -> np.ndarray:
            pixels = drop_equal_channels(np.array(question.read_picture(trained.max_pixels)))
            return resize_image(pixels, trained.preprocessing)

        def prepare(question: Question, picture: np.ndarray) -> tuple[np.ndarray, list[int]]:
            return picture, self._reader.encode(question.text)

        def reply(given: Sequence[tuple[np.ndarray, list[int]]]) -> list[Said]:
            filled = [*given, *[given[-1]] * (size - len(given))]  # so that one program answers all batches
            replies = self._reader.answer_prompts(*map(list, zip(*filled, strict=True)))[: len(given)]
            return [Said(text, "length" if is_cut else "stop", image_size=(side, side)) for text, is_cut in replies]

        _ask_in_batches(questions, tell, size=size, see=see, prepare=prepare, reply=reply)


class LocalAsker:
    """A Qwen2.5-VL of a folder or a Hugging Face id, without any training, likeliest token first."""

    def __init__(self, source: str, *, form: Form, longest: int, longest_side: int, num_at_once: int = 8) -> None:
        self._reader, self._longest, self._longest_side = load_local(source), longest, longest_side
        self.form, self._num_at_once, self.name = form, num_at_once, Path(source).name
        weights = digest_checkpoint(self._reader.model.folder)[:NUM_DIGITS]
        limits = f"at most {longest} tokens a reply and {longest_side} pixels a side"
        self.asked = f"weights {weights}; likeliest token, {limits}; {form}"

    def ask(self, questions: Iterable[Question], tell: Tell) -> None:
        """See `Asker`."""

        def see(question: Question) -> np.ndarray:
            shown = ShownImage(question.read_picture, longest_side=self._longest_side)
            return np.array(shown.pixels.convert("RGB"))

        def prepare(question: Question, picture: np.ndarray) -> QwenPrompt:
            return self._reader.write_prompt([Turn("user", question.text, [picture])])

        def reply(given: Sequence[QwenPrompt]) -> list[Said]:
            replies = self._reader.answer_prompts(given, longest=self._longest)
            return [
                Said(said.text, "length" if said.is_cut else "stop", image_size=self._reader.size_of(prompt.images[0]))
                for prompt, said in zip(given, replies, strict=True)
            ]

        _ask_in_batches(questions, tell, size=self._num_at_once, see=see, prepare=prepare, reply=reply)


def _ask_in_batches(
    questions: Iterable[Question],
    tell: Tell,
    *,
    size: int,
    see: Callable[[Question], np.ndarray],
    prepare: Callable[[Question, np.ndarray], _Given],
    reply: Callable[[Sequence[_Given]], list[Said]],
) -> None:
    """Ask in batches; threads `see` the pictures of the next ones."""

    def try_to_see(question: Question) -> np.ndarray | BadInput:
        try:
            return see(question)
        except BadInput as error:
            return error

    def ask(batch: list[tuple[Question, _Given]]) -> None:
        for (question, _), said in zip(batch, reply([given for _, given in batch]), strict=True):
            tell(question, said)

    batch = list[tuple[Question, _Given]]()
    for question, picture in map_in_threads(try_to_see, questions, num_threads=_NUM_THREADS, num_ahead=2 * size):
        try:
            if isinstance(picture, BadInput):
                raise picture
            with naming(QUESTION):
                batch.append((question, prepare(question, picture)))
        except BadInput as error:
            tell(question, Said(None, error=str(error)))
        if len(batch) == size:
            ask(batch)
            batch.clear()
    if batch:
        ask(batch)


class EndpointAsker:
    """A model behind an OpenAI-compatible endpoint, with a ledger of its answers and a spending cap."""

    def __init__(
        self, endpoint: Endpoint, *, form: Form, folder: Path, cap: int | None, longest_side: int, num_at_once: int = 4
    ) -> None:
        self._endpoint, self._folder, self._cap = endpoint, folder, cap
        self.form, self._longest_side, self._num_at_once, self.name = form, longest_side, num_at_once, endpoint.model
        decoding = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in endpoint.decoding)
        self.asked = f"{endpoint.origin[1]}; {decoding}, at most {longest_side} pixels a side; {form}"

    def ask(self, questions: Iterable[Question], tell: Tell) -> None:
        """See `Asker`."""
        asyncio.run(self._ask(questions, tell))

    async def _ask(self, questions: Iterable[Question], tell: Tell) -> None:
        prompt = Prompt("answer", "", str(self.form), "", "", {})
        model = EndpointModel(self._endpoint, prompt, folder=self._folder, cap=self._cap)

        async def process(question: Question) -> tuple[Said, Provenance]:
            image = ShownImage(question.read_picture, longest_side=self._longest_side)
            try:
                size = image.pixels.size
            except BadInput as error:
                return Said(None, error=str(error)), ()
            try:
                request = Request(question.id, [{"role": "user", "content": question.text}], image)
                return _read_entry(await model.fetch(request), size), ()
            finally:
                image.release()  # thousands of pictures would fill the memory

        try:
            outcomes = process_items(questions, process, budget=model.budget, concurrency=self._num_at_once)
            async for outcome in outcomes:
                tell(outcome.item, outcome.made or _give_up(outcome.aside))
        finally:
            await model.close()


def _read_entry(entry: Entry, image_size: tuple[int, int]) -> Said:
    if entry.answer is not None:
        return Said(entry.answer, entry.finish, image_size=image_size)
    refusals: dict[str, str] = {Reason.REFUSED: "refusal", Reason.FILTERED: "content_filter"}
    if entry.problem in refusals:
        return Said("", refusals[entry.problem])
    return Said(None, error=f"{REQUEST}: {entry.problem}")


def _give_up(aside: Aside | None) -> Said:
    """Return what came of a request that the endpoint refused, or that was given up."""
    is_refused = aside is not None and aside.reason is Reason.REFUSED
    error = f"{REQUEST}: {aside.detail if aside else ''}"
    return Said("", "refusal", error=error) if is_refused else Said(None, error=error)
