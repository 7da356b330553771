"""AdamW (paper: Appendix D.6) behind a global-norm clip, and the plateau schedule between epochs (authors' code)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

_SMALL = 2**16
"""Arrays with fewer elements are updated as one vector."""


def make_rate(learning_rate: float, schedule: str, num_updates: int) -> float | optax.Schedule:
    """Return a constant rate, or for the schedule "cosine" one that falls to 0 as half a cosine over the updates."""
    return optax.cosine_decay_schedule(learning_rate, num_updates) if schedule == "cosine" else learning_rate


def make_optimizer(
    *,
    learning_rate: float | optax.Schedule,
    weight_decay: float = 0.01,
    epsilon: float = 1e-8,
    clip_norm: float = 1.0,
    is_packed: bool = True,
) -> optax.GradientTransformation:
    """Return a clip of the global norm, then AdamW, with decoupled decay on every parameter, biases included.

    `is_packed=False` keeps the moments of each parameter under its name, by which they are divided among devices.
    """
    # Injected: `scale_learning_rate` changes the rate without a new compilation, and a checkpoint carries it.
    constants = ("b1", "b2", "eps", "eps_root", "weight_decay")
    adamw = optax.inject_hyperparams(optax.adamw, static_args=constants)(
        learning_rate=learning_rate, weight_decay=weight_decay, eps=epsilon
    )
    optimizer = optax.chain(optax.clip_by_global_norm(clip_norm), adamw)
    return _pack_gradients(optimizer) if is_packed else optimizer


def global_norm(gradients: Any) -> Float[Array, ""]:
    """Return the root of the sum of squares of a tree, computed as the optimizers do, so that XLA computes it once."""
    return optax.tree.norm(_pack(gradients))


def _pack_gradients(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Apply `inner` to all small arrays as one vector, for transformations that treat every element alike."""
    # Four in five arrays are biases, scales and classifiers, whose updates take a quarter of the joint update's compile
    # time and memory if each has its own kernels.

    def init(params: Any) -> Any:
        return inner.init(_pack(params))

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = inner.update(_pack(gradients), state, None if params is None else _pack(params))
        return _unpack(updates, gradients), state

    return optax.GradientTransformation(init, update)


def _pack(tree: Any) -> dict[str, Any]:
    leaves = jax.tree.leaves(tree)
    small = [jnp.ravel(leaf) for leaf in leaves if leaf.size < _SMALL]
    packed: dict[str, Any] = {"large": tuple(leaf for leaf in leaves if leaf.size >= _SMALL)}
    return packed | {"small": jnp.concatenate(small)} if small else packed


def _unpack(packed: dict[str, Any], like: Any) -> Any:
    leaves, structure = jax.tree.flatten(like)
    large, start, unpacked = iter(packed["large"]), 0, []
    for leaf in leaves:
        if leaf.size >= _SMALL:
            unpacked.append(next(large))
        else:
            unpacked.append(packed["small"][start : start + leaf.size].reshape(leaf.shape))
            start += leaf.size
    return jax.tree.unflatten(structure, unpacked)


def scale_learning_rate(state: optax.OptState, factor: float) -> optax.OptState:
    """Return the optimizer state with its learning rate times `factor`."""
    clip_state, adamw_state = state
    hyperparams = dict(adamw_state.hyperparams)
    hyperparams["learning_rate"] = hyperparams["learning_rate"] * factor
    return clip_state, adamw_state._replace(hyperparams=hyperparams)


@dataclasses.dataclass(frozen=True)
class Plateau:
    """Lower the rate and stop when validation no longer improves (teacher-only mode)."""

    patience: int = 2  # epochs without a better score after which the rate is multiplied by `factor`
    factor: float = 0.5
    stop_after: int = 3  # epochs without a better score after which training stops
    best: float = float("-inf")
    waited: int = 0

    def after_epoch(self, score: float) -> "Plateau":
        """Return the schedule after an epoch with this validation score; higher is better."""
        score = float(np.float32(score))  # as a checkpoint keeps it
        if score > self.best:
            return dataclasses.replace(self, best=score, waited=0)
        return dataclasses.replace(self, waited=self.waited + 1)

    @property
    def rate_factor(self) -> float:
        """The factor of the rate after this epoch."""
        return self.factor if self.waited and self.waited % self.patience == 0 else 1.0

    @property
    def stops(self) -> bool:
        """Whether training ends after this epoch."""
        return self.waited >= self.stop_after

    def to_arrays(self) -> dict[str, Any]:
        """Return the schedule's state for a checkpoint."""
        return {"best": np.float32(self.best), "waited": np.int32(self.waited)}

    def start(self) -> dict[str, Array]:
        """Return `to_arrays` as JAX arrays, which a compiled function can return."""
        return jax.tree.map(jnp.asarray, self.to_arrays())

    def restore(self, arrays: Any) -> "Plateau":
        """Return the schedule that `to_arrays` saved."""
        saved = jax.device_get(arrays)
        return dataclasses.replace(self, best=float(saved["best"]), waited=int(saved["waited"]))
