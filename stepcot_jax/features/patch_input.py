"""Patch vectors of a frozen encoder as the input of a policy, computed once for the pictures of a run and stored.

The weights of the encoder are no parameters of the policy: they have neither gradients nor moments.
"""

import dataclasses
import functools
import math
import pathlib

import numpy as np
from jaxtyping import Float, UInt8

from stepcot_jax.data.grounded.vqa_dataset import VqaDataset
from stepcot_jax.data.images.preprocessing import normalise
from stepcot_jax.features.encode import ImageItem, image_keys
from stepcot_jax.features.inputs import load_frozen_encoder
from stepcot_jax.features.keys import digest_pixels
from stepcot_jax.features.run_store import open_run_store
from stepcot_jax.features.sharing import ALONE, Processes, encode_together
from stepcot_jax.features.spec import FrozenImageEncoder, describe_image_store
from stepcot_jax.features.store import FeatureStore
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.settings.run_settings import Settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchInput:
    """Turns pictures into patch vectors.

    Attributes:
      encoder: frozen.
      shape: of a picture's patches, (patch, channel).
      dtype: "float32" or "float16", of the patches.
      batch_size: pictures that are encoded at a time.
      store: of patches that are known; None without.
    """

    encoder: FrozenImageEncoder
    shape: tuple[int, int]
    dtype: str
    batch_size: int
    store: FeatureStore | None = None

    def __call__(self, pictures: UInt8[np.ndarray, "case size size 3"]) -> Float[np.ndarray, "case patch channel"]:
        """Return the patches of pictures, row by row; those that are not stored are encoded.

        Args:
          pictures: uint8 [case, size, size, 3] at the encoder's size.

        Raises:
          BadInput: a patch is not finite.
        """
        keys = self.keys(pictures) if self.store is not None else [b""] * len(pictures)
        is_known = np.array([self.store is not None and key in self.store for key in keys])
        found = np.empty((len(pictures), *self.shape), self.dtype)
        if self.store is not None and is_known.any():
            found[is_known] = self.store.read_patches([key for key, known in zip(keys, is_known, strict=True) if known])
        if not is_known.all():
            found[~is_known] = self._encode(pictures[~is_known])
        if not np.isfinite(found).all():
            raise BadInput(
                f"a patch of a picture from {self.encoder.name} is not finite as {self.dtype} (check the encoder's "
                "weights; config.features.patches='float32' has the larger range)"
            )
        return found

    def keys(self, pictures: UInt8[np.ndarray, "case size size 3"]) -> list[bytes]:
        """Return the keys of pictures in a store."""
        return image_keys(self.encoder, [digest_pixels(picture) for picture in pictures])

    def _encode(self, pictures: np.ndarray) -> np.ndarray:
        """Return patches; every batch has one size, so that the encoder compiles once."""
        found = np.empty((len(pictures), *self.shape), self.dtype)
        for start in range(0, len(pictures), self.batch_size):
            batch = pictures[start : start + self.batch_size]
            padding = np.repeat(batch[-1:], self.batch_size - len(batch), axis=0)
            images = normalise(np.concatenate([batch, padding]), self.encoder.preprocessing)
            _, patches = self.encoder.encode_patches(images)
            found[start : start + len(batch)] = np.asarray(patches)[: len(batch)]
        return found


def load_patch_input(settings: Settings) -> PatchInput | None:
    """Return the patches of the frozen encoder that the settings name; None if the policy trains its own encoder.

    Raises:
      BadInput: the encoder cannot be loaded, or pictures or grid of the settings do not suit it; names the setting.
    """
    if settings.image_encoder.name != "pretrained":
        return None
    return make_patch_input(settings, load_frozen_encoder(settings))


def make_patch_input(settings: Settings, encoder: FrozenImageEncoder) -> PatchInput:
    """Return the patches of an encoder as a run's settings say; they are float32 with `features.patches="none"`.

    Raises:
      BadInput: pictures or grid of the settings do not suit the encoder; names the setting.
    """
    size, grid, dtype = encoder.preprocessing.size, settings.policy.grid, settings.features.patches
    if settings.image_encoder.image_size != size:
        raise BadInput(
            f"config.image_encoder.image_size: {settings.image_encoder.image_size} is not {size}, the pixels of "
            f"{encoder.name} (boxes are in pixels of the picture that it sees)"
        )
    _, patches = encoder.encode_patches(np.zeros((1, size, size, 3), np.float32))
    _, number, channels = np.shape(patches)
    side = math.isqrt(number)
    if side**2 != number:
        raise BadInput(f"{encoder.name}: its {number} patches of a picture are no square")
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
    """Encode the pictures of a dataset into the run's feature store, each once; return the patches with that store.

    Args:
      patches: without a store.
      dataset: records and pictures.
      settings: of the run, with `features`; without `features.store` nothing is stored.
      workdir: of the run.
      terminal: shows progress and counts.
      processes: of the run; each encodes its share.

    Raises:
      BadInput: a picture cannot be read or encoded, or the store cannot be written.
    """
    encoder = patches.encoder
    if not settings.features.store:
        return patches
    spec = describe_image_store(encoder, patches=patches.dtype)  # type: ignore[arg-type]
    with open_run_store(settings, workdir, spec, terminal, processes) as (store, sharing, _):
        items = []
        for place in range(dataset.num_images):
            (key,) = patches.keys(dataset.load_images([place]))
            items.append(ImageItem(key, functools.partial(dataset.pixels.__getitem__, place), f"picture {place}"))
        counts = encode_together(
            encoder,
            items,
            store,
            sharing,
            say=terminal.say,
            batch_size=patches.batch_size,
            num_threads=settings.data.num_threads,
            progress=terminal.watch,
        )
        store.refresh()
    terminal.say(counts.describe("pictures"))
    return dataclasses.replace(patches, store=store)
