"""Fine-tune Qwen2.5-VL as GEMeX and MEDSAGE do: projector and decoder train, the vision tower is frozen."""

import contextlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from stepcot_jax.losses.sequence import NO_PART, sequence_loss
from stepcot_jax.models.low_rank import LowRankSettings, adapt_layers
from stepcot_jax.models.qwen_vision import QwenImages, VisionSizes
from stepcot_jax.models.qwen_vl import QwenPrompts, QwenVl
from stepcot_jax.policies.qwen.qwen_batches import QwenPrompt, lay_out_prompts
from stepcot_jax.policies.qwen.qwen_sharding import divide_cases

DECODER_AND_PROJECTOR = r"decoder/.*|tower/merger_.*"
PROJECTOR = r"tower/merger_.*"
"""Parameters that train, as regular expressions of whole '/'-joined paths."""


class TuningRows(NamedTuple):
    """A batch of prompts with their replies.

    Attributes:
      images: of all prompts; None for none.
      texts: prompts, each followed by its reply.
      targets: [case, token], the token after each.
      parts: [case, token], 0 where the token after is one of the reply, else `losses.sequence.NO_PART`.
    """

    images: QwenImages | None
    texts: QwenPrompts
    targets: Int[Array, "case token"]
    parts: Int[Array, "case token"]


def lay_out_replies(
    prompts: Sequence[QwenPrompt],
    replies: Sequence[Sequence[int]],
    *,
    image_token: int = -1,
    vision: VisionSizes | None = None,
    num_tokens: int = 0,
) -> TuningRows:
    """Return a batch of fine-tuning."""
    joined = [
        QwenPrompt([*prompt.tokens, *reply], prompt.images) for prompt, reply in zip(prompts, replies, strict=True)
    ]
    images, texts, ends = lay_out_prompts(joined, image_token=image_token, vision=vision, num_tokens=num_tokens)
    targets: Any = np.roll(np.asarray(texts.tokens), -1, axis=1)
    places, lengths = np.arange(targets.shape[1])[None], np.asarray(ends.lengths)[:, None]
    first = lengths - np.array([len(reply) for reply in replies])[:, None]
    parts: Any = np.where((places >= first - 1) & (places < lengths - 1), 0, NO_PART).astype(np.int32)
    return TuningRows(images, texts, targets, parts)


def split_params(params: Any, trained: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters that train, in float32, and those that do not, flat, by '/'-joined path.

    In bfloat16 an update of less than 1/256 of a parameter would be lost.
    """
    chosen, frozen = divide_params(params, trained)
    return {path: leaf.astype(jnp.float32) for path, leaf in chosen.items()}, frozen


def divide_params(params: Any, trained: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """As `split_params`, but all arrays stay as they are."""
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    chosen = {path: leaf for path, leaf in flat.items() if re.fullmatch(trained, path)}
    return chosen, {path: leaf for path, leaf in flat.items() if path not in chosen}


def join_params(trained: dict[str, Any], frozen: dict[str, Any]) -> Any:
    """Undo `split_params`."""
    return flax.traverse_util.unflatten_dict({**frozen, **trained}, sep="/")


class Tuned(NamedTuple):
    """What an update changes."""

    params: dict[str, Array]
    low_rank: dict[str, dict[str, Array]]


def tuning_loss(
    tuned: Tuned,
    frozen: dict[str, Array],
    rows: TuningRows,
    *,
    network: QwenVl,
    low_rank: LowRankSettings | None = None,
    mesh: Mesh | None = None,
) -> Float[Array, ""]:
    """Return the mean cross-entropy of the replies' tokens in nats (MEDSAGE: Eq. 7)."""
    adapted = contextlib.nullcontext() if low_rank is None else adapt_layers(tuned.low_rank, low_rank)
    with adapted, divide_cases(mesh):
        params = join_params(tuned.params, frozen)
        logits: Any = network.apply({"params": params}, rows.images, rows.texts, method="score_texts")
    return sequence_loss(
        logits=logits, tokens=rows.targets, parts=rows.parts, part_weights=jnp.ones((rows.parts.shape[0], 1))
    )


def tuning_update(
    tuned: Tuned,
    state: Any,
    frozen: dict[str, Array],
    rows: TuningRows,
    *,
    network: QwenVl,
    optimizer: optax.GradientTransformation,
    low_rank: LowRankSettings | None = None,
    mesh: Mesh | None = None,
) -> tuple[Tuned, Any, Float[Array, ""]]:
    """Return what trains and the optimizer's state after an update, and the loss before it.

    Gradients and the optimizer's state exist for `tuned` alone.
    """
    differentiate = jax.value_and_grad(tuning_loss)
    loss, gradients = differentiate(tuned, frozen, rows, network=network, low_rank=low_rank, mesh=mesh)
    updates, state = optimizer.update(gradients, state, tuned)
    return optax.apply_updates(tuned, updates), state, loss
