"""Ask a Qwen2.5 or Qwen2.5-VL: turns of a chat, with images, to the text of the reply."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import UInt8

from stepcot_jax.encoders.text_encoder import load_tokenizer
from stepcot_jax.host.errors import BadInput
from stepcot_jax.policies.qwen_inputs import (
    SYSTEM,
    TEXT_SYSTEM,
    CutImage,
    QwenPreprocessing,
    QwenPrompt,
    Turn,
    cut_image,
    find_control_tokens,
    lay_out_prompts,
    read_qwen_preprocessing,
    refuse_control,
    write_turns,
)
from stepcot_jax.policies.qwen_weights import Qwen, load_qwen
from stepcot_jax.policies.sampling import Sampling, generate, rollout_keys
from stepcot_jax.policies.tokenizers import special_tokens

_LONGEST_TEXT = 2**17


class ChatReply(NamedTuple):
    """A reply; `is_cut` if it reached the longest length without a stop token. Tokens of images and stop count."""

    text: str
    num_prompt: int
    num_tokens: int
    is_cut: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class QwenReader:
    """A model with its tokenizer and its preprocessing; made by `load_qwen_reader`."""

    model: Qwen
    tokenizer: Any
    preprocessing: QwenPreprocessing | None

    def reply(
        self, chats: Sequence[Sequence[Turn]], *, longest: int = 512, temperature: float = 0.0, seed: int = 0
    ) -> list[str]:
        """Return the text of the reply to each chat; see `answer`."""
        return [each.text for each in self.answer(chats, longest=longest, temperature=temperature, seed=seed)]

    def answer(
        self, chats: Sequence[Sequence[Turn]], *, longest: int = 512, temperature: float = 0.0, seed: int = 0
    ) -> list[ChatReply]:
        """Return the reply to each chat."""
        prompts = [self.write_prompt(chat) for chat in chats]
        return self.answer_prompts(prompts, longest=longest, temperature=temperature, seed=seed)

    def answer_prompts(
        self, prompts: Sequence[QwenPrompt], *, longest: int = 512, temperature: float = 0.0, seed: int = 0
    ) -> list[ChatReply]:
        """Return the reply to each chat that `write_prompt` has written."""
        config = self.model.config
        batch = lay_out_prompts(prompts, image_token=config.image_token, vision=config.vision)
        sampling = Sampling(
            longest=longest,
            stop=config.stops[0],
            more_stops=config.stops[1:],
            greedy=not temperature,
            temperature=temperature or 1.0,
        )
        keys = rollout_keys(jax.random.key(seed), first=0, number=len(prompts))
        given = jax.tree.map(jnp.asarray, batch)
        replies = generate(self.model.network, self.model.params, *given, sampling=sampling, keys=keys)
        found = []
        rows = map(np.asarray, (replies.tokens, replies.counted, batch[2].lengths))
        for row, real, length in zip(*rows, strict=True):
            tokens = row[real].tolist()
            text = self.tokenizer.decode(tokens, skip_special_tokens=True)
            found.append(ChatReply(text, int(length), len(tokens), tokens[-1] not in config.stops))
        return found

    def write_prompt(self, chat: Sequence[Turn]) -> QwenPrompt:
        """Return a chat as tokens, in the format of the published chat template, up to where the reply starts."""
        images = [self._cut(pixels) for turn in chat for pixels in turn.images]
        has_images = self.preprocessing is not None
        control = find_control_tokens(self.tokenizer, source=str(self.model.folder), has_images=has_images)
        refused = {**special_tokens(self.tokenizer), **control}

        def encode(text: str) -> list[int]:
            tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False) if text else []
            return refuse_control(text, tokens, refused)

        return QwenPrompt(write_turns(chat, encode, control, system=SYSTEM if has_images else TEXT_SYSTEM), images)

    def size_of(self, image: CutImage) -> tuple[int, int]:
        """Return width and height of the resized picture, in whose pixels the model writes boxes."""
        assert self.preprocessing is not None  # noqa: S101 - it has cut the image
        unit = self.preprocessing.patch_size * self.preprocessing.merge_size
        return image.num_columns * unit, image.num_rows * unit

    def _cut(self, pixels: UInt8[np.ndarray, "height width 3"]) -> CutImage:
        if self.preprocessing is None:
            raise BadInput(f"{self.model.folder}: a text model was shown an image (expected none)")
        return cut_image(pixels, self.preprocessing)


def load_qwen_reader(source: str, *, dtype: DTypeLike = jnp.bfloat16, max_pixels: int | None = None) -> QwenReader:
    """Load a model with its tokenizer onto the default device."""
    model = load_qwen(source, dtype=dtype)
    vision = model.config.vision
    preprocessing = None if vision is None else read_qwen_preprocessing(model.folder, vision)
    if preprocessing is not None and max_pixels is not None:
        least = min(preprocessing.min_pixels, max_pixels)
        preprocessing = dataclasses.replace(preprocessing, min_pixels=least, max_pixels=max_pixels)
    tokenizer = load_tokenizer(
        model.folder, max_tokens=_LONGEST_TEXT, vocabulary_size=model.config.sizes.num_words
    ).loaded
    on_device = dataclasses.replace(model, params=jax.tree.map(jnp.asarray, model.params))
    return QwenReader(model=on_device, tokenizer=tokenizer, preprocessing=preprocessing)
