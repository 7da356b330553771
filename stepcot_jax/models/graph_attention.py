"""Graph attention on the complete graph of steps and memory node (paper: Eq. 1, 2 and 9 to 11)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from stepcot_jax.models.dropout import drop
from stepcot_jax.models.projection import layer_norm


class GraphAttention(nn.Module):
    """One multi-head graph-attention layer (Velickovic et al., 2018) on a complete graph with self loops.

    For destination i and source j of one head: score_ij = LeakyReLU(a_dst . W x_i + a_src . W x_j), softmax
    over j, dropout, and the weighted sum of W x_j. The heads are concatenated and a bias is added.

    Attributes:
      num_heads: number of heads.
      head_width: output size of a head; the layer's output has num_heads * head_width.
      negative_slope: slope of the LeakyReLU below zero.
      dropout_rate: dropout rate of the attention weights.
      dtype: compute dtype; scores and softmax stay float32.
    """

    num_heads: int
    head_width: int
    negative_slope: float = 0.2
    dropout_rate: float = 0.1
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        nodes: Float[Array, "*case node width"],
        *,
        node_mask: Bool[Array, "*#case node"] | None = None,
        keep: Bool[Array, "case head node node"] | None = None,
    ) -> tuple[Float[Array, "*out_case node out"], Float[Array, "*case head node node"]]:
        """Attend from every node to all allowed nodes.

        Args:
          nodes: [*case, node, width]; without a case axis if all cases share their nodes.
          node_mask: True where a node may be attended to; a node without any source gets only the bias.
          keep: [case, head, node i, node j], dropout mask of the attention weights. Nodes shared by all cases are
            still projected once.

        Returns:
          Nodes [*case, node, out], with a case axis if `nodes` or `keep` has one, and attention weights before dropout
          [*case, head, node i, node j].
        """
        heads = (self.num_heads, self.head_width)
        width = self.num_heads * self.head_width
        projected = nn.Dense(width, use_bias=False, dtype=self.dtype, name="linear")(nodes)
        projected = projected.reshape(*projected.shape[:-1], *heads)
        initializer = nn.initializers.glorot_uniform()
        source = jnp.einsum("...jhd,hd->...hj", projected, self.param("source", initializer, heads).astype(self.dtype))
        target = jnp.einsum("...ihd,hd->...hi", projected, self.param("target", initializer, heads).astype(self.dtype))
        scores = (target[..., :, None] + source[..., None, :]).astype(jnp.float32)
        allowed = None if node_mask is None else node_mask[..., None, None, :]
        attention = masked_softmax(nn.leaky_relu(scores, self.negative_slope), allowed=allowed)
        weights = attention if keep is None else jnp.broadcast_to(attention, keep.shape)
        weights = drop(weights, keep=keep, rate=self.dropout_rate).astype(self.dtype)
        mixed = jnp.einsum("...hij,...jhd->...ihd", weights, projected)
        mixed = mixed.reshape(*mixed.shape[:-2], self.num_heads * self.head_width)
        bias = self.param("bias", nn.initializers.zeros, (self.num_heads * self.head_width,))
        return mixed + jnp.broadcast_to(bias.astype(self.dtype), mixed.shape), attention


def masked_softmax(
    scores: Float[Array, "*shape answer"], *, allowed: Bool[Array, "*#shape answer"] | None
) -> Float[Array, "*shape answer"]:
    """Softmax over the allowed entries of the last axis; zeros if none is allowed, never NaN.

    >>> masked_softmax(jnp.zeros((1, 2)), allowed=jnp.array([[True, False]])).tolist()
    [[1.0, 0.0]]
    """
    if allowed is None:
        return jax.nn.softmax(scores, axis=-1)
    # The inner where keeps a fully masked row finite, so that its gradient is zero instead of NaN.
    any_allowed = jnp.any(allowed, axis=-1, keepdims=True)
    filled = jnp.where(allowed, scores, jnp.where(any_allowed, -jnp.inf, 0.0))
    return jnp.where(allowed, jax.nn.softmax(filled, axis=-1), 0.0)


class GraphAttentionStack(nn.Module):
    """Layers of graph attention, each with a linear residual, LayerNorm and ELU (paper: Appendix D.2).

    Attributes:
      num_layers: number of layers.
      num_heads: heads of each layer.
      width: size of a node; a head has width / num_heads.
      negative_slope: slope of the LeakyReLU below zero.
      dropout_rate: dropout of the attention weights.
      dtype: compute dtype.
    """

    num_layers: int
    num_heads: int
    width: int
    negative_slope: float = 0.2
    dropout_rate: float = 0.1
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        if self.num_layers < 1 or self.num_heads < 1 or self.width % self.num_heads:
            raise ValueError(
                "num_layers must be at least 1 and num_heads a divisor of width; got "
                f"{self.num_layers}, {self.num_heads} and {self.width}"
            )
        super().__post_init__()

    @nn.compact
    def __call__(
        self,
        nodes: Float[Array, "*case node width"],
        *,
        node_mask: Bool[Array, "*#case node"] | None = None,
        keep: Bool[Array, "case layer head node node"] | None = None,
    ) -> tuple[Float[Array, "*out_case node width"], list[Float[Array, "*_ head node node"]]]:
        """Return nodes [*case, node, width] after all layers, and each layer's attention [*case, head, node i, node j].

        Arguments as for `GraphAttention`; `keep` has a mask per layer.
        """
        attentions = []
        for layer in range(self.num_layers):
            residual = nn.Dense(self.width, dtype=self.dtype, name=f"residual_{layer}")(nodes)
            attended, attention = GraphAttention(
                num_heads=self.num_heads,
                head_width=self.width // self.num_heads,
                negative_slope=self.negative_slope,
                dropout_rate=self.dropout_rate,
                dtype=self.dtype,
                name=f"attention_{layer}",
            )(nodes, node_mask=node_mask, keep=None if keep is None else keep[:, layer])
            if attended.ndim > residual.ndim:
                residual = residual[None]
            nodes = nn.elu(layer_norm(dtype=self.dtype, name=f"norm_{layer}")(attended + residual))
            attentions.append(attention)
        return nodes, attentions
