"""The teacher in the paper's order and symbols (Appendix D.2, Eq. 7 to 16): one step after another.

For readers of the paper. `models.teacher` computes the same numbers faster: it scans over stacked heads, attends over
nodes that the cases share once, and mixes the answers' contributions to the memory's gates instead of projecting each
prediction. A test compares the two on random weights.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stepcot_jax.models.layers import LAYER_NORM_EPSILON


def apply(
    variables: dict[str, Any],
    *,
    image_features: Float[Array, "case image_width"],
    text_features: Float[Array, "*case_or_none step text_width"],
    negative_slope: float = 0.2,
) -> tuple[Array, ...]:
    """Return the logits of every step, without dropout.

    Args:
      variables: {"params": ...} of a `Teacher` with memory, write-back and text.
      image_features: v before its projection, [case, image width].
      text_features: t_s of Eq. 7, [step, text width], or [case, step, text width].
      negative_slope: of the attention's LeakyReLU.

    Returns:
      For each step l_s [case, number of its answers].
    """
    params = variables["params"]
    if "text_projection" in params:  # prompts of another width than the teacher's
        text_features = _linear(params["text_projection"], text_features)
    num_cases, (num_steps, width) = image_features.shape[0], text_features.shape[-2:]
    t = jnp.broadcast_to(text_features, (num_cases, num_steps, width))
    m = jnp.broadcast_to(params["memory_start"], (num_cases, 1, width))
    nodes = jnp.concatenate([t, m], axis=1)  # Eq. 8: the memory is the last node
    logits = []
    for s in range(num_steps):
        nodes = _graph_attention(params["graph_attention"], nodes, negative_slope)
        t_s, m = nodes[:, s], nodes[:, -1]
        c_s = _fuse(params["context"], jnp.concatenate([t_s, m], axis=-1))  # Eq. 12
        v = _fuse(_of_step(params["image_projections"], s), image_features)
        hidden = jnp.concatenate([v, c_s], axis=-1)
        for layer in ("fusion_0", "fusion_1"):
            hidden = _fuse(_of_step(params["heads"], s)[layer], hidden)
        classifier = params[f"classifier_{s}"]
        l_s = _linear(classifier, hidden)  # Eq. 13
        p = jax.nn.softmax(l_s, axis=-1)  # Eq. 14
        e = p @ classifier["kernel"].T  # Eq. 15
        m = _gru_cell(params["memory_cell"], _linear(params["conclusion"], e), m)  # Eq. 16, pred2mem is `conclusion`
        nodes = nodes.at[:, -1].set(m)
        logits.append(l_s)
    return tuple(logits)


def _graph_attention(params: dict[str, Any], h: Array, negative_slope: float) -> Array:
    """Apply all layers; node i attends to the nodes j, and sums over them."""
    for layer in range(sum(name.startswith("attention_") for name in params)):
        attention = params[f"attention_{layer}"]
        projected = jnp.einsum("bjd,dhk->bhjk", h, _by_head(attention))  # Eq. 9
        of_i = jnp.einsum("bhik,hk->bhi", projected, attention["target"])
        of_j = jnp.einsum("bhjk,hk->bhj", projected, attention["source"])
        e = jax.nn.leaky_relu(of_i[..., :, None] + of_j[..., None, :], negative_slope)  # Eq. 10
        alpha = jax.nn.softmax(e, axis=-1)  # Eq. 11
        heads = jnp.einsum("bhij,bhjk->bihk", alpha, projected)
        concatenated = heads.reshape(h.shape) + attention["bias"][None, None]
        h = jax.nn.elu(_layer_norm(params[f"norm_{layer}"], concatenated + _linear(params[f"residual_{layer}"], h)))
    return h


def _by_head(attention: dict[str, Any]) -> Array:
    kernel = attention["linear"]["kernel"]
    return kernel.reshape(kernel.shape[0], *attention["source"].shape)


def _fuse(params: dict[str, Any], x: Array) -> Array:
    return jax.nn.relu(_layer_norm(params["norm"], _linear(params["linear"], x)))


def _gru_cell(params: dict[str, Any], x: Array, m: Array) -> Array:
    r_x, z_x, n_x = jnp.split(_linear(params["input"], x), 3, axis=-1)
    r_m, z_m, n_m = jnp.split(_linear(params["hidden"], m), 3, axis=-1)
    r, z = jax.nn.sigmoid(r_x + r_m), jax.nn.sigmoid(z_x + z_m)
    return (1 - z) * jnp.tanh(n_x + r * n_m) + z * m


def _linear(params: dict[str, Any], x: Array) -> Array:
    y = x @ params["kernel"]
    return y + jnp.broadcast_to(params["bias"], y.shape)


def _layer_norm(params: dict[str, Any], x: Array) -> Array:
    x = (x - x.mean(axis=-1, keepdims=True)) / jnp.sqrt(x.var(axis=-1, keepdims=True) + LAYER_NORM_EPSILON)
    return x * jnp.broadcast_to(params["scale"], x.shape) + jnp.broadcast_to(params["bias"], x.shape)


def _of_step(stacked: Any, s: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[s], stacked)
