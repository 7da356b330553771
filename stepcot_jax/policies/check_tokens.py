"""Self-checks as tokens: wrong attempt, stop, <CHECK>, check, </CHECK>, second attempt, stop.

The stop token ends a first attempt, as it ends every reply: whether a check follows is never the policy's choice, since
it takes the true answer to know. In training <CHECK> is given; the loss counts the check and what follows.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from stepcot_jax.data.grounded.check_examples import CHECK_CLOSES, CHECK_OPENS, CheckExample
from stepcot_jax.losses.sequence import NO_PART
from stepcot_jax.policies.encoded_records import REASONING, EncodedRecord
from stepcot_jax.policies.tokenizers import Tokenizer


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
