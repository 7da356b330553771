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
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import one_line

FIELDS = ("name", "question", "options")
"""Fields of a template: the step's short name, its question, its lettered options."""


def write_prompts(chain: Chain, template: str) -> tuple[str, ...]:
    """Return one prompt per step.

    >>> from stepcot_jax.chain import Step
    >>> write_prompts(Chain((Step("Size", "How large?", ("Small", "Large")),)), "{question} {options}")
    ('How large? A. Small; B. Large',)
    """
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
    """Return a fixed random vector per prompt, with mean 0 and variance 1 like BERT's LayerNorm output.

    SHA-256 of the prompt seeds the generator: equal prompts have equal vectors on every machine, different prompts have
    independent ones. The vectors identify the steps and carry no meaning.
    """
    vectors = []
    for prompt in prompts:
        seed = int.from_bytes(hashlib.sha256(prompt.encode()).digest(), "big")
        vector = np.random.Generator(np.random.PCG64(seed)).standard_normal(width)
        vectors.append((vector - vector.mean()) / max(vector.std(), 1e-6))
    return np.stack(vectors).astype(np.float32)


Pooling = Literal["cls", "mean", "projected"]

SHORTEST = 16
"""Texts are padded to this number of tokens times a power of two, so that few lengths are compiled."""

TEXT_BATCH = 16
"""Texts per call. Fixed, so that a text's vector does not depend on the number of texts."""


@dataclasses.dataclass(frozen=True)
class Truncated:
    """A text longer than `max_tokens`: its position, and its length in tokens with special tokens."""

    index: int
    num_tokens: int


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A transformers tokenizer with a length limit.

    Attributes:
      max_tokens: longest text in tokens, special tokens included.
      digest: SHA-256 of vocabulary and rules.
    """

    loaded: Any
    max_tokens: int
    digest: str

    def tokenize(self, texts: Sequence[str]) -> tuple[list[list[int]], list[Truncated]]:
        """Return the tokens of each text, without padding, and the texts that were truncated."""
        # verbose=False: transformers' warning about long texts does not name them.
        rows = self.loaded(list(texts), verbose=False, return_attention_mask=False)["input_ids"] if texts else []
        truncated = [Truncated(k, len(row)) for k, row in enumerate(rows) if len(row) > self.max_tokens]
        for cut in truncated:  # the tokenizer keeps the special token at the end
            rows[cut.index] = self.loaded(texts[cut.index], truncation=True, max_length=self.max_tokens)["input_ids"]
        return [list(row) for row in rows], truncated

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
    import transformers  # slow to import, and often not needed

    try:
        loaded = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        vocabulary = loaded.get_vocab()
    except Exception as error:  # transformers raises many kinds for broken or missing files
        what = f"{type(error).__name__}: {one_line(error)}"
        raise BadInput(f"{folder}: unreadable tokenizer ({what}); {expected}") from None
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
    """A frozen encoder of a checkpoint.

    Attributes:
      name: kind and source, for logs.
      width: size of a feature vector; of texts with pooling "cls" and "mean".
      digest: SHA-256 of everything that determines the features: weights, architecture, compute dtype, and of a text
        encoder tokenizer and `max_tokens`.
      num_parameters: number of parameters of the checkpoint, for CLIP of both towers.
      read_params: reads the parameters at the first call of `encode`, so that an encoder whose features are all
        stored takes no memory.
    """

    name: str
    width: int
    digest: str
    num_parameters: int
    network: nn.Module = dataclasses.field(repr=False)
    read_params: Callable[[], Any] = dataclasses.field(repr=False)

    @functools.cached_property
    def params(self) -> Any:
        """Parameters on the device."""
        return jax.device_put(self.read_params())


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextEncoder(FlaxEncoder):
    """A frozen text encoder with its tokenizer.

    Attributes:
      projected_width: size of the vectors of pooling "projected"; 0 without a projection.
      max_tokens: longest text in tokens; longer texts are truncated and logged.
    """

    projected_width: int
    max_tokens: int
    tokenizer: Tokenizer = dataclasses.field(repr=False)

    def encode(self, texts: Sequence[str], *, pooling: Pooling = "cls") -> Float32[np.ndarray, "text feature"]:
        """Return a vector for each text.

        Args:
          pooling: "cls": last hidden state of BERT's first token (as for Step-CoT's teacher) or CLIP's end token;
            "mean": mean over all tokens except padding; "projected": vector in the space shared with images.

        Returns:
          float32 [text, width], or [text, projected_width]. A warning gives the number and lengths of truncated texts.
        """
        if pooling not in ("cls", "mean", "projected") or (pooling == "projected" and not self.projected_width):
            accepted = "'cls', 'mean'" + (", 'projected'" if self.projected_width else " (it has no projection)")
            raise BadInput(f"{self.name}: pooling {pooling!r} is not one of {accepted}")
        rows, truncated = self.tokenizer.tokenize(texts)
        if truncated:
            lengths = ", ".join(str(cut.num_tokens) for cut in truncated[:10])
            more = ", ..." if len(truncated) > 10 else ""
            logging.getLogger(__name__).warning(
                "%s: truncated %d of %d texts to %d tokens; their lengths were %s%s",
                self.name, len(truncated), len(texts), self.max_tokens, lengths, more,
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

    def truncated(self, texts: Sequence[str]) -> tuple[Truncated, ...]:
        """Return the texts longer than `max_tokens`, with their lengths."""
        return tuple(self.tokenizer.tokenize(texts)[1])
