"""Parts of a policy: the small decoder's input, its pictures from bytes, and the parameters of both kinds."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, UInt8

from stepcot_jax.encoders.resnet import average_cells
from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.decoder import DecoderSizes, RMSNorm
from stepcot_jax.models.prefix_vlm import sinusoids
from stepcot_jax.policies.tokenizers import Tokenizer

Params = dict[str, Any]

TRAINED, FROZEN = "trained", "frozen"
"""Parts of the parameters of a Qwen2.5-VL."""


class SampledPolicy(Protocol):
    """What `sampling.generate` needs of a network: `apply` with the methods "prefill" and "extend"."""

    @property
    def sizes(self) -> DecoderSizes:
        """Sizes of the decoder."""

    @property
    def dtype(self) -> DTypeLike:
        """Compute dtype."""

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the network, as `flax.linen.Module.apply`."""


class AnyPolicy(SampledPolicy, Protocol):
    """A network that is trained as a policy: `models.prefix_vlm.PrefixVlm`, or `policies.qwen_policy.QwenPolicy`."""

    @property
    def is_large(self) -> bool:
        """Whether matrices are kept in the compute dtype, and optimizers do not pack them."""

    def init(self, *args: Any, **kwargs: Any) -> Any:
        """Return first parameters as the collection "params"."""


class PatchMap(nn.Module):
    """Patch vectors of a frozen encoder, each divided by its root mean square, as the feature map of a policy."""

    grid: int

    @nn.compact
    def __call__(self, patches: Float[Array, "case patch channel"]) -> Float[Array, "case feature"]:
        """Return features float32 [case, grid * grid * channel] of `patches` [case, patch, channel], row by row."""
        number, num_patches, channels = patches.shape
        side = math.isqrt(num_patches)
        normed = RMSNorm(_EPSILON, name="norm")(patches.astype(jnp.float32))
        if side == self.grid:
            return normed.reshape(number, -1)
        return average_cells(normed.reshape(number, side, side, channels), self.grid)


def rotary_sections(head_width: int) -> tuple[int, int, int]:
    """Return how many frequencies turn by time, height and width: about a quarter by time, the rest in equal halves.

    >>> rotary_sections(32)
    (4, 6, 6)
    """
    half = head_width // 2
    side = (half - half // 4) // 2
    return half - 2 * side, side, side


def start_coordinates(params: Params, tokenizer: Tokenizer, *, largest: int) -> Params:
    """Return random parameters of a policy whose coordinate tokens start from sinusoids, so that neighbours are alike.

    Args:
      tokenizer: one that has no token for a coordinate leaves the parameters as they are.
    """
    found = [(tokens[0], number) for number, tokens in _encode_coordinates(tokenizer, largest) if len(tokens) == 1]
    if not found:
        return params
    tokens, numbers = (np.array(column) for column in zip(*found, strict=True))
    embedding = params["decoder"]["embedding"]["embedding"]
    smooth = sinusoids(jnp.asarray(numbers / largest, jnp.float32), embedding.shape[1])
    scale = embedding.shape[1] ** -0.5
    started = embedding.at[tokens].set(_SMOOTH * scale * smooth + _ROUGH * embedding[tokens])
    return {**params, "decoder": {**params["decoder"], "embedding": {"embedding": started}}}


def _encode_coordinates(tokenizer: Tokenizer, largest: int) -> Iterator[tuple[int, list[int]]]:
    for number in range(largest + 1):
        for before in ("", " ", ", "):
            with contextlib.suppress(BadInput):
                yield number, tokenizer.encode(f"{before}{number}")


_EPSILON = 1e-6
_SMOOTH, _ROUGH = 1.4, 0.3  # shares of sinusoids and of the random vectors, whose entries are width^-0.5


def normalise(
    pixels: UInt8[Array, "case height width 3"] | Float[Array, "case patch channel"],
    *,
    mean: Sequence[float],
    std: Sequence[float],
) -> Float[Array, "case height width 3"] | Float[Array, "case patch channel"]:
    """Return pictures as the network's input: float32 (pixels / 255 - mean) / std, as `data.images.preprocessing` does.

    Made for the device: pictures travel there as bytes.

    Args:
      pixels: uint8 [case, height, width, 3]; or patches of a frozen encoder [case, patch, channel], which are the
        input as they are.
    """
    if pixels.ndim == 3:
        return pixels.astype(jnp.float32)
    deviation = np.asarray(std)
    scale = jnp.asarray(1.0 / (255.0 * deviation), jnp.float32)
    shift = jnp.asarray(np.asarray(mean) / deviation, jnp.float32)
    return pixels.astype(jnp.float32) * scale[None, None, None] - shift[None, None, None]


# Parameters of a Qwen2.5-VL are two parts of the training state, what trains and what is frozen; `policy_params` joins
# them for `apply`, `split_parts` divides what `init` returned.


def policy_params(params: Params, part: str) -> Params:
    """Return what a policy's `apply` takes as "params"."""
    return {TRAINED: params[part], FROZEN: params[FROZEN]} if FROZEN in params else params[part]


def split_parts(params: Params, part: str) -> Params:
    """Return the parts of a training state; undoes `policy_params`."""
    return {part: params[TRAINED], FROZEN: params[FROZEN]} if set(params) == {TRAINED, FROZEN} else {part: params}


def lay_out(policy: Any, params: Params) -> Params:
    """Return parameters, or parts of a state, as a loop reads them; see `QwenPolicy.lay_out`."""
    laid: Params = policy.lay_out(params) if getattr(policy, "is_large", False) else params
    return laid


def lay_out_update(policy: Any, params: Params, num_passes: int) -> Params:
    """Return parameters, or parts of a state, as the passes of an update read them; see `QwenPolicy`.

    Their gradients are `unstack_layers` of those by what this returns.
    """
    laid: Params = policy.lay_out_update(params, num_passes) if getattr(policy, "is_large", False) else params
    return laid


def copy_frozen(policy: AnyPolicy, params: Params) -> Params:
    """Return a copy of what trains, for the frozen start of GRPO; that of a Qwen2.5-VL in its compute dtype.

    Its matrices are rounded to that dtype wherever they are used, so that no score changes. Norms stay float32.
    """

    def copy(leaf: Any) -> Any:
        kept = jnp.copy(leaf)
        return kept.astype(policy.dtype) if policy.is_large and leaf.ndim > 1 else kept

    found: Params = jax.tree.map(copy, params)
    return found
