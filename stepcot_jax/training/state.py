"""Everything that training changes, in one tree that a checkpoint holds."""

from typing import Any

import flax.struct
import jax
import optax
from jaxtyping import Array

Params = dict[str, Any]


class TrainState(flax.struct.PyTreeNode):
    """State of a run between two updates.

    Attributes:
      step: int32 scalar, updates since the start of the run.
      params: by part, such as "teacher", "student" or "image_encoder".
      optimizers: optimizer states by network, and the states of schedules.
      key: data of the run's random key, uint32; the keys of an update are folded from it and `step`.
    """

    step: Array
    params: Params
    optimizers: dict[str, optax.OptState]
    key: Array

    def key_of_update(self) -> Array:
        """Return the random key of the next update."""
        return jax.random.fold_in(jax.random.wrap_key_data(self.key), self.step)


def apply_gradients(
    state: TrainState, network: str, optimizer: optax.GradientTransformation, gradients: Params
) -> TrainState:
    """Return the state after one network's optimizer has applied its gradients; `step` stays.

    Args:
      state: before.
      network: whose optimizer state it is.
      optimizer: of that network.
      gradients: by part; the parts that the optimizer trains.
    """
    trained = {name: state.params[name] for name in gradients}
    updates, optimizer_state = optimizer.update(gradients, state.optimizers[network], trained)
    params: Params = {**state.params, **optax.apply_updates(trained, updates)}
    return state.replace(params=params, optimizers={**state.optimizers, network: optimizer_state})


def count_parameters(params: Any) -> int:
    """Return the number of scalars in a parameter tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def shapes_by_name(tree: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of a state or of a checkpoint's metadata, without the random key."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
        if name != "key":
            found[name] = tuple(leaf.shape)
    return found
