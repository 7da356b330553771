"""The paper's projection block: Linear, LayerNorm, ReLU, Dropout."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from stepcot_jax.models.dropout import drop

LAYER_NORM_EPSILON = 1e-5
"""PyTorch's default, used by the authors' code; Flax's default is 1e-6."""


def layer_norm(*, dtype: DTypeLike, name: str | None = None) -> nn.LayerNorm:
    """Return a LayerNorm with the authors' epsilon and the two-pass variance, which avoids cancellation."""
    return nn.LayerNorm(epsilon=LAYER_NORM_EPSILON, use_fast_variance=False, dtype=dtype, name=name)


class Projection(nn.Module):
    """Linear, LayerNorm, ReLU, Dropout (paper: Appendix D.2 and D.3).

    Attributes:
      width: size of the output.
      dropout_rate: dropout rate of the outputs, 0 to 1.
      dtype: compute dtype; parameters stay float32.
    """

    width: int
    dropout_rate: float
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, features: Float[Array, "*case width"], keep: Bool[Array, "*case out"] | None = None
    ) -> Float[Array, "*case out"]:
        """Project `features` [*case, width] to [*case, out]; `keep` [*case, out] is the dropout mask."""
        hidden = nn.Dense(self.width, dtype=self.dtype, name="linear")(features)
        hidden = nn.relu(layer_norm(dtype=self.dtype, name="norm")(hidden))
        return drop(hidden, keep=keep, rate=self.dropout_rate)
