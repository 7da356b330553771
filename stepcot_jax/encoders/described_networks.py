"""Frozen image networks as JSON, from which an export makes its network without the config."""

import dataclasses
from typing import Annotated, Any

import flax.linen as nn
import jax.numpy as jnp
import msgspec

from stepcot_jax.encoders.torchvision_networks import FrozenDenseNet, FrozenResNet
from stepcot_jax.encoders.transformer import Depth, Size, VisionTransformer
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import one_line

_KINDS: tuple[type[nn.Module], ...] = (VisionTransformer, FrozenResNet, FrozenDenseNet)
_CLASSES = {kind.__name__: kind for kind in _KINDS}
_DTYPES = ("float32", "bfloat16")
_BOUNDED: dict[Any, Any] = {int: Size, tuple[int, ...]: Annotated[tuple[Depth, ...], msgspec.Meta(max_length=8)]}


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
    hints = kind.__annotations__
    types = [(key, _BOUNDED.get(hints[key], hints[key])) for key in _fields(kind) if key != "dtype"]
    try:
        fields = msgspec.convert(entries, msgspec.defstruct("Fields", types, forbid_unknown_fields=True))
    except msgspec.ValidationError as error:
        raise BadInput(f"{where}: {one_line(error)}") from None
    return kind(**msgspec.structs.asdict(fields), dtype=jnp.dtype(dtype))


def count_layers(network: Any) -> int:
    """Return the number of blocks or layers of an image network, without making it."""
    stages = getattr(network, "blocks_per_stage", getattr(network, "layers_per_block", None))
    return int(network.sizes.num_layers) if stages is None else sum(stages)


def _fields(kind: type[nn.Module]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.name not in ("parent", "name")]
