"""Texts to tokens with the tokenizer that a checkpoint's folder holds."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from stepcot_jax.host.errors import BadInput

SHORTEST = 16
"""Texts are padded to this many tokens, or to twice as many, and so on: a few lengths, so a few executables."""


@dataclasses.dataclass(frozen=True)
class Truncated:
    """A text that was longer than the network takes, or than was asked for.

    Attributes:
      index: its position among the texts.
      num_tokens: its length in tokens, special ones included.
    """

    index: int
    num_tokens: int


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of transformers and the longest text that goes through it.

    Attributes:
      loaded: transformers' tokenizer.
      max_tokens: longest text in tokens, special ones included.
      digest: of the vocabulary and rules.
    """

    loaded: Any
    max_tokens: int
    digest: str

    def tokenize(self, texts: Sequence[str]) -> tuple[list[list[int]], list[Truncated]]:
        """Token numbers of each text, without padding, and which texts were cut."""
        # verbose=False: transformers would warn of long texts by itself, and print their number of tokens only.
        rows = self.loaded(list(texts), verbose=False, return_attention_mask=False)["input_ids"] if texts else []
        truncated = [Truncated(k, len(row)) for k, row in enumerate(rows) if len(row) > self.max_tokens]
        for cut in truncated:  # cut again by the tokenizer, which keeps the special token at the end
            rows[cut.index] = self.loaded(texts[cut.index], truncation=True, max_length=self.max_tokens)["input_ids"]
        return [list(row) for row in rows], truncated

    def pad(
        self, rows: Sequence[Sequence[int]], *, num_rows: int, num_tokens: int
    ) -> tuple[Int[np.ndarray, "text token"], Bool[np.ndarray, "text token"]]:
        """Tokens int32 and which of them are attended, [num_rows, num_tokens]; rows after the last repeat the first."""
        padding = self.loaded.pad_token_id or 0
        tokens = np.full((num_rows, num_tokens), padding, np.int32)
        attended = np.zeros((num_rows, num_tokens), bool)
        for k in range(num_rows):
            row = rows[k if k < len(rows) else 0]
            tokens[k, : len(row)] = row
            attended[k, : len(row)] = True
        return tokens, attended

    def padded_length(self, num_tokens: int) -> int:
        """The length that a text of `num_tokens` is padded to; a function of this text alone."""
        length = SHORTEST
        while length < num_tokens:
            length *= 2
        return min(length, self.max_tokens)


def load_tokenizer(folder: pathlib.Path, *, max_tokens: int, vocabulary_size: int) -> Tokenizer:
    """The tokenizer of a folder.

    Args:
      folder: with tokenizer.json, or vocab.txt, or vocab.json and merges.txt.
      max_tokens: longest text in tokens.
      vocabulary_size: of the network.

    Raises:
      BadInput: there is no tokenizer, or it has more tokens than the network.
    """
    accepted = "accepted is a folder with the model's tokenizer.json and tokenizer_config.json (or vocab.txt)"
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
        raise BadInput(f"{folder}: found no tokenizer, {accepted}")
    import transformers  # here: importing the package must not import transformers

    try:
        loaded = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        vocabulary = loaded.get_vocab()
    except Exception as error:  # transformers raises many kinds for broken or missing files
        text = " ".join(str(error).split())[:200]
        raise BadInput(f"{folder}: found no readable tokenizer ({type(error).__name__}: {text}), {accepted}") from None
    largest = max(vocabulary.values(), default=-1)
    if not 0 <= largest < vocabulary_size:
        raise BadInput(
            f"{folder}: found a tokenizer with tokens up to number {largest}, accepted are at most "
            f"{vocabulary_size - 1}, as many as the network has vectors for"
        )
    backend = getattr(loaded, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else repr(sorted(vocabulary.items()))
    return Tokenizer(loaded, max_tokens, hashlib.sha256(rules.encode()).hexdigest())
