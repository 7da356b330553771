"""The block that the paper repeats: Linear, LayerNorm, ReLU, Dropout."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from stepcot_jax.models.dropout import drop

LAYER_NORM_EPSILON = 1e-5
"""PyTorch's default, under which the authors' code runs; Flax's own default is 1e-6."""


def layer_norm(*, dtype: DTypeLike, name: str | None = None) -> nn.LayerNorm:
    """LayerNorm with the authors' epsilon and the two-pass variance, which does not cancel in float32."""
    return nn.LayerNorm(epsilon=LAYER_NORM_EPSILON, use_fast_variance=False, dtype=dtype, name=name)


class Projection(nn.Module):
    """Linear, LayerNorm, ReLU, Dropout (paper: Appendix D.2 and D.3).

    Attributes:
      width: size of the output.
      dropout_rate: share of outputs set to zero in training, 0 to 1.
      dtype: compute dtype; parameters stay float32.
    """

    width: int
    dropout_rate: float
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, features: Float[Array, "*case width"], keep: Bool[Array, "*case out"] | None = None
    ) -> Float[Array, "*case out"]:
        """Project `features` [*case, width] to [*case, out]; `keep` [*case, out] is dropout's mask, None for none."""
        hidden = nn.Dense(self.width, dtype=self.dtype, name="linear")(features)
        hidden = nn.relu(layer_norm(dtype=self.dtype, name="norm")(hidden))
        return drop(hidden, keep=keep, rate=self.dropout_rate)
