"""A policy as two pure functions of named tensors: prefill, which reads image and prompt, and one decoded token."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.export.program import PLATFORMS, Tensors
from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.decoder import KeyValues, Prefix, empty_cache
from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.reading.trained_policy import TrainedPolicy
from stepcot_jax.run.stored_policy import FROZEN_ENCODER
from stepcot_jax.training.state import flatten, unflatten

Caches = list[Array]
"""Keys, then values, of each layer: [rollout, slot, kv_head * head_width]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyPrograms:
    """The programs of a policy.

    Attributes:
      prefill: (tensors, images float32 [rollout, size, size, 3], prompts int32 [rollout, token], lengths int32
        [rollout]) -> scores of the first token float32 [rollout, word], caches of the prompt, empty ones of the reply.
      extend: (tensors, tokens int32 [rollout], place int32 [], lengths, caches of the prompt, caches of the reply) ->
        scores of the next token, caches of the reply.
      size: height and width of an image in pixels.
      prompt_length: tokens that prompts are padded to.
    """

    prefill: Callable[..., tuple[Array, Caches, Caches]]
    extend: Callable[..., tuple[Array, Caches]]
    tensors: Tensors
    size: int
    prompt_length: int


def make_policy_programs(trained: TrainedPolicy) -> PolicyPrograms:
    """Return the programs of a trained policy with the small decoder; a frozen encoder is part of the first."""
    network, lengths_of = trained.network, trained.lengths
    if not isinstance(network, PrefixVlm):
        raise TypeError(f"trained: {type(network).__name__} has no programs; expected a PrefixVlm")

    see, frozen = _frozen_encoder(trained)

    def prefill(tensors: Tensors, images: Array, prompts: Array, lengths: Array) -> tuple[Array, Caches, Caches]:
        variables = {"params": unflatten(tensors)}
        images = see(variables["params"].pop(FROZEN_ENCODER, None), images)
        scores, prefix = network.apply(variables, images, prompts, lengths, method="prefill")
        empty = empty_cache(
            network.sizes, num_rollouts=lengths.shape[0], num_slots=lengths_of.reply_length, dtype=network.dtype
        )
        return scores, [part for each in prefix for part in each.layer], [part for layer in empty for part in layer]

    def extend(
        tensors: Tensors, tokens: Array, place: Array, lengths: Array, prompt: Caches, reply: Caches
    ) -> tuple[Array, Caches]:
        variables = {"params": unflatten(tensors)}
        variables["params"].pop(FROZEN_ENCODER, None)
        is_real = jnp.arange(prompt[0].shape[1])[None] < network.num_cells + lengths[:, None]
        scores, layers = network.apply(
            variables,
            tokens,
            place,
            lengths,
            _pair(reply),
            prefix=tuple(Prefix(layer, is_real) for layer in _pair(prompt)),
            method="extend",
        )
        return scores, [part for cache in layers for part in cache]

    arrays: dict[str, Any] = {
        key: np.asarray(value) for key, value in sorted(flatten({**trained.params, **frozen}).items())
    }
    return PolicyPrograms(
        prefill=prefill,
        extend=extend,
        tensors=arrays,
        size=trained.preprocessing.size,
        prompt_length=lengths_of.prompt_length,
    )


def _frozen_encoder(trained: TrainedPolicy) -> tuple[Callable[[Any, Array], Array], dict[str, Any]]:
    """Return the function from its parameters and normalised images to the network's input, and the parameters."""
    patches = trained.patches
    if patches is None:
        return (lambda _, images: images), {}
    encoder, dtype = patches.encoder, patches.dtype
    if not isinstance(encoder, ImageEncoder):
        raise BadInput(
            f"{trained.workdir}: the policy reads {encoder.name}, which runs in PyTorch; an export needs an image "
            "encoder of this package, see docs/encoders.md"
        )

    def see(params: Any, images: Array) -> Array:
        found: Array = encoder.network.apply({"params": params}, images)[1]
        # Computed as in the run, apart from what reads it: below float32 other fusions round otherwise.
        found = jax.lax.optimization_barrier(found)
        return found.astype(dtype).astype(jnp.float32)

    return see, {FROZEN_ENCODER: encoder.params}


def _pair(caches: Caches) -> tuple[KeyValues, ...]:
    return tuple(KeyValues(*pair) for pair in zip(caches[::2], caches[1::2], strict=True))


def export_policy_programs(programs: PolicyPrograms) -> dict[str, jax.export.Exported]:
    """Return StableHLO of both programs, for any number of rollouts on every platform."""
    (number,) = jax.export.symbolic_shape("rollout")
    tensors = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in programs.tensors.items()}
    counts = jax.ShapeDtypeStruct((number,), jnp.int32)
    asked = (
        tensors,
        jax.ShapeDtypeStruct((number, programs.size, programs.size, 3), jnp.float32),
        jax.ShapeDtypeStruct((number, programs.prompt_length), jnp.int32),
        counts,
    )
    prefill = jax.jit(programs.prefill)
    _, *caches = jax.eval_shape(prefill, *asked)
    drawn = (tensors, counts, jax.ShapeDtypeStruct((), jnp.int32), counts, *caches)
    functions = {"prefill": (prefill, asked), "extend": (jax.jit(programs.extend), drawn)}
    return {
        name: jax.export.export(function, platforms=PLATFORMS)(*shapes)
        for name, (function, shapes) in functions.items()
    }
