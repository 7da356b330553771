"""Tokens of questions and replies: a closed vocabulary counted from records, or any Hugging Face tokenizer.

A closed vocabulary has one token for each word, tag, punctuation mark and frequent phrase, and one for each coordinate,
so that a box is four tokens and its brackets. A space before a piece belongs to the piece, and so does a comma before a
coordinate: decoding what was encoded gives the text back exactly.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole
from stepcot_jax.policies.merges import Pair, apply_merges, learn_merges, split_segments

_PIECE = re.compile(r"(?:, ?| )?[0-9]+| ?(?:</?[A-Za-z_]+>|[^\W\d_]+|[^\s\w]|\w)|\s")
_SPECIAL = ("<pad>", "<stop>")
_MOST_PIECES = 2**16
_LEAST_COUNT = 10


class Tokenizer(Protocol):
    """Texts to tokens and back."""

    @property
    def num_words(self) -> int:
        """Size of the vocabulary."""

    @property
    def pad(self) -> int:
        """Token of padding."""

    @property
    def stop(self) -> int:
        """Token that ends a reply."""

    @property
    def more_stops(self) -> tuple[int, ...]:
        """Further tokens that end a reply when it is sampled."""

    @property
    def closed(self) -> "Vocabulary | None":
        """The closed vocabulary of texts; None if any text has tokens."""

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens, without padding and stop."""

    def encode_prompt(self, text: str) -> list[int]:
        """Return the tokens of a prompt, with those that stand around its text, such as a chat's."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens up to the first stop, without padding."""


def cut_at_stop(tokens: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Return tokens up to the first one that ends a reply, without it."""
    stops = {tokenizer.stop, *tokenizer.more_stops}
    end = next((place for place, token in enumerate(tokens) if token in stops), len(tokens))
    return list(tokens[:end])


class Vocabulary:
    """A closed vocabulary.

    Args:
      merges: pairs of neighbours that become one token, in the order in which they are applied; see `merges`.

    >>> vocabulary = Vocabulary.count(["So the answer is A. [1]"], largest=3)
    >>> vocabulary.decode(vocabulary.encode("So the answer is A. [1, 3]"))
    'So the answer is A. [1, 3]'
    """

    pad, stop = range(len(_SPECIAL))
    more_stops: tuple[int, ...] = ()

    @property
    def closed(self) -> "Vocabulary | None":
        """The closed vocabulary of texts."""
        return self

    def __init__(self, pieces: Sequence[str], merges: Sequence[Pair] = ()) -> None:
        bad = next((piece for piece in pieces if split_pieces(piece) != [piece]), None)
        if bad is not None or len(set(pieces)) < len(pieces) or len(pieces) + len(merges) > _MOST_PIECES:
            raise BadInput(f"vocabulary: {len(pieces)} pieces, {bad!r} among them; distinct single pieces required")
        self.merges = tuple((first, second) for first, second in merges)
        known = dict.fromkeys(pieces)
        for first, second in self.merges:
            if first not in known or second not in known:
                raise BadInput(f"vocabulary: merge {first!r} + {second!r} joins what is no token")
            known[first + second] = None
        self.base, self.pieces = tuple(pieces), tuple(known)
        self._tokens = {piece: place for place, piece in enumerate(self.pieces, start=len(_SPECIAL))}
        ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._merge = functools.lru_cache(_MOST_PIECES)(lambda segment: apply_merges(segment, ranks))

    @classmethod
    def count(
        cls, texts: Iterable[str], *, largest: int, num_merges: int = 0, least_count: int = _LEAST_COUNT
    ) -> "Vocabulary":
        """Return the vocabulary of texts, with brackets, commas and every coordinate from 0 to `largest`."""
        split = [split_pieces(text) for text in texts]
        found = {piece for pieces in split for piece in pieces}
        found |= {f"{before}{number}" for number in range(largest + 1) for before in ("", " ", ", ")}
        merges = learn_merges(split, most=num_merges, least_count=least_count) if num_merges else []
        return cls(sorted(found | set("[],")), merges)

    @property
    def num_words(self) -> int:
        """Size of the vocabulary, padding and stop included."""
        return len(_SPECIAL) + len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens, without padding and stop."""
        try:
            merged = [piece for segment in split_segments(split_pieces(text)) for piece in self._merge(segment)]
            return [self._tokens[piece] for piece in merged]
        except KeyError as error:
            known = f"not among the {len(self.base)} pieces of the vocabulary"
            raise BadInput(f"text {text[:80]!r}: {error.args[0]!r} is {known}") from None

    encode_prompt = encode  # nothing stands around a prompt

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens up to the first stop, without padding."""
        kept = cut_at_stop(tokens, self)
        return "".join(self.pieces[token - len(_SPECIAL)] for token in kept if token >= len(_SPECIAL))

    def write(self, path: Path) -> None:
        """Write pieces and merges as JSON, atomically."""
        content = msgspec.json.encode({"pieces": self.base, "merges": self.merges})
        write_whole(path, msgspec.json.format(content, indent=1) + b"\n")

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """Read what `write` wrote."""
        found = read_json(path, _Written, accepted="expected the vocabulary of a run")
        try:
            return cls(found.pieces, found.merges)
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    pieces: tuple[str, ...]
    merges: tuple[tuple[str, str], ...] = ()


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the special tokens of a `transformers` tokenizer by name: those with a role, and all that were added."""
    added = {str(token): int(number) for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return {**dict(zip(tokenizer.all_special_tokens, map(int, tokenizer.all_special_ids), strict=True)), **added}


class PretrainedTokenizer:
    """A Hugging Face tokenizer."""

    more_stops: tuple[int, ...] = ()

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.eos_token_id is None:
            raise BadInput("tokenizer: it has no end-of-sequence token, which ends a reply")
        self._tokenizer = tokenizer
        self.num_words, self.stop = len(tokenizer), int(tokenizer.eos_token_id)
        self.pad = self.stop if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        self.special = frozenset(special_tokens(tokenizer).values())

    @property
    def closed(self) -> Vocabulary | None:
        """None: any text has tokens."""
        return None

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens, without special tokens."""
        tokens = list(self._tokenizer.encode(text, add_special_tokens=False))
        if special := self.special.intersection(tokens):
            named = self._tokenizer.convert_ids_to_tokens(min(special))
            raise BadInput(f"text {text[:80]!r}: the tokenizer reads a part as its special token {named!r}")
        return tokens

    encode_prompt = encode  # nothing stands around a prompt

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens up to the first stop, without special tokens."""
        kept = cut_at_stop(tokens, self)
        text: str = self._tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def split_pieces(text: str) -> list[str]:
    """Return the pieces of a text; joined they are the text.

    >>> split_pieces("<box>[12, 3]</box> Yes.")
    ['<box>', '[', '12', ', 3', ']', '</box>', ' Yes', '.']
    """
    return _PIECE.findall(text)
