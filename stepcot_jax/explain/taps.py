"""Read values and gradients inside an image encoder without changing it.

An interceptor of Flax methods records the input or output of chosen modules and adds a tap of zeros to it; the gradient
with respect to the tap is the gradient with respect to the value.
"""

from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Side = Literal["input", "output"]
Choose = Callable[[nn.Module], Side | None]
"""From a module to the tapped side; None leaves it alone."""

Taps = dict[str, Array]
"""An array for each tapped module, by its path."""


class TappedModules:
    """Interceptor of Flax methods."""

    def __init__(self, choose: Choose, taps: Taps) -> None:
        self._choose, self._taps = choose, taps
        self.values: Taps = {}

    def __call__(
        self, next_method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any
    ) -> Any:
        """Call the method and add its module's tap, if any; Flax calls this."""
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
    """Return features [case, width] of any of the package's image encoders."""
    features = network.apply({"params": params}, images)
    return features[0] if isinstance(features, tuple) else features


def find_values(network: nn.Module, params: Any, images: Any, choose: Choose) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of the values that `choose` selects, in the order in which the network computes them."""
    order: list[str] = []

    def run(params: Any, images: Any) -> Taps:
        tapped = TappedModules(choose, {})
        with nn.intercept_methods(tapped):
            encode(network, params, images)
        order.extend(tapped.values)
        return tapped.values

    shapes = jax.eval_shape(run, params, images)
    return {name: shapes[name] for name in order}  # JAX returns a dict sorted by key


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
    """Compute the gradients of each step's logit with respect to the encoder's values.

    Returns:
      The outputs of `read`, the differentiated labels, values [case, ...] and gradients [step, case, ...].
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

    # Cases are independent in an encoder, so that one pass serves the whole batch; each step takes its own pass.
    return outputs, followed, values, jax.vmap(follow)(jnp.eye(chosen.shape[1], dtype=chosen.dtype))
