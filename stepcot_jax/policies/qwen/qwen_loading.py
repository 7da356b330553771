"""Load Qwen2.5 and Qwen2.5-VL from a checkpoint's folder, checked to the last tensor."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from stepcot_jax.encoders.assignment import assign, assign_later
from stepcot_jax.encoders.checkpoint_files import resolve
from stepcot_jax.encoders.weights import read_tensors
from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.decoder_blocks import DecoderSizes
from stepcot_jax.models.qwen_vision import QwenImages, VisionSizes
from stepcot_jax.models.qwen_vl import QwenPrompts, QwenVl
from stepcot_jax.policies.qwen.qwen_config import QwenConfig, note_penalty, read_qwen_config
from stepcot_jax.policies.qwen.qwen_names import qwen_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen:
    """A loaded model.

    Attributes:
      params: its parameters, NumPy arrays or `assignment.Deferred`.
      folder: of the checkpoint, with its tokenizer.
    """

    config: QwenConfig
    network: QwenVl
    params: Any
    folder: pathlib.Path


def load_qwen(
    source: str, *, dtype: DTypeLike = jnp.bfloat16, param_dtype: DTypeLike | Literal["stored"] | None = None
) -> Qwen:
    """Load a model; every tensor is used exactly once.

    Args:
      source: a folder or a Hugging Face id, with config.json and safetensors, in shards or not.
      param_dtype: of the parameters, None for `dtype`; "stored" for that of each tensor in its file, where it is read
        when its values are asked for.
    """
    folder = resolve(source)
    if not folder.is_dir():
        raise BadInput(f"{source}: is a file; expected a folder with config.json and *.safetensors")
    config = read_qwen_config(folder)
    note_penalty(folder)
    network = QwenVl(config.sizes, config.vision, jnp.dtype(dtype))
    kept = None if param_dtype == "stored" else param_dtype or dtype
    params = assign_qwen(read_tensors(folder), network, source=str(folder), dtype=kept)
    return Qwen(config=config, network=network, params=params, folder=folder)


def assign_qwen(
    tensors: Mapping[str, np.ndarray], network: QwenVl, *, source: str, dtype: DTypeLike | None = jnp.float32
) -> dict[str, Any]:
    """Return a network's parameters from named tensors, each used exactly once.

    Args:
      dtype: of the parameters; None for that of each tensor, which is then read when its values are asked for.
    """
    table = qwen_table(tensors, network.sizes, network.vision)
    unused: tuple[str, ...] = ()
    if network.sizes.is_tied and "lm_head.weight" in tensors:
        # Some files repeat the embedding under the head's name.
        (embedding,) = (name for name, place in table.items() if place.path == "decoder/embedding/embedding")
        if embedding in tensors and np.array_equal(tensors["lm_head.weight"], tensors[embedding]):
            unused = ("lm_head.weight",)
    shapes = qwen_shapes(network.sizes, network.vision)
    if dtype is None:
        return assign_later(table, tensors, shapes=shapes, unused=unused, source=source)
    return assign(table, tensors, shapes=shapes, unused=unused, source=source, dtype=dtype)


def qwen_shapes(sizes: DecoderSizes, vision: VisionSizes | None) -> dict[str, Any]:
    """Return the parameter tree with shapes as leaves; nothing is allocated."""

    def init() -> Any:
        tokens = jnp.zeros((1, 2), jnp.int32)
        prompts = QwenPrompts(tokens, jnp.zeros((3, 1, 2), jnp.int32), tokens)
        images = None if vision is None else _blank_images(vision)
        return QwenVl(sizes, vision).init(jax.random.key(0), images, prompts, method="score_texts")["params"]

    shapes: dict[str, Any] = jax.eval_shape(init)
    return shapes


def _blank_images(vision: VisionSizes) -> QwenImages:
    """Return one image of one window."""
    shape = (1, 1, (vision.window_units * vision.merge_size) ** 2)
    return QwenImages(
        patches=jnp.zeros((*shape, vision.num_features)),
        places=jnp.zeros((2, *shape), jnp.int32),
        is_real=jnp.ones(shape, bool),
    )
