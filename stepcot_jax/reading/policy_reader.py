"""Answer questions about radiographs with a trained policy: `load(workdir).answer(image, question)`."""

import collections
import dataclasses
import difflib
import functools
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt8

from stepcot_jax.box import Box, Corners, convert, pixels
from stepcot_jax.data.images.drawn_boxes import draw_named_boxes
from stepcot_jax.data.images.preprocessing import repeat_grey, resize_image
from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import make_printable
from stepcot_jax.policies.policy_files import AnyTokenizer
from stepcot_jax.policies.records import lay_out_prompts
from stepcot_jax.policies.sampling import Sampling, generate, reply_in_batches, rollout_keys
from stepcot_jax.policies.tokenizers import Vocabulary, split_pieces
from stepcot_jax.reading.radiographs import read_unresized
from stepcot_jax.reasoning.dialects import interpret_answer, read_reply, write_question
from stepcot_jax.reasoning.levels import LEVELS
from stepcot_jax.reasoning.plain_replies import PLAIN
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import Kind, Record
from stepcot_jax.rewards.answers import why_unread
from stepcot_jax.run.stored import TEST_RECORDS, StoredPolicy, StoredRun, read_policy

# A user's question: its kind, its prompt, and the message on words that a closed vocabulary lacks.


_YES_OR_NO = re.compile(r"\W*(?:is|are|was|were|does|do|did|has|have|had|can|could|should|will|would)\b", re.IGNORECASE)
_FOR_WORDS = re.compile(r"\W*(?:(?:on|in|at|from|to|of|for) )?(?:what|which|where|who|how)\b", re.IGNORECASE)
_ANSWERS: dict[str, str | tuple[str, ...]] = {"closed": "Yes", "open": "?", "single": "A", "multi": ("A",)}
_WORD = re.compile(r"[^\W\d_]+")
_NUM_NEAR = 4


def guess_kind(question: str, *, choices: Sequence[str] = ()) -> Kind:
    """Return the kind of a question: "single" with choices, "closed" if it asks for yes or no, else "open"."""
    if choices:
        return "single"
    return "closed" if _YES_OR_NO.match(question) else "open"


def ask_question(
    question: str,
    *,
    image_size: tuple[int, int],
    choices: Sequence[str] = (),
    kind: str | None = None,
    modality: str = "",
    organ: str = "",
) -> Record:
    """Return a question as a record, whose answer is a placeholder: of words for a closed "which", else yes or no."""
    if isinstance(choices, str):
        raise BadInput(f"choices: {choices[:80]!r} is one text; a sequence of texts is required")
    kind = kind or guess_kind(question, choices=choices)
    if kind not in _ANSWERS:
        raise BadInput(f"kind: {kind!r} is not one of {', '.join(get_args(Kind))}")
    return Record(
        id="asked",
        image="image",
        image_size=image_size,
        patient="asked",
        kind=kind,  # type: ignore[arg-type]
        question=question,
        options=tuple(choices),
        answer="?" if kind == "closed" and _FOR_WORDS.match(question) else _ANSWERS[kind],
        modality=modality,
        organ=organ,
    )


def list_questions(workdir: pathlib.Path, *, most: int) -> list[str]:
    """Return the most frequent questions without choices of a run's test records; none without the file."""
    counts = collections.Counter(record.question for record in _read_questions(workdir) if not record.options)
    return [question for question, _ in counts.most_common(most)]


def _read_questions(workdir: pathlib.Path) -> Sequence[Record]:
    """Return the run's test records; none if the file is missing or cannot be used."""
    try:
        return read_vqa_records(workdir / TEST_RECORDS, on_bad_record="skip").records
    except BadInput:
        return ()


def encode_prompt(
    record: Record, tokenizer: AnyTokenizer, run: StoredRun, *, prompt_length: int, workdir: pathlib.Path
) -> list[int]:
    """Return the tokens of a question's prompt, in the words of the run's dialect."""
    prompt = write_question(record, run.dialect, with_thinking=run.with_thinking)
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


def _explain_unknown(record: Record, prompt: str, tokenizer: Vocabulary, workdir: pathlib.Path) -> str:
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


def _is_known(piece: str, tokenizer: AnyTokenizer) -> bool:
    try:
        tokenizer.encode(piece)
    except BadInput:
        return False
    return True


def _known_words(tokenizer: Vocabulary) -> list[str]:
    return sorted({word for piece in tokenizer.pieces for word in _WORD.findall(piece.casefold()) if len(word) > 1})


def _similar_questions(record: Record, workdir: pathlib.Path) -> list[str]:
    """Return the most similar questions of the run's test records that have the same kind."""
    same_kind = [other for other in _read_questions(workdir) if other.kind == record.kind]
    known = {other.question.casefold(): other.question for other in same_kind}
    near = difflib.get_close_matches(record.question.casefold(), known, n=_NUM_NEAR - 1, cutoff=0.0)
    return [make_printable(known[question]) for question in near]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answered:
    """A policy's reply to a question."""

    question: str
    kind: Kind  # kind of the question, of `record.KINDS`
    choices: tuple[str, ...]
    text: str  # the reply as generated
    reply: Reply  # the reply as its dialect reads it; `.problems` lists why it is not well formed
    answer: str | tuple[str, ...] | None  # by the kind; None if none could be read
    boxes: tuple[Box, ...]  # named boxes of the answer, corners in pixels of the image as given
    image_size: tuple[int, int]  # width and height of the image as given
    unread: Mapping[str, str] = dataclasses.field(default_factory=dict)  # why "answer" or "boxes" cannot be read
    picture: UInt8[np.ndarray, "height width 3"] = dataclasses.field(repr=False, compare=False)
    notes: tuple[str, ...] = ()  # what is odd about the picture in its DICOM header

    @property
    def answer_text(self) -> str:
        """The answer in words: letters with their choices; "" if no answer could be read."""
        if self.answer is None:
            return ""
        if not self.choices:
            return str(self.answer)
        by_letter = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", self.choices, strict=False))
        return ", ".join(f"{letter}: {by_letter[letter]}" for letter in self.answer)

    def draw(self) -> UInt8[np.ndarray, "height2 width2 3"]:
        """Return the picture with the boxes drawn; small pictures are enlarged."""
        return draw_named_boxes(self.picture, self.boxes)

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the picture, for JSON."""
        return {
            "question": self.question,
            "kind": self.kind,
            "choices": list(self.choices),
            "reply": self.text,
            "answer": list(self.answer) if isinstance(self.answer, tuple) else self.answer,
            "boxes": [{"name": region.label, "box": list(region.corners)} for region in self.boxes],
            "image_size": list(self.image_size),
            "unread": dict(self.unread),
            "problems": list(self.reply.problems),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        """Return the reply, the answer that was read from it, and its boxes."""
        lines = [f"WARNING: the {part} of the reply cannot be read: {why}" for part, why in self.unread.items()]
        lines += [self.text, "", f"answer: {self.answer_text or 'none could be read'}"]
        width, height = self.image_size
        for region in self.boxes:
            corners = ", ".join(f"{number:.0f}" for number in region.corners)
            lines.append(f"box: {region.label or 'without a name'} [{corners}] in pixels of {width} x {height}")
        if not self.boxes and self.reply.dialect not in (PLAIN, LEVELS):
            lines.append("box: none could be read" if "boxes" in self.unread else "box: none")
        if self.reply.problems:
            lines.append(f"not well formed: {'; '.join(self.reply.problems)}")
        lines += [f"note: {line}" for line in self.notes]
        return "\n".join(lines)


class PolicyReader:
    """Answers questions about radiographs; made by `load`. The first call compiles the network, which takes seconds.

    Attributes:
      trained: the run's policy, tokenizer and preprocessing.
    """

    def __init__(self, trained: StoredPolicy) -> None:
        self.trained = trained

    def answer(
        self,
        image: Any,
        question: str,
        *,
        choices: Sequence[str] = (),
        kind: str | None = None,
        modality: str = "",
        organ: str = "",
        greedy: bool = True,
        seed: int = 0,
        temperature: float = 1.0,
    ) -> Answered:
        """Answer a question about a radiograph.

        Args:
          image: a path, the bytes of a PNG, JPEG or DICOM file, or uint8 pixels [height, width] or [height, width, 3].
          question: in the words of the training records, if the run has a closed vocabulary.
          choices: bare texts without letters, 2 to 26; () for a question without.
          kind: "open", "closed", "single" or "multi"; None guesses: "single" with choices, "closed" if the question
            begins as one for yes or no, else "open".
          modality: of the picture, such as "CT", as the training records name it; the prompt then does. "" for none.
          organ: that the picture shows, such as "abdomen"; "" for none.
          greedy: take the likeliest token each time; False samples.
          seed: seed of the sample.
          temperature: temperature of the sample, > 0.

        Raises:
          BadInput: the image cannot be read, a word is unknown to the run's vocabulary, or kind and choices do not fit.
        """
        trained, size = self.trained, self.trained.preprocessing.size
        if not 0 < temperature < float("inf"):
            raise BadInput(f"temperature: {temperature} is not a finite number above 0")
        shown = {"modality": modality, "organ": organ}
        record = ask_question(question, image_size=(size, size), choices=choices, kind=kind, **shown)
        tokens = encode_prompt(
            record, trained.tokenizer, trained.run, prompt_length=trained.lengths.prompt_length, workdir=trained.workdir
        )
        picture, header = read_unresized(image, max_pixels=trained.run.max_pixels)
        sampling = Sampling(
            longest=trained.lengths.reply_length,
            stop=trained.tokenizer.stop,
            more_stops=trained.tokenizer.more_stops,
            temperature=1.0 if greedy else float(temperature),
            greedy=greedy,
        )
        replies = self._sample([picture], [tokens], sampling, length=trained.lengths.prompt_length, seed=seed)
        return self._read_answer(trained.tokenizer.decode(replies[0].tolist()), record, picture, header.notes)

    def _read_answer(self, text: str, record: Record, picture: np.ndarray, notes: tuple[str, ...]) -> Answered:
        run, size = self.trained.run, self.trained.preprocessing.size
        reply = read_reply(text, run.dialect, with_thinking=run.with_thinking)
        no_boxes = "; ".join(reply.problems) if reply.references is None else ""
        unread = {"answer": why_unread(reply, record)[0], "boxes": no_boxes}
        image_size = (picture.shape[1], picture.shape[0])
        return Answered(
            question=record.question,
            kind=record.kind,
            choices=record.options,
            text=text,
            reply=reply,
            answer=interpret_answer(reply, record),
            boxes=_scale_boxes(reply, read_size=size, image_size=image_size),
            image_size=image_size,
            unread={part: why for part, why in unread.items() if why},
            picture=repeat_grey(picture) if picture.ndim == 2 else picture,
            notes=notes,
        )

    def warm_up(self) -> None:
        """Compile the network for greedy replies, so that the first question does not wait."""
        blank, stop = np.zeros((8, 8), np.uint8), self.trained.tokenizer.stop
        self._sample([blank], [[stop]], self._greedy, length=self.trained.lengths.prompt_length)

    @property
    def _greedy(self) -> Sampling:
        tokenizer, longest = self.trained.tokenizer, self.trained.lengths.reply_length
        return Sampling(longest=longest, stop=tokenizer.stop, more_stops=tokenizer.more_stops, greedy=True)

    def can_continue(self, text: str) -> bool:
        """Return whether the tokenizer knows a text, so that a reply can begin with it."""
        return _is_known(text, self.trained.tokenizer)

    def reply_all(
        self,
        records: Sequence[Record],
        load: Callable[[Record], Any],
        *,
        begun: Sequence[str] = (),
        batch_size: int = 32,
        watch: Callable[[range], Iterable[int]] = iter,
        encode: Callable[[Record], list[int]] | None = None,
    ) -> list[str]:
        """Return greedy replies to questions about the pictures that `load` gives; each continues what is `begun`.

        `encode` gives the tokens of a question's prompt, which may be longer than those of training.
        """
        trained, starts = self.trained, begun or [""] * len(records)
        tokenizer, lengths = trained.tokenizer, trained.lengths
        encode = encode or functools.partial(
            encode_prompt,
            tokenizer=tokenizer,
            run=trained.run,
            prompt_length=lengths.prompt_length,
            workdir=trained.workdir,
        )
        prompts = [encode(record) + tokenizer.encode(start) for record, start in zip(records, starts, strict=True)]
        longest = max(map(len, prompts), default=1)

        def ask(rows: Sequence[int]) -> np.ndarray:
            pictures = [read_unresized(load(records[row]), max_pixels=trained.run.max_pixels)[0] for row in rows]
            return self._sample(pictures, [prompts[row] for row in rows], self._greedy, length=longest)

        size = min(batch_size, max(len(records), 1))
        texts = reply_in_batches(ask, len(records), batch_size=size, tokenizer=tokenizer, watch=watch)
        return [f"{start}{text}" for start, text in zip(starts, texts, strict=True)]

    def encode(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt that `reasoning.dialects.write_question` wrote, of no more than in training."""
        tokens = self.trained.tokenizer.encode_prompt(prompt)
        lay_out_prompts([tokens], self.trained.lengths.prompt_length, pad=0)
        return tokens

    def answer_prompts(self, given: Sequence[tuple[np.ndarray, Sequence[int]]]) -> list[tuple[str, bool]]:
        """Return the greedy reply to each picture and encoded prompt, and whether it was cut at the longest length."""
        (pictures, prompts), tokenizer = zip(*given, strict=True), self.trained.tokenizer
        replies = self._sample(pictures, prompts, self._greedy, length=self.trained.lengths.prompt_length).tolist()
        return [(tokenizer.decode(row), row[-1] not in (tokenizer.stop, *tokenizer.more_stops)) for row in replies]

    def _sample(
        self,
        pictures: Sequence[np.ndarray],
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        length: int,
        seed: int = 0,
    ) -> np.ndarray:
        """Return the tokens of a reply to each prompt, padded to `length`."""
        trained = self.trained
        resized = [resize_image(picture, trained.preprocessing) for picture in pictures]
        images = np.stack([repeat_grey(picture) if picture.ndim == 2 else picture for picture in resized])
        laid_out = lay_out_prompts(prompts, length, pad=trained.tokenizer.pad)
        replies = generate(
            trained.network,
            trained.params,
            trained.see(images),
            jnp.asarray(laid_out["prompts"]),
            jnp.asarray(laid_out["lengths"]),
            sampling=sampling,
            keys=rollout_keys(jax.random.key(seed), first=0, number=len(prompts)),
        )
        return np.asarray(replies.tokens)


def load_reader(workdir: str | os.PathLike[str], *, phase: str | None = None) -> PolicyReader:
    """Load a trained policy as a reader that answers questions."""
    return PolicyReader(read_policy(pathlib.Path(workdir), phase=phase))


def _scale_boxes(reply: Reply, *, read_size: int, image_size: tuple[int, int]) -> tuple[Box, ...]:
    side = (read_size, read_size)
    corners = convert(reply.boxes(side), source=pixels(side), target=pixels(image_size))
    return tuple(Box(region.label, _corners(box)) for region, box in zip(reply.references or (), corners, strict=True))


def _corners(box: np.ndarray) -> Corners:
    x1, y1, x2, y2 = map(float, box)
    return x1, y1, x2, y2
