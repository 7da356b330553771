"""What the features ask of an encoder, whatever framework it runs in, and what a store says about it."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.features.keys import describe_preprocessing
from stepcot_jax.features.spec import Patches, StoreSpec


@runtime_checkable
class FrozenImageEncoder(Protocol):
    """Frozen weights that turn images into features.

    Attributes:
      name: for people.
      width: of a feature.
      preprocessing: what is done to an image before it is encoded.
      digest: of the weights and of all else that decides the numbers, such as the compute type.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def width(self) -> int: ...  # noqa: D102

    @property
    def preprocessing(self) -> Preprocessing: ...  # noqa: D102

    @property
    def digest(self) -> str: ...  # noqa: D102

    def encode(self, images: Any) -> Any:
        """Features [case, width] of normalised images float32 [case, height, width, 3]."""

    def encode_patches(self, images: Any) -> tuple[Any, Any]:
        """Features [case, width] and patch tokens [case, patch, width] of normalised images."""


@runtime_checkable
class FrozenTextEncoder(Protocol):
    """Frozen weights that turn texts into features.

    Attributes:
      name: for people.
      width: of a feature.
      digest: of the weights, the tokenizer and all else that decides the numbers.
      max_tokens: where a text is cut.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def width(self) -> int: ...  # noqa: D102

    @property
    def digest(self) -> str: ...  # noqa: D102

    @property
    def max_tokens(self) -> int: ...  # noqa: D102

    def encode(self, texts: Sequence[str], *, pooling: Any) -> Any:
        """Features [text, width]."""


def describe_image_store(encoder: FrozenImageEncoder, *, patches: Patches = "none") -> StoreSpec:
    """The spec of a store for an image encoder's features.

    Args:
      encoder: the encoder.
      patches: type of the patch tokens to keep beside the features, or "none".
    """
    return StoreSpec(
        kind="image",
        encoder=encoder.name,
        digest=encoder.digest,
        width=encoder.width,
        details=describe_preprocessing(encoder.preprocessing),
        patches=patches,
    )


def describe_text_store(encoder: FrozenTextEncoder, *, pooling: str) -> StoreSpec:
    """The spec of a store for a text encoder's features.

    Args:
      encoder: the encoder; its `projected_width`, where it has one, is the width of pooling "projected".
      pooling: how token vectors become one.
    """
    width = getattr(encoder, "projected_width", 0) if pooling == "projected" else encoder.width
    return StoreSpec(
        kind="text",
        encoder=encoder.name,
        digest=encoder.digest,
        width=width,
        details={"pooling": pooling, "max_tokens": int(encoder.max_tokens)},
    )


def as_features(found: Any, *, num_rows: int, width: int) -> np.ndarray:
    """What an encoder returned as float32 [case, width].

    Raises:
      ValueError: it has another shape, a defect of the encoder.
    """
    features = np.asarray(found).astype(np.float32, copy=False)
    if features.shape != (num_rows, width):
        raise ValueError(f"the encoder made features of {features.shape}, expected ({num_rows}, {width})")
    return features
