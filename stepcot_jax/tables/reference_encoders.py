"""Encoders of the paper's Table 11 with random weights, whose cost does not depend on their values."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

REFERENCES = ("ResNet18", "ResNet50", "DenseNet121", "CLIP")
"""Names in Table 11; this package has no EfficientNet-B3, FLAVA, BLIP or VisualBERT of its own."""

_IMAGE_SIZE = 224


@dataclasses.dataclass(frozen=True)
class Reference:
    """An encoder with random weights.

    Attributes:
      encode: normalised images float32 [case, size, size, 3] -> features [case, feature].
      size: of the images in px.
      num_parameters: without BatchNorm's statistics and classifiers; of CLIP both towers, of which one is run.
    """

    encode: Callable[[Any], jax.Array]
    size: int
    num_parameters: int


def make_reference(name: str) -> Reference:
    """Make one of `REFERENCES`, ready to run."""
    from stepcot_jax.encoders.load import count_parameters

    networks = _make_networks(name)
    num_parameters = sum(count_parameters(_shapes(network)) for network in networks)
    if name == "CLIP":
        num_parameters += 1  # the temperature of its training
    image = networks[0]
    params = jax.jit(image.init)(jax.random.key(0), jnp.zeros((1, _IMAGE_SIZE, _IMAGE_SIZE, 3)))["params"]
    encode = jax.jit(lambda params, images: image.apply({"params": params}, images)[0])
    return Reference(functools.partial(encode, params), _IMAGE_SIZE, num_parameters)


def _make_networks(name: str) -> list[nn.Module]:
    """The image network, and any others of its checkpoint."""
    from stepcot_jax.encoders.checkpoints import CLIP_TEXT_SIZES, CLIP_VISION_SIZES
    from stepcot_jax.encoders.torchvision_networks import FrozenDenseNet, make_frozen_resnet
    from stepcot_jax.encoders.transformer import CLIPText, VisionTransformer

    if name == "CLIP":  # ViT-B/32
        text = CLIPText(
            sizes=CLIP_TEXT_SIZES, vocabulary_size=49408, max_positions=77, end_token=49407, projected_width=512
        )
        return [VisionTransformer(CLIP_VISION_SIZES, _IMAGE_SIZE, 32, 512), text]
    if name == "DenseNet121":
        return [FrozenDenseNet()]
    return [make_frozen_resnet(name.lower(), "float32")]


def _shapes(network: nn.Module) -> Any:
    """The parameter tree with shapes as leaves; nothing is allocated."""
    from stepcot_jax.encoders.transformer import CLIPText

    key = jax.eval_shape(lambda: jax.random.key(0))
    inputs = [jax.ShapeDtypeStruct((1, _IMAGE_SIZE, _IMAGE_SIZE, 3), jnp.float32)]
    if isinstance(network, CLIPText):
        inputs = [jax.ShapeDtypeStruct((1, 2), dtype) for dtype in (jnp.int32, jnp.bool_)]
    return jax.eval_shape(network.init, key, *inputs)["params"]


def count_multiply_adds(function: Callable[..., Any], *inputs: Any) -> int:
    """Count the multiply-adds of the matrix products and convolutions of a function; nothing is computed.

    Results that nothing uses do not count, as XLA leaves them out. A loop of known length counts as often as it runs,
    one of unknown length once, and of a condition all branches. Twice the number is about the number of floating-point
    operations.

    >>> import jax.numpy as jnp
    >>> count_multiply_adds(lambda x: x @ jnp.ones((5, 7)), jax.ShapeDtypeStruct((3, 5), jnp.float32))
    105
    """
    jaxpr = jax.make_jaxpr(function)(*inputs).jaxpr
    return _count(jaxpr, [True] * len(jaxpr.outvars))


def _count(jaxpr: Any, used: Sequence[bool]) -> int:
    """Multiply-adds of a program; `used` says of each output whether anything needs it."""
    needed = {id(output) for output, is_used in zip(jaxpr.outvars, used, strict=True) if is_used}
    total = 0
    for equation in reversed(jaxpr.eqns):
        of_outputs = [id(output) in needed for output in equation.outvars]
        if any(of_outputs) or equation.effects:
            needed |= {id(variable) for variable in equation.invars}
            total += _count_equation(equation, of_outputs)
    return total


def _count_equation(equation: Any, used: Sequence[bool]) -> int:
    name, parameters = equation.primitive.name, equation.params
    size = sum(math.prod(output.aval.shape) for output in equation.outvars)
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        return size * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel, numbers = equation.invars[1].aval.shape, parameters["dimension_numbers"]
        # Of the kernel, all but its output channels is multiplied for each element of the output.
        return size * math.prod(kernel) // kernel[numbers.rhs_spec[0]]
    total = 0
    for inner in (each for value in parameters.values() for each in _jaxprs(value)):
        is_call = name in ("jit", "pjit") and len(inner.outvars) == len(used)
        total += _count(inner, used if is_call else [True] * len(inner.outvars))
    return total * (parameters["length"] if name == "scan" else 1)


def _jaxprs(value: Any) -> list[Any]:
    """The programs in a parameter of an equation."""
    if isinstance(value, tuple | list):
        return [each for part in value for each in _jaxprs(part)]
    if hasattr(value, "jaxpr"):
        return [value.jaxpr]
    return [value] if hasattr(value, "eqns") else []
