"""Frozen image networks as JSON, from which an export makes its network without the config."""

import dataclasses
from typing import Annotated, Any

import flax.linen as nn
import jax.numpy as jnp
import msgspec

from stepcot_jax.encoders.torchvision_networks import FrozenDenseNet, FrozenResNet
from stepcot_jax.encoders.transformer import ACTIVATIONS, TransformerSizes, VisionTransformer
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import one_line

_KINDS: tuple[type[nn.Module], ...] = (VisionTransformer, FrozenResNet, FrozenDenseNet)
_CLASSES = {kind.__name__: kind for kind in _KINDS}
_DTYPES = ("float32", "bfloat16")
_LARGEST, _DEEPEST, _MOST_STAGES = 2**16, 2**8, 8


def describe_network(network: nn.Module) -> dict[str, Any]:
    """Return the class and the fields of an image network, for JSON."""
    name = type(network).__name__
    if _CLASSES.get(name) is not type(network):
        raise BadInput(f"image network {name}: expected one of {', '.join(_CLASSES)}")
    fields: dict[str, Any] = {key: getattr(network, key) for key in _fields(type(network))}
    for key, value in fields.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields[key] = dataclasses.asdict(value)
    return {"class": name, **fields, "dtype": jnp.dtype(fields["dtype"]).name}


def make_network(described: Any, *, where: str) -> nn.Module:
    """Return the network of a description by `describe_network`."""
    entries = dict(described) if isinstance(described, dict) else {}
    kind, dtype = _CLASSES.get(str(entries.pop("class", ""))), entries.pop("dtype", None)
    if kind is None or dtype not in _DTYPES:
        raise BadInput(f"{where}: expected a class of {', '.join(_CLASSES)} and a dtype of {', '.join(_DTYPES)}")
    types = {key: _type_of(key) for key in _fields(kind) if key != "dtype"}
    try:
        fields = msgspec.convert(entries, msgspec.defstruct("Fields", list(types.items()), forbid_unknown_fields=True))
    except msgspec.ValidationError as error:
        raise BadInput(f"{where}: {one_line(error)}") from None
    values = {key: getattr(fields, key) for key in types}
    if "sizes" in values:
        values["sizes"] = _check_sizes(values["sizes"], where=where)
    return kind(**values, dtype=jnp.dtype(dtype))


def count_layers(network: Any) -> int:
    """Return the number of blocks or layers of an image network, without making it."""
    stages = getattr(network, "blocks_per_stage", getattr(network, "layers_per_block", None))
    return int(network.sizes.num_layers) if stages is None else sum(stages)


def _fields(kind: type[nn.Module]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.name not in ("parent", "name")]


def _type_of(key: str) -> Any:
    size = Annotated[int, msgspec.Meta(ge=1, le=_LARGEST)]
    depth = Annotated[int, msgspec.Meta(ge=1, le=_DEEPEST)]
    stages = Annotated[tuple[depth, ...], msgspec.Meta(max_length=_MOST_STAGES)]
    return {
        "sizes": TransformerSizes,
        "timm": bool,
        "bottleneck": bool,
        "blocks_per_stage": stages,
        "layers_per_block": stages,
    }.get(key, size)


def _check_sizes(sizes: TransformerSizes, *, where: str) -> TransformerSizes:
    numbers = (sizes.width, sizes.num_layers, sizes.num_heads, sizes.mlp_width)
    in_range = min(numbers) >= 1 and max(numbers) <= _LARGEST and sizes.num_layers <= _DEEPEST
    if not in_range or sizes.activation not in ACTIVATIONS or not 0 < sizes.epsilon < 1:
        raise BadInput(f"{where}.sizes: {sizes} is out of range; expected sizes of 1 to {_LARGEST}, {_DEEPEST} layers")
    return sizes
