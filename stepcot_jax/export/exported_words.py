"""Texts to tokens and back, as an exported policy reads them. Needs numpy alone, or the package tokenizers as well.

Every exported policy has a copy of this file, and of merges.py, which joins frequent phrases to one token.
"""

import re
from collections.abc import Sequence
from typing import Any

if __package__:
    from stepcot_jax.host.exported_files import Files, RefusedExport
    from stepcot_jax.policies.merges import apply_merges, split_segments
else:  # in the folder of an export
    from exported_files import Files, RefusedExport  # type: ignore[import-not-found,no-redef]
    from merges import apply_merges, split_segments  # type: ignore[import-not-found,no-redef]

VOCABULARY, TOKENIZER = "vocabulary.json", "tokenizer.json"

_PIECE = re.compile(r"(?:, ?| )?[0-9]+| ?(?:</?[A-Za-z_]+>|[^\W\d_]+|[^\s\w]|\w)|\s")
_NUM_SPECIAL = 2  # Tokens before those of the pieces: padding and stop


class ClosedWords:
    """The words of the training records, of vocabulary.json."""

    def __init__(self, files: Files) -> None:
        with files.expecting(VOCABULARY, "pieces, and merges of two"):
            vocabulary = files.read_json(VOCABULARY)
            merges = [(first, second) for first, second in vocabulary["merges"]]
            self._pieces = list(dict.fromkeys([*vocabulary["pieces"], *(first + second for first, second in merges)]))
        self._tokens = {piece: token for token, piece in enumerate(self._pieces, start=_NUM_SPECIAL)}
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        merged = [piece for part in split_segments(_PIECE.findall(text)) for piece in apply_merges(part, self._ranks)]
        unknown = [piece for piece in merged if piece not in self._tokens]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not in the vocabulary, which has the words of the training records")
        return [self._tokens[piece] for piece in merged]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return "".join(self._pieces[token - _NUM_SPECIAL] for token in tokens if token >= _NUM_SPECIAL)


class PretrainedWords:
    """A Hugging Face tokenizer, of tokenizer.json; needs the package tokenizers, which runs no code of the file."""

    def __init__(self, files: Files, special: Sequence[int]) -> None:
        try:
            import tokenizers
        except ImportError:
            raise RefusedExport("the policy's tokenizer needs the package tokenizers: pip install tokenizers") from None
        self._tokenizer: Any = tokenizers.Tokenizer.from_str(bytes(files.read(TOKENIZER)).decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._special = frozenset(special)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if special := self._special.intersection(tokens):
            named = self._tokenizer.id_to_token(min(special))
            raise ValueError(f"text {text[:80]!r}: the tokenizer reads a part as its special token {named!r}")
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text
