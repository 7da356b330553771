"""Patch vectors of a frozen encoder as the input of a policy, computed once for the pictures of a run and stored.

The encoder's weights are not parameters of the policy: they have neither gradients nor moments.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float, UInt8

from stepcot_jax.features.encode import image_keys, round_patches
from stepcot_jax.features.store import (
    FeatureStore,
    FrozenImageEncoder,
    describe_preprocessing,
    digest_fields,
    digest_pixels,
)
from stepcot_jax.host.errors import BadInput


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchInput:
    """Turns pictures into patch vectors."""

    encoder: FrozenImageEncoder
    shape: tuple[int, int]  # (patch, channel) of a picture's patches
    dtype: str  # "float32" or "float16", dtype of the patches
    batch_size: int  # maximal number of pictures per batch
    store: FeatureStore | None = None  # holds patches that are known; None to encode every picture

    @property
    def digest(self) -> str:
        """Hex digest of everything that determines the patches of a picture."""
        rules = describe_preprocessing(self.encoder.preprocessing)
        del rules["fit"]  # pictures come stretched
        return digest_fields("patches", encoder=self.encoder.digest, preprocessing=rules, dtype=self.dtype).hex()

    def __call__(self, pictures: UInt8[np.ndarray, "case size size 3"]) -> Float[np.ndarray, "case patch channel"]:
        """Return the patches of pictures, row by row, and encode those that are not stored."""
        if self.store is None:
            return self._encode(pictures)
        keys = [self.key(picture) for picture in pictures]
        is_known = np.array([key in self.store for key in keys])
        patches = np.empty((len(pictures), *self.shape), self.dtype)
        if is_known.any():
            patches[is_known] = self.store.read_patches(
                [key for key, known in zip(keys, is_known, strict=True) if known]
            )
        if not is_known.all():
            patches[~is_known] = self._encode(pictures[~is_known])
        return patches

    def key(self, picture: UInt8[np.ndarray, "size size 3"]) -> bytes:
        """Return the key of a picture uint8 [size, size, 3] in a store."""
        (key,) = image_keys(self.encoder, [digest_pixels(picture)])
        return key

    def _encode(self, pictures: np.ndarray) -> np.ndarray:
        """Return patches; batches are filled up to powers of two, so that few sizes are compiled."""
        encoded = np.empty((len(pictures), *self.shape), self.dtype)
        for start in range(0, len(pictures), self.batch_size):
            batch = pictures[start : start + self.batch_size]
            size = min(2 ** math.ceil(math.log2(len(batch))), self.batch_size)
            padding = np.repeat(batch[-1:], size - len(batch), axis=0)
            patches = np.asarray(self.encoder.encode_patches(np.concatenate([batch, padding]))[1])[: len(batch)]
            encoded[start : start + len(batch)] = round_patches(
                patches, self.dtype, names=["a picture"] * len(batch), encoder=self.encoder.name
            )
        return encoded


def make_patch_input(
    encoder: FrozenImageEncoder, *, image_size: int, grid: int, dtype: str, batch_size: int
) -> PatchInput:
    """Return the patches of an encoder for a policy that sees pictures of `image_size` as `grid` x `grid` cells."""
    size = encoder.preprocessing.size
    if image_size != size:
        raise BadInput(
            f"config.image_encoder.image_size: {image_size} is not {size}, the pixels of "
            f"{encoder.name} (boxes are in pixels of the picture that it sees)"
        )
    number, channels = encoder.patch_shape()
    side = math.isqrt(number)
    if side**2 != number:
        raise BadInput(
            f"config.image_encoder.weights: {encoder.name} gives {number} patches of a picture of {size} px; expected "
            "as many rows as columns"
        )
    if grid > side:
        raise BadInput(f"config.policy.grid: {grid} is more than {side}, the patches on a side of {encoder.name}")
    return PatchInput(
        encoder=encoder, shape=(number, channels), dtype="float32" if dtype == "none" else dtype, batch_size=batch_size
    )
