"""Load frozen encoders from pretrained checkpoints, checked to the last tensor."""

import dataclasses
import functools
import hashlib
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float32, UInt8

from stepcot_jax.data.images.preprocessing import Preprocessing, normalised_values
from stepcot_jax.encoders.checkpoints import IMAGE_NETWORKS, IMPORT_FEATURES, Architecture, recognise, resolve
from stepcot_jax.encoders.text_encoder import FlaxEncoder, TextEncoder, load_tokenizer
from stepcot_jax.encoders.transformer import Depth, Size
from stepcot_jax.encoders.weights import assign, read_tensors, weights_digest
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import one_line

_CLASSES = {kind.__name__: kind for kind in IMAGE_NETWORKS}
_DTYPES = ("float32", "bfloat16")
_BOUNDED: dict[Any, Any] = {int: Size, tuple[int, ...]: Annotated[tuple[Depth, ...], msgspec.Meta(max_length=8)]}


def describe_network(network: nn.Module) -> dict[str, Any]:
    """Return the class and the fields of an image network, for JSON."""
    name = type(network).__name__
    if _CLASSES.get(name) is not type(network):
        raise BadInput(f"image network {name}: expected one of {', '.join(_CLASSES)} (checkpoints.IMAGE_NETWORKS)")
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
    """Return the number of blocks or layers of an image network, without making it; 0 for one without these fields."""
    stages = getattr(network, "blocks_per_stage", getattr(network, "layers_per_block", None))
    if stages is None:
        return int(network.sizes.num_layers) if hasattr(network, "sizes") else 0
    return sum(stages)


def _fields(kind: type[nn.Module]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.name not in ("parent", "name")]


def _open_checkpoint(
    source: str, dtype: DTypeLike, part: Literal["image", "text"]
) -> tuple[Architecture, pathlib.Path, str, Callable[[], Any]]:
    """Return architecture, path, digest and reader of one encoder; all tensors are checked, none is kept in memory."""
    path = resolve(source, alternative=IMPORT_FEATURES)
    tensors = read_tensors(path)
    architecture = recognise(path, tensors, jnp.dtype(dtype))
    if getattr(architecture, part) is None:
        raise BadInput(f"{path}: the model ({architecture.name}) has no {part} encoder")
    table, shapes = architecture.table, architecture.shapes()
    names = [name for name, slot in table.items() if slot.path.startswith(f"{part}/")]
    check = functools.partial(assign, table, shapes=shapes, unused=architecture.unused, source=str(path))
    check(tensors, only=None)
    digest = weights_digest(tensors, names)

    def read_params() -> Any:
        tensors = read_tensors(path)
        params = check(tensors, only=f"{part}/")[part]
        if weights_digest(tensors, names) != digest:
            raise BadInput(f"{path}: the weights changed while the run was using them")
        return params

    return architecture, path, digest, read_params


def count_parameters(shapes: Mapping[str, Any]) -> int:
    """Return the number of parameters as PyTorch counts them, without BatchNorm statistics (buffers)."""
    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    return sum(math.prod(leaf.shape) for path, leaf in leaves if path[-1].key not in ("mean", "variance"))


def _look_up(images: Array, values: Array) -> Array:
    """Return images, uint8 pixels as the normalised values of a table [256, 3]: arithmetic might round otherwise."""
    if images.dtype != jnp.uint8:
        return images
    places = 3 * images.astype(jnp.int32) + jnp.arange(3, dtype=jnp.int32)[None, None, None]
    return values.reshape(-1).at[places].get(mode="promise_in_bounds")


@functools.partial(jax.jit, static_argnames=("network",))
def _encode_images(params: Any, images: Array, values: Array, network: nn.Module) -> Any:
    # XLA drops the computation of the patches, which are not returned.
    return network.apply({"params": params}, _look_up(images, values))[0]


@functools.partial(jax.jit, static_argnames=("network",))
def _encode_patches(params: Any, images: Array, values: Array, network: nn.Module) -> Any:
    return network.apply({"params": params}, _look_up(images, values))


_Images = Float32[Any, "case height width 3"] | UInt8[Any, "case height width 3"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageEncoder(FlaxEncoder):
    """A frozen image encoder.

    Images [case, height, width, 3] are normalised float32, or uint8 pixels, which are normalised on the device and
    divided among this process's devices if all get as many. Each number of images is compiled once.
    """

    preprocessing: Preprocessing

    @property
    def batch_size(self) -> int:
        """Number of images of a batch that keeps this process's devices busy."""
        return 32 if jax.default_backend() == "cpu" else 256 * jax.local_device_count()

    def encode(self, images: _Images) -> Float32[Array, "case feature"]:
        """Return features [case, width] of images; the devices may still compute them."""
        return _encode_images(*self._lay_out(images), self.network)

    def encode_patches(
        self, images: _Images
    ) -> tuple[Float32[Array, "case feature"], Float32[Array, "case patch channel"]]:
        """Return features [case, width] and patch vectors [case, patch, channel] in row-major order."""
        return _encode_patches(*self._lay_out(images), self.network)

    def _lay_out(self, images: _Images) -> tuple[Any, Any, Any]:
        """Return parameters, images and normalised values on the devices that encode."""
        if images.dtype != jnp.uint8 or jax.local_device_count() == 1 or len(images) % jax.local_device_count():
            return self.params, images, self._values
        params, values, rows = self._on_all_devices
        return params, jax.device_put(images, rows), values

    @functools.cached_property
    def _values(self) -> Array:
        return jnp.asarray(normalised_values(self.preprocessing))

    @functools.cached_property
    def _on_all_devices(self) -> tuple[Any, Array, NamedSharding]:
        """Parameters and normalised values on each of this process's devices, and the layout of images."""
        mesh = Mesh(np.array(jax.local_devices()), ("case",))
        params, values = jax.device_put((self.params, self._values), NamedSharding(mesh, PartitionSpec()))
        return params, values, NamedSharding(mesh, PartitionSpec("case"))

    def patch_shape(self) -> tuple[int, int]:
        """Return the number of patches of an image and their channels; no weights are read."""
        images = jax.ShapeDtypeStruct((1, *[self.preprocessing.size] * 2, 3), jnp.float32)
        run = functools.partial(self.network.init_with_output, jax.random.key(0))
        (_, patches), _ = jax.eval_shape(run, images)
        _, number, channels = patches.shape

        return number, channels


def load_image_encoder(source: str, *, dtype: DTypeLike = jnp.float32) -> ImageEncoder:
    """Load the image encoder of a folder, a file of torchvision weights, or a Hugging Face id; see docs/encoders.md."""
    architecture, _, digest, read_params = _open_checkpoint(source, dtype, "image")
    network: Any = architecture.image
    preprocessing: Any = architecture.preprocessing
    shapes = architecture.shapes()
    images = jax.ShapeDtypeStruct((1, preprocessing.size, preprocessing.size, 3), jnp.float32)
    features, _ = jax.eval_shape(network.apply, {"params": shapes["image"]}, images)
    return ImageEncoder(
        name=f"{architecture.name} of {source}",
        width=features.shape[-1],
        preprocessing=preprocessing,
        digest=_join(digest, _describe(network)),
        num_parameters=count_parameters(shapes),
        network=network,
        read_params=read_params,
    )


def load_text_encoder(source: str, *, dtype: DTypeLike = jnp.float32, max_tokens: int = 128) -> TextEncoder:
    """Load a checkpoint's text encoder; `max_tokens` is capped at the network's (BERT 512, CLIP 77, BiomedCLIP 256)."""
    if max_tokens < 3:
        raise BadInput(f"{source}: max_tokens must be at least 3 (begin, a word, end); got {max_tokens}")
    architecture, path, digest, read_params = _open_checkpoint(source, dtype, "text")
    network: Any = architecture.text
    max_tokens = min(max_tokens, architecture.max_tokens)
    tokenizer = load_tokenizer(path, max_tokens=max_tokens, vocabulary_size=network.vocabulary_size)
    projection = getattr(network, "projection", (getattr(network, "projected_width", 0),))
    return TextEncoder(
        name=f"{architecture.name} of {source}",
        width=network.sizes.width,
        projected_width=projection[-1] if projection else 0,
        digest=_join(digest, _describe(network), tokenizer.digest, str(max_tokens)),
        num_parameters=count_parameters(architecture.shapes()),
        max_tokens=max_tokens,
        tokenizer=tokenizer,
        network=network,
        read_params=read_params,
    )


def _describe(network: nn.Module) -> str:
    """Return the network's type and settings as a string, part of an encoder's digest."""
    fields = (f"{name}={getattr(network, name)}" for name in sorted(_fields(type(network))))
    return f"{type(network).__name__}({', '.join(fields)})"


def _join(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
