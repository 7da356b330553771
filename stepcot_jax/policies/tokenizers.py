"""Tokens of questions and replies: a closed vocabulary counted from records, or any Hugging Face tokenizer.

A closed vocabulary has one token for each word, tag and punctuation mark, and one for each coordinate, so that a box is
four tokens. A space before a piece belongs to the piece: decoding what was encoded gives the text back exactly.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole

_PIECE = re.compile(r" ?(?:</?[A-Za-z_]+>|[0-9]+|[^\W\d_]+|[^\s\w]|\w)|\s")
_SPECIAL = ("<pad>", "<stop>")
_MOST_PIECES = 2**16


class Tokenizer(Protocol):
    """Texts to tokens and back.

    Attributes:
      num_words: size of the vocabulary.
      pad: token of padding.
      stop: token that ends a reply.
    """

    num_words: int
    pad: int
    stop: int

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens, without padding and stop."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens up to the first stop, without padding."""
        ...


class Vocabulary:
    """A closed vocabulary.

    Args:
      pieces: distinct texts of the tokens after padding and stop, in order.

    Raises:
      BadInput: a piece is repeated, or is none that `split_pieces` makes.

    >>> vocabulary = Vocabulary.count(["So the answer is A. [1]"], largest=3)
    >>> vocabulary.decode(vocabulary.encode("So the answer is A. [1, 3]"))
    'So the answer is A. [1, 3]'
    """

    pad, stop = range(len(_SPECIAL))

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = tuple(pieces)
        self._tokens = {piece: place for place, piece in enumerate(self.pieces, start=len(_SPECIAL))}
        bad = next((piece for piece in self.pieces if split_pieces(piece) != [piece]), None)
        if bad is not None or len(self._tokens) < len(self.pieces) or len(self.pieces) > _MOST_PIECES:
            raise BadInput(
                f"vocabulary: {len(self.pieces)} pieces, {bad!r} among them; distinct single pieces required"
            )

    @classmethod
    def count(cls, texts: Iterable[str], *, largest: int) -> "Vocabulary":
        """Return the vocabulary of texts, with brackets, commas and every coordinate from 0 to `largest`."""
        found = {piece for text in texts for piece in split_pieces(text)}
        found |= {f"{space}{number}" for number in range(largest + 1) for space in ("", " ")}
        return cls(sorted(found | set("[],")))

    @property
    def num_words(self) -> int:
        """Size of the vocabulary, padding and stop included."""
        return len(_SPECIAL) + len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens, without padding and stop.

        Raises:
          BadInput: a piece of the text is not in the vocabulary.
        """
        try:
            return [self._tokens[piece] for piece in split_pieces(text)]
        except KeyError as error:
            known = f"not among the {len(self.pieces)} pieces of the vocabulary"
            raise BadInput(f"text {text[:80]!r}: {error.args[0]!r} is {known}") from None

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens up to the first stop, without padding."""
        kept = list(tokens)
        kept = kept[: kept.index(self.stop)] if self.stop in kept else kept
        return "".join(self.pieces[token - len(_SPECIAL)] for token in kept if token >= len(_SPECIAL))

    def write(self, path: Path) -> None:
        """Write the pieces as JSON, atomically."""
        write_whole(path, msgspec.json.format(msgspec.json.encode({"pieces": self.pieces}), indent=1) + b"\n")

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """Read what `write` wrote.

        Raises:
          BadInput: the file cannot be used.
        """
        found = read_json(path, dict[str, tuple[str, ...]], accepted="expected the vocabulary of a run")
        return cls(found.get("pieces", ()))


class PretrainedTokenizer:
    """A Hugging Face tokenizer.

    Args:
      tokenizer: of `transformers`, with an end-of-sequence token.

    Raises:
      BadInput: it has no end-of-sequence token.
    """

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.eos_token_id is None:
            raise BadInput("tokenizer: it has no end-of-sequence token, which ends a reply")
        self._tokenizer = tokenizer
        self.num_words, self.stop = len(tokenizer), int(tokenizer.eos_token_id)
        self.pad = self.stop if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens, without special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens up to the first stop, without special tokens."""
        kept = list(tokens)
        kept = kept[: kept.index(self.stop)] if self.stop in kept else kept
        text: str = self._tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def split_pieces(text: str) -> list[str]:
    """Return the pieces of a text; joined they are the text.

    >>> split_pieces("<box>[12, 3]</box> Yes.")
    ['<box>', '[', '12', ',', ' 3', ']', '</box>', ' Yes', '.']
    """
    return _PIECE.findall(text)
