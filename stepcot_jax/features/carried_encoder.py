"""The frozen image encoder inside an export: network and preprocessing in JSON, weights among its tensors."""

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import jax
import msgspec
import numpy as np

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.own_folder import load
from stepcot_jax.host.text import one_line

if TYPE_CHECKING:
    from stepcot_jax.encoders.load import ImageEncoder

PREPROCESSING_FILE = "preprocessing.json"
_MOST_BYTES = 4 * 2**20


class CarriedEncoder(msgspec.Struct):
    """The encoder's entry in the manifest of an export."""

    name: Annotated[str, msgspec.Meta(max_length=4096)]
    width: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    network: dict[str, Any]


def read_carried_preprocessing(folder: pathlib.Path) -> Preprocessing:
    """Return the preprocessing of an export's images."""
    return load(folder / PREPROCESSING_FILE, Preprocessing, max_bytes=_MOST_BYTES)


def make_carried_encoder(manifest: pathlib.Path, encoder: CarriedEncoder, params: Any) -> "ImageEncoder":
    """Return the encoder of an export, after checking that network, preprocessing and tensors fit each other."""
    from stepcot_jax.encoders.load import ImageEncoder, count_layers, make_network  # every kind of network

    network = make_network(encoder.network, where=f"{manifest}, encoder.network")
    preprocessing = read_carried_preprocessing(manifest.parent)
    if (depth := count_layers(network)) > (number := len(jax.tree.leaves(params))):
        raise BadInput(
            f"{manifest}, encoder.network: {depth} layers, but the export has {number} tensors of the encoder"
        )
    images = jax.ShapeDtypeStruct((1, preprocessing.size, preprocessing.size, 3), np.float32)
    try:
        shapes = jax.eval_shape(network.init, jax.random.key(0), images)["params"]
    except (TypeError, ValueError) as error:  # sizes that do not fit each other
        raise BadInput(
            f"{manifest}, encoder.network: {one_line(error)}; expected a network that reads images of "
            f"{preprocessing.size} x {preprocessing.size} px ({PREPROCESSING_FILE})"
        ) from None
    expected, carried = (
        {jax.tree_util.keystr(path): np.shape(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (shapes, {} if params is None else params)
    )
    if other := sorted(key for key in expected.keys() | carried.keys() if expected.get(key) != carried.get(key)):
        raise BadInput(
            f"{manifest.parent}, image encoder{other[0]}: {carried.get(other[0], 'missing')} does not fit "
            f"{manifest.name}, which needs {expected.get(other[0], 'no such tensor')}; {len(other)} tensors differ"
        )
    return ImageEncoder(
        name=encoder.name,
        width=encoder.width,
        preprocessing=preprocessing,
        digest=encoder.digest,
        num_parameters=sum(leaf.size for leaf in jax.tree.leaves(shapes)),
        network=network,
        read_params=lambda: params,
    )
