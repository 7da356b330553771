"""Update of the memory node: a gated recurrent unit whose input is the last step's answer."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float


class MemoryCell(nn.Module):
    """GRU cell with the equations and both bias vectors of PyTorch's GRUCell (paper: Eq. 16).

    reset, update = sigmoid of input + hidden parts; new = tanh(input part + reset * hidden part);
    memory' = (1 - update) * new + update * memory. Flax's own cell lacks two redundant biases that the published
    parameter count and the authors' checkpoints include.

    Attributes:
      dtype: compute dtype.
    """

    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, conclusion: Float[Array, "case width"], memory: Float[Array, "case width"]
    ) -> Float[Array, "case width"]:
        """Return the memory [case, width] updated with `conclusion` [case, width]."""
        width = memory.shape[-1]
        from_input = nn.Dense(3 * width, dtype=self.dtype, name="input")(conclusion)
        from_memory = nn.Dense(3 * width, dtype=self.dtype, name="hidden")(memory)
        return gated_update(from_input=from_input, from_memory=from_memory, memory=memory)


def gated_update(
    *,
    from_input: Float[Array, "case gates"],
    from_memory: Float[Array, "case gates"],
    memory: Float[Array, "case width"],
) -> Float[Array, "case width"]:
    """Return the updated memory [case, width]; both parts are [case, 3 * width], ordered reset, update, new."""
    reset_input, update_input, new_input = jnp.split(from_input, 3, axis=-1)
    reset_memory, update_memory, new_memory = jnp.split(from_memory, 3, axis=-1)
    reset = nn.sigmoid(reset_input + reset_memory)
    update = nn.sigmoid(update_input + update_memory)
    new = nn.tanh(new_input + reset * new_memory)
    return (1 - update) * new + update * memory
