"""Frozen encoders from pretrained weights: images and texts to feature vectors."""

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float32

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.encoders.architecture import describe, feature_width
from stepcot_jax.encoders.checkpoint import open_checkpoint
from stepcot_jax.encoders.clip_vision import VisionTransformer
from stepcot_jax.encoders.tokenizing import Tokenizer, Truncated, load_tokenizer
from stepcot_jax.host.errors import BadInput

Pooling = Literal["cls", "mean", "projected"]

TEXT_BATCH = 16
"""Texts that are encoded at once. Fixed, so that a text's vector does not depend on how many others there are."""


@functools.partial(jax.jit, static_argnames=("network",))
def _encode_images(params: Any, images: Array, network: nn.Module) -> Any:
    # Without the patches: what is not returned is not computed.
    return network.apply({"params": params}, images)[0]


@functools.partial(jax.jit, static_argnames=("network",))
def _encode_patches(params: Any, images: Array, network: nn.Module) -> Any:
    return network.apply({"params": params}, images)


@functools.partial(jax.jit, static_argnames=("network", "pooling"))
def _encode_texts(params: Any, tokens: Array, attended: Array, network: nn.Module, pooling: str) -> Any:
    return getattr(network.apply({"params": params}, tokens, attended), pooling)


@dataclasses.dataclass(frozen=True)
class ImageEncoder:
    """A frozen image encoder.

    Attributes:
      name: kind and source, for logs.
      width: size of a feature vector.
      preprocessing: what `encode` expects to have been done to the images.
      digest: of weights, architecture and compute dtype; other features, other digest.
      num_parameters: of the whole checkpoint, which for CLIP has both towers, as published.
      network: the Flax module.
      read_params: reads its parameters from the checkpoint; called when something is encoded for the first time, so
        that an encoder whose features are all stored takes no memory.
    """

    name: str
    width: int
    preprocessing: Preprocessing
    digest: str
    num_parameters: int
    network: nn.Module = dataclasses.field(repr=False)
    read_params: Callable[[], Any] = dataclasses.field(repr=False)

    @functools.cached_property
    def params(self) -> Any:
        """The parameters."""
        return jax.device_put(self.read_params())

    def encode(self, images: Float32[Any, "case height width 3"]) -> Float32[Array, "case feature"]:
        """Features [case, width] of normalised `images` [case, height, width, 3]; compiled once a shape."""
        return _encode_images(self.params, images, self.network)

    def encode_patches(
        self, images: Float32[Any, "case height width 3"]
    ) -> tuple[Float32[Array, "case feature"], Float32[Array, "case patch channel"]]:
        """Features [case, width] and the patches' vectors [case, patch, channel], row by row.

        Raises:
          BadInput: the architecture has no patches.
        """
        if not isinstance(self.network, VisionTransformer):
            raise BadInput(f"{self.name}: found no patches in this architecture, accepted are vision transformers")
        return _encode_patches(self.params, images, self.network)


@dataclasses.dataclass(frozen=True)
class TextEncoder:
    """A frozen text encoder with its tokenizer.

    Attributes:
      name: kind and source, for logs.
      width: size of a vector for pooling "cls" and "mean".
      projected_width: size for pooling "projected"; 0 where the network has no projection.
      digest: of weights, architecture, compute dtype, tokenizer and `max_tokens`.
      num_parameters: of the whole checkpoint.
      max_tokens: longest text in tokens; what is longer is cut, and reported.
      tokenizer: texts -> tokens.
      network: the Flax module.
      read_params: reads its parameters from the checkpoint; called when something is encoded for the first time.
    """

    name: str
    width: int
    projected_width: int
    digest: str
    num_parameters: int
    max_tokens: int
    tokenizer: Tokenizer = dataclasses.field(repr=False)
    network: nn.Module = dataclasses.field(repr=False)
    read_params: Callable[[], Any] = dataclasses.field(repr=False)

    @functools.cached_property
    def params(self) -> Any:
        """The parameters."""
        return jax.device_put(self.read_params())

    def encode(self, texts: Sequence[str], *, pooling: Pooling = "cls") -> Float32[np.ndarray, "text feature"]:
        """A vector of each text.

        Args:
          texts: any number of them.
          pooling: "cls": the last hidden state of the token that stands for the text (BERT's first, as Step-CoT's
            teacher reads it; CLIP's end token); "mean": the mean over all tokens but padding; "projected": the
            vector in the space that images and texts share.

        Returns:
          float32 [text, width], or [text, projected_width]. How many texts were cut, and how long they were, is
          logged as a warning; `truncated` says which.

        Raises:
          BadInput: the pooling is unknown, or the network has no projection.
        """
        if pooling not in ("cls", "mean", "projected") or (pooling == "projected" and not self.projected_width):
            accepted = "'cls', 'mean'" + (", 'projected'" if self.projected_width else "; it has no projection")
            raise BadInput(f"{self.name}: found pooling {pooling!r}, accepted are {accepted}")
        rows, truncated = self.tokenizer.tokenize(texts)
        if truncated:
            lengths = ", ".join(str(cut.num_tokens) for cut in truncated[:10])
            more = ", ..." if len(truncated) > 10 else ""
            logging.getLogger(__name__).warning(
                "%s: cut %d of %d texts to %d tokens; they had %s%s",
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
        """Which of `texts` are longer than `max_tokens`, and how long they are."""
        return tuple(self.tokenizer.tokenize(texts)[1])


def load_image_encoder(source: str, *, dtype: DTypeLike = jnp.float32) -> ImageEncoder:
    """The image encoder of a checkpoint.

    Args:
      source: a folder, a file of torchvision's weights, or a Hugging Face id; see docs/encoders.md.
      dtype: compute dtype; parameters, softmax and LayerNorm are float32 whatever it is.

    Raises:
      BadInput: there is no such checkpoint, it has no image encoder, or its tensors do not fit its config.
    """
    checkpoint = open_checkpoint(source, dtype, "image")
    architecture = checkpoint.architecture
    network: Any = architecture.image
    preprocessing: Any = architecture.preprocessing
    return ImageEncoder(
        name=f"{architecture.name} of {source}",
        width=feature_width(network, checkpoint.shapes, size=preprocessing.size),
        preprocessing=preprocessing,
        digest=_join(checkpoint.digest, describe(network)),
        num_parameters=checkpoint.num_parameters,
        network=network,
        read_params=checkpoint.read_params,
    )


def load_text_encoder(source: str, *, dtype: DTypeLike = jnp.float32, max_tokens: int = 128) -> TextEncoder:
    """The text encoder of a checkpoint.

    Args:
      source: a folder or a Hugging Face id; see docs/encoders.md.
      dtype: compute dtype; parameters, softmax and LayerNorm are float32 whatever it is.
      max_tokens: longest text in tokens, at most what the network takes (BERT 512, CLIP 77, BiomedCLIP 256).

    Raises:
      BadInput: there is no such checkpoint, it has no text encoder or no tokenizer, or its tensors do not fit its
        config.
    """
    if max_tokens < 3:
        raise BadInput(f"{source}: found max_tokens {max_tokens}, accepted are at least 3 (begin, a word, end)")
    checkpoint = open_checkpoint(source, dtype, "text")
    architecture = checkpoint.architecture
    network: Any = architecture.text
    max_tokens = min(max_tokens, architecture.max_tokens)
    tokenizer = load_tokenizer(checkpoint.path, max_tokens=max_tokens, vocabulary_size=network.vocabulary_size)
    projection = getattr(network, "projection", (getattr(network, "projected_width", 0),))
    return TextEncoder(
        name=f"{architecture.name} of {source}",
        width=network.sizes.width,
        projected_width=projection[-1] if projection else 0,
        digest=_join(checkpoint.digest, describe(network), tokenizer.digest, str(max_tokens)),
        num_parameters=checkpoint.num_parameters,
        max_tokens=max_tokens,
        tokenizer=tokenizer,
        network=network,
        read_params=checkpoint.read_params,
    )


def count_published(*encoders: ImageEncoder | TextEncoder, num_trained: int) -> int:
    """Parameters as the paper counts them: whole checkpoints (both towers of CLIP) and what is trained on top."""
    return num_trained + sum(encoder.num_parameters for encoder in encoders)


def _join(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
