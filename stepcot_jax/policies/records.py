"""Records as tokens: prompt, target, and the part of the reply that each token of the target belongs to."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stepcot_jax.data.questions.check_examples import CHECK_CLOSES, CHECK_OPENS, CheckExample
from stepcot_jax.data.questions.making import write_texts
from stepcot_jax.host.errors import BadInput
from stepcot_jax.policies.policy_files import PolicyLengths
from stepcot_jax.policies.tokenizers import Tokenizer
from stepcot_jax.reasoning.dialects import answer_start, read_reply, write_question
from stepcot_jax.record import Record

NO_PART, ANSWER, REASONING = -1, 0, 1
"""Parts of a reply, as `losses.sequence.sequence_loss` takes their weights."""

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class EncodedRecord:
    """A record as tokens; `parts` has `ANSWER` or `REASONING` for each one of `target`, whose last is the stop."""

    prompt: tuple[int, ...]
    target: tuple[int, ...]
    parts: tuple[int, ...]

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.prompt) + len(self.target)


@dataclasses.dataclass(frozen=True)
class RecordEncoder:
    """Writes records in a dialect and encodes them."""

    tokenizer: Tokenizer
    dialect: str
    with_thinking: bool = True

    def texts(self, record: Record) -> tuple[str, str]:
        """Return prompt and reply."""
        return write_texts(record, self.dialect, with_thinking=self.with_thinking)

    def encode_prompt(self, record: Record) -> tuple[int, ...]:
        """Return the tokens of the prompt."""
        text = write_question(record, self.dialect, with_thinking=self.with_thinking)
        return tuple(self.tokenizer.encode_prompt(text))

    def encode(self, record: Record) -> EncodedRecord:
        """Return a record's tokens. Reasoning and answer are encoded apart, so that no token lies in both."""
        _, reply = self.texts(record)
        start = answer_start(reply, self.dialect)
        reasoning, answer = (self.tokenizer.encode(text) for text in (reply[:start], reply[start:]))
        answer = [*answer, self.tokenizer.stop]
        parts = [REASONING] * len(reasoning) + [ANSWER] * len(answer)
        return EncodedRecord(self.encode_prompt(record), (*reasoning, *answer), tuple(parts))

    def check_round_trip(self, record: Record, tokens: EncodedRecord) -> None:
        """Refuse a tokenizer that changes scored parts of a reply, such as one without capitals or line breaks."""
        reply, decoded = self.texts(record)[1], self.tokenizer.decode(tokens.target)
        if decoded == reply:
            return
        readings = [read_reply(text, self.dialect, with_thinking=self.with_thinking) for text in (reply, decoded)]
        written, read_back = ((reading.answer, reading.references, reading.problems) for reading in readings)
        if written != read_back:
            raise BadInput(
                f"decoding changes the reply of record {record.id[:80]!r} to {decoded[-80:]!r}; expected the answer "
                f"and boxes of {reply[-80:]!r}"
            )


def count_cut(encoded: Mapping[int, EncodedRecord], reply_length: int) -> int:
    """Return the number of training replies that are longer than a sampled reply can be."""
    lengths = [len(record.target) for record in encoded.values()]
    number = sum(length > reply_length for length in lengths)
    if number == len(lengths):
        raise BadInput(
            f"{reply_length} tokens cut every training reply, so that none can be well formed; they have "
            f"{min(lengths)} to {max(lengths)} (0: as many as the longest)"
        )
    return number


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizedRecords:
    """The records of a dataset as tokens."""

    tokenizer: Tokenizer
    prompts: Sequence[tuple[int, ...]]  # by record index
    encoded: Mapping[int, EncodedRecord]  # by index of training records; some show a wrong attempt and a check
    lengths: PolicyLengths
    longest_check: int  # tokens of the longest training reply with a self-check
    num_cut: int  # training replies that are longer than a sampled reply can be


def pack_records(lengths: Sequence[int], image_of: Sequence[int], *, longest: int) -> list[tuple[int, ...]]:
    """Divide records into packs of one image each, in order; a record that is longer than `longest` is a pack alone.

    >>> pack_records([3, 4, 2, 5], [0, 0, 0, 1], longest=7)
    [(0, 1), (2,), (3,)]
    """
    by_image: dict[int, list[int]] = {}
    for place, image in enumerate(image_of):
        by_image.setdefault(int(image), []).append(place)
    packs: list[list[int]] = []
    for places in by_image.values():
        room = -1
        for place in places:
            if lengths[place] > room:
                packs.append([])
                room = longest
            packs[-1].append(place)
            room -= lengths[place]
    return [tuple(pack) for pack in packs]


def lay_out_pack(records: Iterable[EncodedRecord], length: int) -> Arrays:
    """Return the tokens of a pack in a row, as `PrefixVlm.score_packed` and `sequence_loss` take them.

    Returns:
      "tokens", "segments", "places", and for the token after each "targets" and "parts", int32 [length].
    """
    row = {name: np.zeros(length, np.int32) for name in ("tokens", "segments", "places", "targets")}
    row["parts"] = np.full(length, NO_PART, np.int32)
    start = 0
    for segment, record in enumerate(records, start=1):
        end, reply = start + record.length, start + len(record.prompt)
        if end > length:
            raise ValueError(f"{end} tokens do not fit in a row of {length}")
        row["tokens"][start:end] = (*record.prompt, *record.target)
        row["segments"][start:end] = segment
        row["places"][start:end] = np.arange(record.length)
        row["targets"][reply - 1 : end - 1] = record.target
        row["parts"][reply - 1 : end - 1] = record.parts
        start = end
    return row


def lay_out_prompts(prompts: Sequence[Sequence[int]], length: int, *, pad: int) -> Arrays:
    """Return prompts padded on the right: "prompts" int32 [case, length] and "lengths" int32 [case]."""
    rows = np.full((len(prompts), length), pad, np.int32)
    for row, prompt in zip(rows, prompts, strict=True):
        if len(prompt) > length:
            raise BadInput(f"a prompt has {len(prompt)} tokens; at most {length}, the longest of training")
        row[: len(prompt)] = prompt
    return {"prompts": rows, "lengths": np.array([len(prompt) for prompt in prompts], np.int32)}


def stack_rows(rows: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """Return rows of arrays by name as arrays of rows."""
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


# Self-checks as tokens: wrong attempt, stop, <CHECK>, check, </CHECK>, second attempt, stop.
#
# The stop token ends a first attempt, as it ends every reply: whether a check follows is never the policy's choice,
# since it takes the true answer to know. In training <CHECK> is given; the loss counts the check and what follows.


@dataclasses.dataclass(frozen=True)
class CheckMarks:
    """Tokens around a check."""

    opens: tuple[int, ...]
    closes: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "CheckMarks":
        """Return a tokenizer's marks."""
        return cls(tuple(tokenizer.encode(CHECK_OPENS)), tuple(tokenizer.encode(CHECK_CLOSES)))

    def find_close(self, tokens: Sequence[int]) -> int:
        """Return where the first </CHECK> begins; -1 without one."""
        width = len(self.closes)
        places = range(len(tokens) - width + 1)
        return next((place for place in places if tuple(tokens[place : place + width]) == self.closes), -1)


def check_texts(examples: Mapping[int, CheckExample]) -> list[str]:
    """Return texts and marks of examples, to count a vocabulary; apart, so that no token lies in both."""
    return [CHECK_OPENS, CHECK_CLOSES, *(example.check for example in examples.values())]


def longest_check(examples: Mapping[int, CheckExample], tokenizer: Tokenizer) -> int:
    """Return the tokens of the longest check, marks left aside; 0 without examples."""
    return max((len(tokenizer.encode(example.check)) for example in examples.values()), default=0)


def encode_checks(
    examples: Mapping[int, CheckExample], encoded: Mapping[int, EncodedRecord], tokenizer: Tokenizer
) -> dict[int, EncodedRecord]:
    """Return the targets of examples by place. The wrong attempt and what is given has no part in the loss."""
    marks = CheckMarks.of(tokenizer)
    found = {}
    for place, example in examples.items():
        record, wrong = encoded[place], encoded[example.wrong].target
        check = (*tokenizer.encode(example.check), *marks.closes)
        if not example.shows_check:
            given = (*wrong, *marks.opens, *marks.closes)
            target, parts = (*given, *record.target), (*(NO_PART,) * len(given), *record.parts)
        else:
            given = (*wrong, *marks.opens)
            target = (*given, *check, *record.target)
            parts = (*(NO_PART,) * len(given), *(REASONING,) * len(check), *record.parts)
        found[place] = EncodedRecord(record.prompt, target, parts)
    return found
