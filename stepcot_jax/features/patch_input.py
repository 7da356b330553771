"""Patch vectors of a frozen encoder as the input of a policy, computed once for the pictures of a run and stored.

The weights of the encoder are no parameters of the policy: they have neither gradients nor moments.
"""

import dataclasses
import functools
import math
import pathlib

import numpy as np
from jaxtyping import Float, UInt8

from stepcot_jax.data.images.preprocessing import normalise
from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.features.encode import ImageItem, image_keys, round_patches
from stepcot_jax.features.frozen_encoders import load_frozen_encoder
from stepcot_jax.features.run_store import open_run_store
from stepcot_jax.features.sharing import ALONE, Processes, encode_together
from stepcot_jax.features.store import (
    FeatureStore,
    FrozenImageEncoder,
    describe_image_store,
    describe_preprocessing,
    digest_fields,
    digest_pixels,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.machine import map_in_threads
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.settings.run_settings import Settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchInput:
    """Turns pictures into patch vectors.

    Attributes:
      shape: of a picture's patches, (patch, channel).
      dtype: "float32" or "float16", of the patches.
      batch_size: most pictures that are encoded at a time.
      store: of patches that are known; None without.
    """

    encoder: FrozenImageEncoder
    shape: tuple[int, int]
    dtype: str
    batch_size: int
    store: FeatureStore | None = None

    @property
    def digest(self) -> str:
        """Of everything that decides the patches of a picture, in hex."""
        rules = describe_preprocessing(self.encoder.preprocessing)
        del rules["fit"]  # pictures come stretched
        return digest_fields("patches", encoder=self.encoder.digest, preprocessing=rules, dtype=self.dtype).hex()

    def __call__(self, pictures: UInt8[np.ndarray, "case size size 3"]) -> Float[np.ndarray, "case patch channel"]:
        """Return the patches of pictures, row by row; those that are not stored are encoded.

        Args:
          pictures: uint8 [case, size, size, 3] at the encoder's size.
        """
        if self.store is None:
            return self._encode(pictures)
        keys = [self.key(picture) for picture in pictures]
        is_known = np.array([key in self.store for key in keys])
        found = np.empty((len(pictures), *self.shape), self.dtype)
        if is_known.any():
            found[is_known] = self.store.read_patches([key for key, known in zip(keys, is_known, strict=True) if known])
        if not is_known.all():
            found[~is_known] = self._encode(pictures[~is_known])
        return found

    def key(self, picture: UInt8[np.ndarray, "size size 3"]) -> bytes:
        """Return the key of a picture uint8 [size, size, 3] in a store."""
        (key,) = image_keys(self.encoder, [digest_pixels(picture)])
        return key

    def _encode(self, pictures: np.ndarray) -> np.ndarray:
        """Return patches; batches are filled up to powers of two, so that few sizes are compiled."""
        found = np.empty((len(pictures), *self.shape), self.dtype)
        for start in range(0, len(pictures), self.batch_size):
            batch = pictures[start : start + self.batch_size]
            size = min(2 ** math.ceil(math.log2(len(batch))), self.batch_size)
            padding = np.repeat(batch[-1:], size - len(batch), axis=0)
            images = normalise(np.concatenate([batch, padding]), self.encoder.preprocessing)
            patches = np.asarray(self.encoder.encode_patches(images)[1])[: len(batch)]
            found[start : start + len(batch)] = round_patches(
                patches, self.dtype, names=["a picture"] * len(batch), encoder=self.encoder.name
            )
        return found


def load_patch_input(settings: Settings) -> PatchInput | None:
    """Return the patches of the frozen encoder that the settings name; None if the policy trains its own encoder."""
    if settings.image_encoder.name != "pretrained":
        return None
    return make_patch_input(settings, load_frozen_encoder(settings))


def make_patch_input(settings: Settings, encoder: FrozenImageEncoder) -> PatchInput:
    """Return the patches of an encoder as a run's settings say; they are float32 with `features.patches="none"`."""
    size, grid, dtype = encoder.preprocessing.size, settings.policy.grid, settings.features.patches
    if settings.image_encoder.image_size != size:
        raise BadInput(
            f"config.image_encoder.image_size: {settings.image_encoder.image_size} is not {size}, the pixels of "
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
        encoder=encoder,
        shape=(number, channels),
        dtype="float32" if dtype == "none" else dtype,
        batch_size=settings.features.batch_size,
    )


def store_patches(
    patches: PatchInput,
    dataset: VqaDataset,
    settings: Settings,
    workdir: pathlib.Path,
    terminal: Terminal,
    *,
    processes: Processes = ALONE,
) -> PatchInput:
    """Encode the pictures of a dataset into the run's feature store, each once; return the patches with that store."""
    if not settings.features.store:
        return patches
    num_threads = settings.data.num_threads
    places = terminal.watch(range(dataset.num_images), "reading pictures")
    keys = map_in_threads(lambda place: patches.key(dataset.pixels[place]), places, num_threads=num_threads)
    items = [
        ImageItem(key, functools.partial(dataset.pixels.__getitem__, place), f"picture {place}") for place, key in keys
    ]
    spec = describe_image_store(patches.encoder, patches=patches.dtype)  # type: ignore[arg-type]
    with open_run_store(settings, workdir, spec, terminal, processes) as (store, sharing, _):
        counts = encode_together(
            patches.encoder,
            items,
            store,
            sharing,
            say=terminal.say,
            batch_size=settings.features.batch_size,
            num_threads=num_threads,
            progress=terminal.watch,
        )
        store.refresh()
    store.check_present([item.key for item in items])
    terminal.say(counts.describe("pictures"))
    return dataclasses.replace(patches, store=store)
