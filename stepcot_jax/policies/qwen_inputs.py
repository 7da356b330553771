"""Batches of prompts with images: padding to few sizes, windows of patches, M-RoPE positions."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, UInt8
from PIL import Image

from stepcot_jax.box import QWEN_PIXELS, qwen_size
from stepcot_jax.data.images.preprocessing import CLIP_MEAN, CLIP_STD
from stepcot_jax.encoders.checkpoints import BICUBIC, ConfigFile, read_colours, read_image_processor
from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.qwen import PromptEnds, QwenImages, QwenPrompts, VisionSizes, unit_indices
from stepcot_jax.policies.tokenizers import PretrainedTokenizer, Vocabulary, cut_at_stop

# Images as Qwen2.5-VL's processor prepares them: sides rounded to whole units, normalised, cut into patches.


_LARGEST_MINIMUM = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class QwenPreprocessing:
    """Input format of the vision tower."""

    patch_size: int = 14
    merge_size: int = 2
    min_pixels: int = QWEN_PIXELS[0]
    max_pixels: int = QWEN_PIXELS[1]
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD

    def __post_init__(self) -> None:
        unit = (self.patch_size * self.merge_size) ** 2
        if not unit <= self.min_pixels <= self.max_pixels:
            raise BadInput(
                f"min_pixels {self.min_pixels} and max_pixels {self.max_pixels} are not {unit} or more in order"
            )
        if min(self.std) <= 0 or not np.all(np.isfinite((*self.mean, *self.std))):
            raise BadInput(f"mean {self.mean} and std {self.std} are not finite numbers, the latter above 0")


class CutImage(NamedTuple):
    """An image as patches; those that the merger joins follow each other, units row by row.

    Attributes:
      patches: float32 [patch, feature]; features are colour, frame (both are equal), row, column.
      num_rows: units (merged patches) from top to bottom.
      num_columns: units from left to right.
    """

    patches: Float32[np.ndarray, "patch feature"]
    num_rows: int
    num_columns: int


def read_qwen_preprocessing(folder: pathlib.Path, vision: VisionSizes) -> QwenPreprocessing:
    """Return the preprocessing of a checkpoint's preprocessor_config.json or processor_config.json."""
    config = read_image_processor(folder)
    if config is None:
        raise BadInput(
            f"{folder}: no preprocessor_config.json or processor_config.json with an image processor (expected one "
            "beside config.json)"
        )
    # A processor's null means its default, as does a missing key.
    config = ConfigFile(config.where, {key: value for key, value in config.entries.items() if value is not None})
    for key in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        config.one_of(key, (True,), True)
    config.one_of("resample", (BICUBIC,), BICUBIC)
    config.one_of("temporal_patch_size", (2,), 2)
    config.one_of("patch_size", (vision.patch_size,), 14)
    config.one_of("merge_size", (vision.merge_size,), 2)
    factor = config.number("rescale_factor", 1 / 255, least=0.0, most=1.0)
    if abs(factor * 255 - 1) > 1e-6:
        raise BadInput(f"{config.where}.rescale_factor: {factor!r} is not 1/255")
    least, most = _pixel_limits(config)
    mean, std = (read_colours(config, f"image_{key}", of) for key, of in (("mean", CLIP_MEAN), ("std", CLIP_STD)))
    return QwenPreprocessing(
        patch_size=vision.patch_size,
        merge_size=vision.merge_size,
        min_pixels=least,
        max_pixels=most,
        mean=mean,
        std=std,
    )


def _pixel_limits(config: ConfigFile) -> tuple[int, int]:
    """Return the least and most pixels: keys of their own in published files, an object in newer ones."""
    size = config.group("size")

    def limit(key: str, edge: str, most: int) -> int:
        return config.integer(key, most=most) if key in config.entries else size.integer(edge, most=most)

    # Every picture is enlarged to the minimum: 3,136 pixels in published files.
    return limit("min_pixels", "shortest_edge", _LARGEST_MINIMUM), limit("max_pixels", "longest_edge", 2**40)


def cut_image(pixels: UInt8[np.ndarray, "height width 3"], preprocessing: QwenPreprocessing) -> CutImage:
    """Resize an image (bicubic), normalise it and cut it into patches."""
    if pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size or pixels.dtype != np.uint8:
        raise BadInput(f"image: {pixels.dtype} of shape {list(pixels.shape)} is not uint8 [height, width, 3]")
    width, height = qwen_size(
        (pixels.shape[1], pixels.shape[0]),
        unit=preprocessing.patch_size * preprocessing.merge_size,
        limits=(preprocessing.min_pixels, preprocessing.max_pixels),
    )
    resized = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC), np.float32)
    mean, std = (np.asarray(each, np.float32) for each in (preprocessing.mean, preprocessing.std))
    normal = (resized * np.float32(1 / 255) - mean) / std
    side, merge = preprocessing.patch_size, preprocessing.merge_size
    rows, columns = height // (side * merge), width // (side * merge)
    # [unit row, merged row, pixel row, unit column, merged column, pixel column, colour]
    cut = normal.reshape(rows, merge, side, columns, merge, side, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    frames = np.repeat(cut[:, :, :, :, :, None], 2, axis=5)
    return CutImage(np.ascontiguousarray(frames.reshape(rows * columns * merge**2, -1)), rows, columns)


class QwenPrompt(NamedTuple):
    """A prompt, with one image token for each image."""

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
    prompts: Sequence[QwenPrompt], *, image_token: int = -1, vision: VisionSizes | None = None
) -> tuple[QwenImages | None, QwenPrompts, PromptEnds]:
    """Return a batch for `models.qwen.QwenVl`."""
    images = [image for prompt in prompts for image in prompt.images]
    if images and vision is None:
        raise BadInput(f"the prompts have {len(images)} images (expected none: the model has no vision tower)")
    packed, units = pack_images(images, vision) if images and vision is not None else (None, [])
    laid, first = [], 0
    for place, prompt in enumerate(prompts):
        own = units[first : first + len(prompt.images)]
        laid.append(_lay_out(prompt, own, image_token, name=f"prompt {place + 1}"))
        first += len(prompt.images)
    longest = bucket_size(max(len(row) for row, _, _ in laid), least=16)
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


def pack_images(images: Sequence[CutImage], vision: VisionSizes) -> tuple[QwenImages, list[np.ndarray]]:
    """Return images in windows, padded to one size, and the places of each one's units among those of all images."""
    side, joined = vision.window_units, vision.merge_size**2
    counts = [-(-image.num_rows // side) * -(-image.num_columns // side) for image in images]
    num_windows = bucket_size(max(counts))
    shape = (bucket_size(len(images)), num_windows, side**2 * joined)
    patches = np.zeros((*shape, vision.num_features), np.float32)
    blank: Any = (patches, np.zeros((2, *shape), np.int32), np.zeros(shape, bool))
    packed, units = QwenImages(*blank), []
    for number, image in enumerate(images):
        row, column = np.divmod(np.arange(image.num_rows * image.num_columns), image.num_columns)
        unit = unit_indices(image.num_rows, image.num_columns, vision)
        slots = unit[:, None] * joined + np.arange(joined)
        down, right = np.divmod(np.arange(joined), vision.merge_size)
        for array, values in (
            (patches, image.patches),
            (packed.is_real, True),
            (packed.coordinates[0], (row[:, None] * vision.merge_size + down).reshape(-1)),
            (packed.coordinates[1], (column[:, None] * vision.merge_size + right).reshape(-1)),
        ):
            array[number].reshape(-1, *array.shape[3:])[slots.reshape(-1)] = values
        units.append(number * num_windows * side**2 + unit)
    return packed, units


# The chat template of Qwen2.5 and Qwen2.5-VL: turns as tokens, up to where the reply starts.


SYSTEM = "You are a helpful assistant."
TEXT_SYSTEM = f"You are Qwen, created by Alibaba Cloud. {SYSTEM}"
"""The system prompts of the published chat templates of Qwen2.5-VL and of Qwen2.5, used where a chat has none."""

TURN = ("<|im_start|>", "<|im_end|>")
IMAGE = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
"""Control tokens around a turn, and of an image."""

IMAGE_TOKEN = IMAGE[1]

FRAME = ("\n", f"system\n{SYSTEM}", "user\n", "assistant\n")
"""Texts of the template that a closed vocabulary must have."""


class Turn(NamedTuple):
    """A turn of a chat; its images come before its text."""

    role: str
    text: str
    images: Sequence[Any] = ()  # uint8 [height, width, 3]


def write_turns(
    turns: Sequence[Turn], encode: Callable[[str], list[int]], control: Mapping[str, int], *, system: str = SYSTEM
) -> list[int]:
    """Return the tokens of a chat in the format of the published template, up to where the reply starts."""
    turns = turns if turns and turns[0].role == "system" else [Turn("system", system), *turns]
    start, end = (control[name] for name in TURN)
    newline, tokens = encode("\n"), list[int]()
    for turn in turns:
        shown = [control[name] for _ in turn.images for name in IMAGE]
        # Control tokens divide a text, whose parts are tokenized one by one.
        parts = (f"{turn.role}\n", turn.text) if shown else (f"{turn.role}\n{turn.text}", "")
        first, second = (encode(part) for part in parts)
        tokens += [start, *first, *shown, *second, end, *newline]
    return [*tokens, start, *encode("assistant\n")]


def find_control_tokens(tokenizer: Any, *, source: str, has_images: bool = True) -> dict[str, int]:
    """Return the control tokens of a transformers tokenizer by name."""
    vocabulary, names = tokenizer.get_vocab(), TURN + (IMAGE if has_images else ())
    if missing := [name for name in names if name not in vocabulary]:
        raise BadInput(f"{source}: the tokenizer has no {', '.join(missing)} (expected Qwen's)")
    return {name: vocabulary[name] for name in names}


def refuse_control(text: str, tokens: list[int], control: Mapping[str, int]) -> list[int]:
    """Return the tokens of a text that may come from anyone."""
    if found := sorted(name for name, token in control.items() if token in tokens):
        raise BadInput(f"the text {text[:60]!r} has the control token {', '.join(found)} (expected plain text)")
    return tokens


# A tokenizer of a Qwen2.5-VL policy: prompts are turns of a chat with one image, replies are plain text.


class ChatTokenizer:
    """Any tokenizer with the control tokens of Qwen's chats; `policies.tokenizers.Tokenizer` lists the methods."""

    def __init__(
        self,
        inner: Vocabulary | PretrainedTokenizer,
        control: Mapping[str, int],
        *,
        num_image_tokens: int,
        stops: Sequence[int] = (),
    ) -> None:
        self.inner, self.control, self.num_image_tokens = inner, dict(control), num_image_tokens
        self.num_words = max(inner.num_words, *(token + 1 for token in self.control.values()))
        self.pad, self.stop = inner.pad, self.control[TURN[1]]
        self.more_stops = tuple(token for token in stops if token != self.stop)
        self._of_chats = frozenset(self.control.values())

    @classmethod
    def around(cls, vocabulary: Vocabulary, *, num_image_tokens: int) -> "ChatTokenizer":
        """Return a closed vocabulary with control tokens after its words; its own stop token ends a turn."""
        others = (name for name in (*TURN, *IMAGE) if name != TURN[1])
        control = {name: vocabulary.num_words + place for place, name in enumerate(others)}
        return cls(vocabulary, {**control, TURN[1]: vocabulary.stop}, num_image_tokens=num_image_tokens)

    @property
    def closed(self) -> Vocabulary | None:
        """The closed vocabulary of texts; None if any text has tokens."""
        return self.inner.closed

    @property
    def image_token(self) -> int:
        """Token that stands for an image's vectors."""
        return self.control[IMAGE_TOKEN]

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens."""
        return refuse_control(text, self.inner.encode(text) if text else [], self.control)

    def encode_prompt(self, text: str) -> list[int]:
        """Return the tokens of the user's turn with the image, and of the start of the reply."""
        tokens = write_turns([Turn("user", text, [None])], self.encode, self.control)
        place = tokens.index(self.image_token)
        return [*tokens[:place], *[self.image_token] * self.num_image_tokens, *tokens[place + 1 :]]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens up to the first stop, without control tokens."""
        return self.inner.decode([token for token in cut_at_stop(tokens, self) if token not in self._of_chats])
