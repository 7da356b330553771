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
from stepcot_jax.policies.decoder_policy import generate
from stepcot_jax.policies.qwen.qwen_batches import QwenPrompt, lay_out_prompts
from stepcot_jax.policies.qwen.qwen_images import CutImage, QwenPreprocessing, cut_image, read_qwen_preprocessing
from stepcot_jax.policies.qwen.qwen_loading import Qwen, load_qwen
from stepcot_jax.policies.rollouts import Sampling, rollout_keys

SYSTEM = "You are a helpful assistant."
"""The system prompt of the published chat template, used where a chat has none."""

_LONGEST_TEXT = 2**17
_TURN = ("<|im_start|>", "<|im_end|>")
_IMAGE = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")


class Turn(NamedTuple):
    """A turn of a chat.

    Attributes:
      role: "system", "user" or "assistant".
      text: what is said.
      images: uint8 [height, width, 3] each, before the text.
    """

    role: str
    text: str
    images: Sequence[UInt8[np.ndarray, "height width 3"]] = ()


class ChatReply(NamedTuple):
    """A reply.

    Attributes:
      text: without control tokens.
      num_prompt: tokens of the prompt, of images included.
      num_tokens: tokens of the reply, a stop token included.
      is_cut: whether it reached the longest length without a stop token.
    """

    text: str
    num_prompt: int
    num_tokens: int
    is_cut: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class QwenReader:
    """A model with its tokenizer and its preprocessing; made by `load_qwen_reader`.

    Attributes:
      model: the network and its parameters, on the device.
      tokenizer: of transformers.
      preprocessing: of images; None for a text model.
    """

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
        """Return the reply to each chat.

        Args:
          chats: a batch; the last turn of each is the user's.
          longest: most tokens of a reply; a longer one is cut.
          temperature: 0 for the likeliest token at each place.
          seed: of the draws at a temperature above 0.

        Raises:
          BadInput: a text has a control token, or a text model is shown an image.
        """
        prompts = [self.write_prompt(chat) for chat in chats]
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
        for row, real, length in zip(
            *map(np.asarray, (replies.tokens, replies.counted, batch[2].lengths)), strict=True
        ):
            tokens = row[real].tolist()
            text = self.tokenizer.decode(tokens, skip_special_tokens=True)
            found.append(ChatReply(text, int(length), len(tokens), tokens[-1] not in config.stops))
        return found

    def write_prompt(self, chat: Sequence[Turn]) -> QwenPrompt:
        """Return a chat as tokens, in the format of the published chat template, up to where the reply starts.

        Raises:
          BadInput: see `reply`.
        """
        turns = list(chat) if chat and chat[0].role == "system" else [Turn("system", SYSTEM), *chat]
        control = self._control_tokens()
        start, end = (control[name] for name in _TURN)
        newline, tokens, images = self._encode("\n", control), list[int](), list[CutImage]()
        for turn in turns:
            images += [self._cut(pixels) for pixels in turn.images]
            shown = [control[name] for _ in turn.images for name in _IMAGE]
            # Control tokens divide a text, whose parts are tokenized one by one.
            parts = (f"{turn.role}\n", turn.text) if shown else (f"{turn.role}\n{turn.text}", "")
            first, second = (self._encode(part, control) for part in parts)
            tokens += [start, *first, *shown, *second, end, *newline]
        return QwenPrompt([*tokens, start, *self._encode("assistant\n", control)], images)

    def _cut(self, pixels: UInt8[np.ndarray, "height width 3"]) -> CutImage:
        if self.preprocessing is None:
            raise BadInput(f"{self.model.folder}: a text model was shown an image (expected none)")
        return cut_image(pixels, self.preprocessing)

    def _control_tokens(self) -> dict[str, int]:
        vocabulary, names = self.tokenizer.get_vocab(), _TURN + (_IMAGE if self.preprocessing else ())
        if missing := [name for name in names if name not in vocabulary]:
            raise BadInput(f"{self.model.folder}: the tokenizer has no {', '.join(missing)} (expected Qwen's)")
        return {name: vocabulary[name] for name in names}

    def _encode(self, text: str, control: dict[str, int]) -> list[int]:
        """Return the tokens of a text that may come from anyone."""
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False) if text else []
        # A question could otherwise end its turn and speak for the model.
        if set(tokens) & set(control.values()):
            names = ", ".join(name for name, token in control.items() if token in tokens)
            raise BadInput(f"the text {text[:60]!r} has the control token {names} (expected plain text)")
        return tokens


def load_qwen_reader(source: str, *, dtype: DTypeLike = jnp.bfloat16, max_pixels: int | None = None) -> QwenReader:
    """Load a model with its tokenizer onto the default device.

    Args:
      source: a folder or a Hugging Face id.
      dtype: of parameters and computation.
      max_pixels: of an image, a larger one is shrunk; None for the checkpoint's.

    Raises:
      BadInput: see `load_qwen`; or the tokenizer or the preprocessing is missing or unfit.
    """
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
