"""A scan that computes the gradients of shared kernels in one product over all steps.

The transpose of a plain `lax.scan` adds to the gradient of every shared kernel once per step; with some dozens of cases
these sums take as long as the arithmetic. Here the backward scan only collects the gradients of the layers' outputs.
One product over all steps follows: dK = sum over steps of x_s^T dy_s.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

Step = Callable[[Any, Any, Any], tuple[Any, Any]]
_ByIndex = dict[int, Any]
"""Values per shared kernel, keyed by its index among the leaves of the parameters."""


def scan_steps(
    step: Step, params: Any, carry: Any, inputs: Any, *, unroll: bool = False, remat: bool = False
) -> tuple[Any, Any]:
    """Run `lax.scan` of step(params, carry, inputs) over the leading axis of `inputs`, equal up to rounding.

    Only reverse-mode differentiation is supported.

    Args:
      step: (params, carry, inputs of one step) -> (carry, outputs of the step). A kernel of `params` that an `nn.Dense`
        uses must be used only by that layer, once per step.
      params: shared by all steps; the step must not close over other differentiated values.
      carry: state passed from step to step.
      inputs: tree of arrays with a leading step axis.
      unroll: compile the steps one by one, with plain gradients.
      remat: keep only the layers' inputs for the backward pass, and recompute the rest.

    Returns:
      The last carry, and the outputs of all steps on a leading axis.
    """
    num_steps = jax.tree.leaves(inputs)[0].shape[0]
    if unroll or not num_steps:
        return jax.lax.scan(lambda carry, one: step(params, carry, one), carry, inputs, unroll=unroll)
    leaves, structure = jax.tree.flatten(params)
    products = _shapes_of_products(step, params, carry, inputs)
    kernels = {index: leaves[index] for index in products}
    others = {index: leaf for index, leaf in enumerate(leaves) if index not in products}

    def run(kernels: _ByIndex, others: _ByIndex, carry: Any, inputs: Any, taps: _ByIndex) -> tuple[Any, _ByIndex]:
        shared = jax.tree.unflatten(structure, [leaf for _, leaf in sorted((kernels | others).items())])

        def body(carry: Any, scanned: Any) -> tuple[Any, Any]:
            step_inputs, step_taps = scanned
            layers = _TappedLayers(kernels, step_taps)
            with nn.intercept_methods(layers):
                carry, outputs = step(shared, carry, step_inputs)
            return carry, (outputs, layers.inputs)

        body = jax.checkpoint(body, prevent_cse=False) if remat else body
        carry, (outputs, layer_inputs) = jax.lax.scan(body, carry, (inputs, taps), unroll=steps_at_once())
        return (carry, outputs), layer_inputs

    taps = {index: jnp.zeros((num_steps, *product.shape), product.dtype) for index, product in products.items()}

    return _defer_gradients(run, taps)(kernels, others, carry, inputs)


def steps_at_once() -> int:
    """Return how many steps of a scan are compiled into one turn of its loop: 8 on GPUs, 1 elsewhere.

    Without loops XLA makes one CUDA graph of the joint step of seven steps, with fewer kernels; elsewhere one step
    compiles faster.
    """
    return 8 if jax.devices()[0].platform == "gpu" else 1


def _defer_gradients(run: Callable[..., Any], taps: _ByIndex) -> Callable[..., Any]:
    """Return (kernels, others, carry, inputs) -> results of `run`, with the kernels' gradients from the taps."""

    @jax.custom_vjp
    def scanned(kernels: _ByIndex, others: _ByIndex, carry: Any, inputs: Any) -> Any:
        return run(kernels, others, carry, inputs, taps)[0]

    def forward(kernels: _ByIndex, others: _ByIndex, carry: Any, inputs: Any) -> tuple[Any, Any]:
        def run_with(*arguments: Any) -> tuple[Any, _ByIndex]:
            return run(kernels, *arguments)  # the kernels are constants here: no gradient is accumulated

        results, pull_back, layer_inputs = jax.vjp(run_with, others, carry, inputs, taps, has_aux=True)
        dtypes = {index: jnp.zeros((), kernel.dtype) for index, kernel in kernels.items()}
        return results, (pull_back, layer_inputs, dtypes)

    def backward(residuals: Any, gradients: Any) -> tuple[_ByIndex, _ByIndex, Any, Any]:
        pull_back, layer_inputs, dtypes = residuals
        of_others, of_carry, of_inputs, of_products = pull_back(gradients)
        of_kernels = {
            index: _sum_of_outer_products(layer_inputs[index], of_products[index], like.dtype)
            for index, like in dtypes.items()
        }
        return of_kernels, of_others, of_carry, of_inputs

    scanned.defvjp(forward, backward)
    return scanned


class _TappedLayers:
    """Interceptor of Flax methods that records the inputs of linear layers with shared kernels.

    Args:
      kernels: the shared kernels, recognised by identity.
      taps: zeros in the shape of each layer's product, which receive its gradient; None to record the shapes.
    """

    def __init__(self, kernels: _ByIndex, taps: _ByIndex | None) -> None:
        self._kernels, self._taps = kernels, taps
        self.inputs: _ByIndex = {}

    def __call__(
        self, next_method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any
    ) -> Any:
        layer = context.module
        if type(layer) is not nn.Dense or context.method_name != "__call__":
            return next_method(*args, **kwargs)
        variable = layer.get_variable("params", "kernel")
        index = next((index for index, kernel in self._kernels.items() if kernel is variable), None)
        if index is None:
            return next_method(*args, **kwargs)
        if index in self.inputs:
            raise ValueError(f"the kernel of {layer.path} is used twice in a step; expected once")
        dtype = layer.dtype or jnp.promote_types(args[0].dtype, variable.dtype)
        values, kernel = args[0].astype(dtype), variable.astype(dtype)
        if self._taps is None:
            product = self.inputs[index] = values @ kernel
        else:
            product, self.inputs[index] = _tapped_product(values, kernel, self._taps[index]), values
        if not layer.use_bias:
            return product
        return product + jnp.broadcast_to(layer.get_variable("params", "bias").astype(dtype), product.shape)


@jax.custom_vjp
def _tapped_product(
    values: Float[Array, "*rows width"],
    kernel: Float[Array, "width out"],
    tap: Float[Array, "*rows out"],  # noqa: ARG001
) -> Float[Array, "*rows out"]:
    """Return values @ kernel; its gradient goes to the unread `tap` instead of `kernel`."""
    return values @ kernel


def _tapped_product_forward(values: Array, kernel: Array, _: Array) -> tuple[Array, Array]:
    return values @ kernel, kernel


def _tapped_product_backward(kernel: Array, gradient: Array) -> tuple[Array, Array, Array]:
    return gradient @ kernel.T, jnp.zeros_like(kernel), gradient


_tapped_product.defvjp(_tapped_product_forward, _tapped_product_backward)


def _sum_of_outer_products(
    values: Float[Array, "step *rows width"], gradients: Float[Array, "step *rows out"], dtype: DTypeLike
) -> Float[Array, "width out"]:
    """Return the kernel's gradient, accumulated in float32."""
    product = jnp.einsum("...i,...o->io", values, gradients, preferred_element_type=jnp.float32)
    return product.astype(dtype)


def _shapes_of_products(step: Step, params: Any, carry: Any, inputs: Any) -> _ByIndex:
    """Return shape and dtype of the output of each linear layer with a kernel of `params`."""

    def probe(params: Any, carry: Any, inputs: Any) -> _ByIndex:
        layers = _TappedLayers(dict(enumerate(jax.tree.leaves(params))), None)
        with nn.intercept_methods(layers):
            step(params, carry, jax.tree.map(lambda leaf: leaf[0], inputs))
        return layers.inputs

    return jax.eval_shape(probe, params, carry, inputs)
