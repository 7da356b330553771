"""A data set's images and prompts into feature stores."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from stepcot_jax.data.dataset import Dataset
from stepcot_jax.features.encode import EncodeCounts, ImageItem, Progress, encode_images
from stepcot_jax.features.keys import digest_file, digest_pixels, image_key
from stepcot_jax.features.protocol import FrozenImageEncoder
from stepcot_jax.features.store import FeatureStore


def digest_images(dataset: Dataset, root: Path | None) -> list[str]:
    """The digest of each case's image.

    Args:
      dataset: the cases.
      root: folder that the image paths start from; None where the images are in no file, as the phantom's: then the
        pixels at the encoder's size are digested.

    Raises:
      BadInput: a file cannot be read.
    """
    if root is None:
        return [digest_pixels(dataset.pixels[index]) for index in range(len(dataset.cases))]
    return [digest_file(Path(root) / case.image_path) for case in dataset.cases]


def image_keys(encoder: FrozenImageEncoder, contents: Sequence[str]) -> list[bytes]:
    """The key of each image's feature.

    Args:
      encoder: the encoder.
      contents: from `digest_images`.
    """
    return [
        image_key(encoder_digest=encoder.digest, preprocessing=encoder.preprocessing, content=content)
        for content in contents
    ]


def image_items(dataset: Dataset, keys: Sequence[bytes]) -> Iterator[ImageItem]:
    """The cases' images for `encode_images`.

    Args:
      dataset: the cases; its preprocessing must be the encoder's.
      keys: the key of each case.
    """
    for index, (case, key) in enumerate(zip(dataset.cases, keys, strict=True)):
        yield ImageItem(
            key, lambda index=index: dataset.pixels[index], f"case {index} (image_path {case.image_path!r})"
        )


def fill_images(
    dataset: Dataset,
    encoder: FrozenImageEncoder,
    store: FeatureStore,
    *,
    root: Path | None,
    batch_size: int = 32,
    shard_size: int = 512,
    num_threads: int = 2,
    progress: Progress | None = None,
) -> tuple[list[bytes], EncodeCounts]:
    """Encode every image of a data set that the store does not have.

    Args:
      dataset: the cases; its preprocessing must be the encoder's.
      encoder: the encoder.
      store: of `describe_image_store(encoder)`.
      root: see `digest_images`.
      batch_size: see `encode_images`.
      shard_size: see `encode_images`.
      num_threads: see `encode_images`.
      progress: see `encode_images`.

    Returns:
      The key of each case, for `load_features`, and the counts.

    Raises:
      BadInput: an image cannot be read or encoded.
    """
    if dataset.preprocessing != encoder.preprocessing:
        raise ValueError(f"images are prepared as {dataset.preprocessing}, {encoder.name} asks {encoder.preprocessing}")
    keys = image_keys(encoder, digest_images(dataset, root))
    counts = encode_images(
        encoder,
        image_items(dataset, keys),
        store,
        batch_size=batch_size,
        shard_size=shard_size,
        num_threads=num_threads,
        progress=progress,
    )
    return keys, counts
