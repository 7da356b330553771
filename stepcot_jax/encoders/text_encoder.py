"""Prompts of the steps, and frozen text encoders that turn them into vectors."""

import dataclasses
import functools
import hashlib
import logging
import pathlib
import string
from collections.abc import Callable, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from stepcot_jax.chain import Chain
from stepcot_jax.encoders.tokenizer_files import load_tokenizer_files
from stepcot_jax.host.errors import BadInput

FIELDS = ("name", "question", "options")
"""Fields of a template: the step's short name, its question, its lettered options."""


def write_prompts(chain: Chain, template: str) -> tuple[str, ...]:
    """Return one prompt per step; the template's fields are `FIELDS`."""
    expected = f"expected text with fields among {', '.join(f'{{{field}}}' for field in FIELDS)}"
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        prompts = tuple(
            template.format(name=step.name, question=step.question, options="; ".join(step.lettered_options))
            for step in chain.steps
        )
    except (ValueError, LookupError, AttributeError) as error:
        raise BadInput(f"config.prompts.template: {template!r} is not a template ({error}); {expected}") from None
    if not fields or not fields <= set(FIELDS):
        raise BadInput(f"config.prompts.template: {template!r} is not a template; {expected}")
    return prompts


def hash_prompts(prompts: Sequence[str], width: int) -> Float[np.ndarray, "step width"]:
    """Return a fixed random vector per prompt, seeded by its SHA-256, with mean 0 and variance 1 like BERT's output."""
    vectors = []
    for prompt in prompts:
        seed = int.from_bytes(hashlib.sha256(prompt.encode()).digest(), "big")
        vector = np.random.Generator(np.random.PCG64(seed)).standard_normal(width)
        vectors.append((vector - vector.mean()) / max(vector.std(), 1e-6))
    return np.stack(vectors).astype(np.float32)


Pooling = Literal["cls", "mean", "projected"]
"""Last state of BERT's first or CLIP's end token; mean over all tokens but padding; vector in the space of images."""

SHORTEST = 16
"""Texts are padded to this number of tokens times a power of two, so that few lengths are compiled."""

TEXT_BATCH = 16
"""Texts per call. Fixed, so that a text's vector does not depend on the number of texts."""


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A transformers tokenizer with a length limit."""

    loaded: Any
    max_tokens: int  # longest text, special tokens included
    digest: str  # SHA-256 of vocabulary and rules

    def tokenize(self, texts: Sequence[str]) -> tuple[list[list[int]], list[int]]:
        """Return the tokens of each text, without padding, and the lengths of the texts that were truncated."""
        # verbose=False: transformers' warning about long texts does not name them.
        rows = self.loaded(list(texts), verbose=False, return_attention_mask=False)["input_ids"] if texts else []
        lengths = {index: len(row) for index, row in enumerate(rows) if len(row) > self.max_tokens}
        for index in lengths:  # the tokenizer keeps the special token at the end
            rows[index] = self.loaded(texts[index], truncation=True, max_length=self.max_tokens)["input_ids"]
        return [list(row) for row in rows], list(lengths.values())

    def pad(
        self, rows: Sequence[Sequence[int]], *, num_rows: int, num_tokens: int
    ) -> tuple[Int[np.ndarray, "text token"], Bool[np.ndarray, "text token"]]:
        """Return tokens int32 and attention mask [num_rows, num_tokens]; missing rows repeat the first."""
        padding = self.loaded.pad_token_id or 0
        tokens = np.full((num_rows, num_tokens), padding, np.int32)
        attended = np.zeros((num_rows, num_tokens), bool)
        for k, row in enumerate([*rows, *[rows[0]] * (num_rows - len(rows))]):
            tokens[k, : len(row)] = row
            attended[k, : len(row)] = True
        return tokens, attended

    def padded_length(self, num_tokens: int) -> int:
        """Return the padded length of a text of `num_tokens`; it does not depend on other texts."""
        return min(max(SHORTEST, 1 << (num_tokens - 1).bit_length()), self.max_tokens)


def load_tokenizer(folder: pathlib.Path, *, max_tokens: int, vocabulary_size: int) -> Tokenizer:
    """Load the tokenizer of a checkpoint's folder."""
    expected = "expected the model's tokenizer.json and tokenizer_config.json, or vocab.txt"
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
        raise BadInput(f"{folder}: no tokenizer; {expected}")
    try:
        loaded = load_tokenizer_files(folder)
    except BadInput as error:
        raise BadInput(f"{folder}: unreadable tokenizer ({error}); {expected}") from None
    vocabulary = loaded.get_vocab()
    largest = max(vocabulary.values(), default=-1)
    if not 0 <= largest < vocabulary_size:
        raise BadInput(
            f"{folder}: the tokenizer's largest token is {largest}, but the network has {vocabulary_size} embeddings"
        )
    backend = getattr(loaded, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else repr(sorted(vocabulary.items()))
    return Tokenizer(loaded, max_tokens, hashlib.sha256(rules.encode()).hexdigest())


@functools.partial(jax.jit, static_argnames=("network", "pooling"))
def _encode_texts(params: Any, tokens: Array, attended: Array, network: nn.Module, pooling: str) -> Any:
    return getattr(network.apply({"params": params}, tokens, attended), pooling)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlaxEncoder:
    """A frozen encoder of a checkpoint."""

    name: str  # kind and source, for logs
    width: int  # size of a feature vector; of texts with pooling "cls" and "mean"
    digest: str  # SHA-256 of everything that determines the features
    num_parameters: int  # of the checkpoint, for CLIP of both towers
    network: nn.Module = dataclasses.field(repr=False)
    # called at the first `encode`, so that an encoder whose features are all stored takes no memory
    read_params: Callable[[], Any] = dataclasses.field(repr=False)

    @functools.cached_property
    def params(self) -> Any:
        """Parameters on the device."""
        return jax.device_put(self.read_params())


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextEncoder(FlaxEncoder):
    """A frozen text encoder with its tokenizer."""

    projected_width: int  # size of the vectors of pooling "projected"; 0 without a projection
    max_tokens: int  # longest text; longer texts are truncated and logged
    tokenizer: Tokenizer = dataclasses.field(repr=False)

    def encode(self, texts: Sequence[str], *, pooling: Pooling = "cls") -> Float32[np.ndarray, "text feature"]:
        """Return vectors [text, width] or [text, projected_width]; longer texts are truncated and logged."""
        if pooling not in ("cls", "mean", "projected") or (pooling == "projected" and not self.projected_width):
            accepted = "'cls', 'mean'" + (", 'projected'" if self.projected_width else " (it has no projection)")
            raise BadInput(f"{self.name}: pooling {pooling!r} is not one of {accepted}")
        rows, truncated = self.tokenizer.tokenize(texts)
        if truncated:
            lengths = ", ".join(map(str, truncated[:10])) + (", ..." if len(truncated) > 10 else "")
            logging.getLogger(__name__).warning(
                "%s: truncated %d of %d texts to %d tokens; their lengths were %s",
                self.name, len(truncated), len(texts), self.max_tokens, lengths,
            )  # fmt: skip
        width = self.projected_width if pooling == "projected" else self.width
        vectors = np.zeros((len(rows), width), np.float32)
        lengths_of = np.asarray([self.tokenizer.padded_length(len(row)) for row in rows], int)
        for length in np.unique(lengths_of):
            same = np.flatnonzero(lengths_of == length)
            for start in range(0, len(same), TEXT_BATCH):
                chosen = same[start : start + TEXT_BATCH]
                batch = [rows[k] for k in chosen]
                tokens, attended = self.tokenizer.pad(batch, num_rows=TEXT_BATCH, num_tokens=int(length))
                encoded = _encode_texts(self.params, tokens, attended, self.network, pooling)
                vectors[chosen] = np.asarray(encoded)[: len(chosen)]
        return vectors
