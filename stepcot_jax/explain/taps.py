"""Values and gradients inside an image encoder, without a change to the encoder.

An interceptor of Flax methods keeps what chosen modules take in or give out, and adds a tap of zeros to it; the
gradient in the tap is the gradient in the value.
"""

from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Side = Literal["input", "output"]
Choose = Callable[[nn.Module], Side | None]
"""Which modules are tapped, and where."""

Taps = dict[str, Array]
"""An array for each tapped module, by its path."""


class TappedModules:
    """Interceptor of Flax methods.

    Args:
      choose: which modules.
      taps: what is added to their values; a module without one is only watched.
    """

    def __init__(self, choose: Choose, taps: Taps) -> None:
        self._choose, self._taps = choose, taps
        self.values: Taps = {}

    def __call__(
        self, next_method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any
    ) -> Any:
        """Call the method, with its module's tap added where it has one; Flax calls it."""
        side = self._choose(context.module) if context.method_name == "__call__" else None
        name = "/".join(context.module.path)
        if side == "input":
            return next_method(self._tap(name, args[0]), *args[1:], **kwargs)
        value = next_method(*args, **kwargs)
        return self._tap(name, value) if side == "output" else value

    def _tap(self, name: str, value: Array) -> Array:
        self.values[name] = value
        tap = self._taps.get(name)
        return value if tap is None else value + tap.astype(value.dtype)


def encode(network: nn.Module, params: Any, images: Float[Array, "case height width 3"]) -> Array:
    """Features [case, width] of any of the package's image encoders."""
    features = network.apply({"params": params}, images)
    return features[0] if isinstance(features, tuple) else features


def find_values(network: nn.Module, params: Any, images: Any, choose: Choose) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the values that `choose` names, in the order in which the network makes them."""
    order: list[str] = []

    def run(params: Any, images: Any) -> Taps:
        tapped = TappedModules(choose, {})
        with nn.intercept_methods(tapped):
            encode(network, params, images)
        order.extend(tapped.values)
        return tapped.values

    shapes = jax.eval_shape(run, params, images)
    return {name: shapes[name] for name in order}  # a dict that went through JAX comes back sorted


def step_gradients(
    *,
    network: nn.Module,
    params: Any,
    images: Float[Array, "case height width 3"],
    read: Callable[[Array], tuple[Float[Array, "case step answer"], Any]],
    labels: Int[Array, "case step"],
    choose: Choose,
    tapped: dict[str, jax.ShapeDtypeStruct],
) -> tuple[tuple[Array, Any], Int[Array, "case step"], Taps, Taps]:
    """Gradients of each step's logit in the encoder's values.

    Args:
      network: images -> features.
      params: its parameters.
      images: [case, height, width, 3].
      read: features -> padded logits, and whatever else comes with them.
      labels: the answer whose logit is followed; below 0 the most probable one.
      choose: whose values are kept.
      tapped: whose gradients are wanted, with the shapes of their values.

    Returns:
      What `read` returned, the labels whose logits were followed, values [case, ...] and gradients [step, case, ...].
    """

    def run(taps: Taps) -> tuple[Array, Any]:
        modules = TappedModules(choose, taps)
        with nn.intercept_methods(modules):
            features = encode(network, params, images)
        logits, rest = read(features)
        followed = jnp.where(labels >= 0, labels, jnp.argmax(logits, axis=-1).astype(labels.dtype))
        chosen = jnp.take_along_axis(logits, followed[..., None], axis=-1)[..., 0]
        return chosen, ((logits, rest), followed, modules.values)

    taps = {name: jnp.zeros(shape.shape, shape.dtype) for name, shape in tapped.items()}
    chosen, pull_back, (outputs, followed, values) = jax.vjp(run, taps, has_aux=True)

    def follow(step: Array) -> Taps:
        return pull_back(jnp.broadcast_to(step[None], chosen.shape))[0]

    # Cases do not meet in an encoder, so that one pass serves all of a batch; the steps do, and take one pass each.
    return outputs, followed, values, jax.vmap(follow)(jnp.eye(chosen.shape[1], dtype=chosen.dtype))
