"""Batches of prompts with images: padding to few sizes, windows of patches, M-RoPE positions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.qwen_vision import QwenImages, VisionSizes, unit_places
from stepcot_jax.models.qwen_vl import PromptEnds, QwenPrompts
from stepcot_jax.policies.qwen.qwen_images import CutImage


class QwenPrompt(NamedTuple):
    """A prompt.

    Attributes:
      tokens: with one image token for each image.
      images: in the order of their tokens.
    """

    tokens: Sequence[int]
    images: Sequence[CutImage] = ()


def bucket_size(number: int, *, least: int = 1) -> int:
    """Return the smallest of 1, 2, 3, 4, 6, 8, 12, 16, ... times `least` that holds `number`.

    Few sizes, so that few programs are compiled; at most a third is padding.

    >>> [bucket_size(number) for number in (1, 5, 9, 13)]
    [1, 6, 12, 16]
    """
    size = least
    while size < number:
        size = size * 3 // 2 if size * 3 // 2 >= number and size * 3 % 2 == 0 else size * 2
    return size


def lay_out_prompts(
    prompts: Sequence[QwenPrompt], *, image_token: int = -1, vision: VisionSizes | None = None, num_tokens: int = 0
) -> tuple[QwenImages | None, QwenPrompts, PromptEnds]:
    """Return a batch for `models.qwen_vl.QwenVl`."""
    images = [image for prompt in prompts for image in prompt.images]
    if images and vision is None:
        raise BadInput(f"the prompts have {len(images)} images (expected none: the model has no vision tower)")
    packed, units = pack_images(images, vision) if images and vision is not None else (None, [])
    laid, first = [], 0
    for place, prompt in enumerate(prompts):
        own = units[first : first + len(prompt.images)]
        laid.append(_lay_out(prompt, own, image_token, name=f"prompt {place + 1}"))
        first += len(prompt.images)
    longest = bucket_size(max(num_tokens, *(len(row) for row, _, _ in laid)), least=16)
    shape = (len(laid), longest)
    blank: Any = (np.zeros(shape, np.int32), np.zeros((3, *shape), np.int32), np.full(shape, -1, np.int32))
    rows, ends = QwenPrompts(*blank), PromptEnds(*np.zeros((2, len(laid)), np.int32))
    for case, (row, source, (places, start)) in enumerate(laid):
        real = slice(len(row))
        rows.tokens[case, real], rows.sources[case, real], rows.positions[:, case, real] = row, source, places
        ends.lengths[case], ends.starts[case] = len(row), start
    return packed, rows, ends


def _lay_out(
    prompt: QwenPrompt, units: Sequence[np.ndarray], image_token: int, *, name: str
) -> tuple[list[int], list[int], tuple[np.ndarray, int]]:
    """Return tokens, each image's repeated; sources; and positions with the next one."""
    num_places = sum(token == image_token for token in prompt.tokens)
    if not len(prompt.tokens) or num_places != len(prompt.images):
        raise BadInput(
            f"{name}: {len(prompt.tokens)} tokens, {num_places} of them for images (expected one for each of "
            f"{len(prompt.images)} images, and at least one token)"
        )
    row, sources, waiting = list[int](), list[int](), iter(units)
    for token in prompt.tokens:
        own = next(waiting).tolist() if token == image_token else [-1]
        row += [token] * len(own)
        sources += own
    sizes = [(image.num_rows, image.num_columns) for image in prompt.images]
    return row, sources, rope_positions(row, sizes, image_token=image_token)


def rope_positions(
    tokens: Sequence[int], sizes: Sequence[tuple[int, int]], *, image_token: int
) -> tuple[Int32[np.ndarray, "3 token"], int]:
    """Return the positions of tokens by time, height and width, and the position of the token after them.

    Text counts on in all three. An image's tokens share one time and count their rows and columns from there; text
    goes on after the larger of both.
    """
    parts, start, place = [], 0, 0
    for rows, columns in sizes:
        end = tokens.index(image_token, place)
        grid = np.stack(np.broadcast_arrays(0, np.arange(rows)[:, None], np.arange(columns)[None])).reshape(3, -1)
        text = np.broadcast_to(start + np.arange(end - place), (3, end - place))
        start += end - place
        parts += [text, start + grid]
        start, place = start + max(rows, columns), end + rows * columns
    num_left = len(tokens) - place
    parts.append(np.broadcast_to(start + np.arange(num_left), (3, num_left)))
    return np.concatenate(parts, axis=1).astype(np.int32), start + num_left


def pack_images(
    images: Sequence[CutImage], vision: VisionSizes, *, num_images: int = 0, num_windows: int = 0
) -> tuple[QwenImages, list[np.ndarray]]:
    """Return images in windows, padded to one size.

    Returns:
      The images; and of each the places of its units, row by row, among the units of all images with their padding.
    """
    side, joined = vision.window_units, vision.merge_size**2
    counts = [-(-image.num_rows // side) * -(-image.num_columns // side) for image in images]
    num_windows = bucket_size(max(num_windows, *counts))
    shape = (bucket_size(max(num_images, len(images))), num_windows, side**2 * joined)
    patches = np.zeros((*shape, vision.num_features), np.float32)
    blank: Any = (patches, np.zeros((2, *shape), np.int32), np.zeros(shape, bool))
    packed, units = QwenImages(*blank), []
    for number, image in enumerate(images):
        row, column = np.divmod(np.arange(image.num_rows * image.num_columns), image.num_columns)
        unit = unit_places(image.num_rows, image.num_columns, vision)
        slots = unit[:, None] * joined + np.arange(joined)
        down, right = np.divmod(np.arange(joined), vision.merge_size)
        for array, values in (
            (patches, image.patches),
            (packed.is_real, True),
            (packed.places[0], (row[:, None] * vision.merge_size + down).reshape(-1)),
            (packed.places[1], (column[:, None] * vision.merge_size + right).reshape(-1)),
        ):
            array[number].reshape(-1, *array.shape[3:])[slots.reshape(-1)] = values
        units.append(number * num_windows * side**2 + unit)
    return packed, units
