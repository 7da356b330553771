"""The parts of a trained model as an export holds them: JSON and safetensors, read without running its programs.

Files of an export have their names in a workdir: the same functions read them from both.
"""

import pathlib
from typing import TYPE_CHECKING, Annotated, Any, Literal

import jax
import msgspec
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.exported_files import MANIFEST_FILE, read_weights, require_read
from stepcot_jax.host.own_folder import load
from stepcot_jax.host.text import one_line
from stepcot_jax.run.stored import StoredParts
from stepcot_jax.systems.networks import Networks
from stepcot_jax.training.state import Params, refuse_misfit, require_counts, unflatten

if TYPE_CHECKING:
    from stepcot_jax.encoders.load import ImageEncoder

ENCODER = "image_encoder"
GATE = "gate"  # Name of the gate, which load.py computes; a reader has gate.npz
PROMPTS = "prompts"  # Name of the tensor with the vectors of the teacher's prompts; they replace the text encoder

LABELS_FILE, PREPROCESSING_FILE = "labels.json", "preprocessing.json"

_MOST_BYTES = 4 * 2**20


class _Encoder(msgspec.Struct):
    """The frozen image encoder: its network in JSON, its weights among the tensors."""

    name: Annotated[str, msgspec.Meta(max_length=4096)]
    width: Annotated[int, msgspec.Meta(ge=1, le=2**16)]
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    network: dict[str, Any]


class _Model(msgspec.Struct):
    tensors: Annotated[tuple[str, ...], msgspec.Meta(max_length=4)]  # files; `read_weights` refuses those elsewhere
    best_step: Annotated[int, msgspec.Meta(ge=0)]


class _Manifest(msgspec.Struct):
    models: Annotated[dict[Literal["teacher", "student", "plain"], _Model], msgspec.Meta(min_length=1)]
    encoder: _Encoder | None
    trained_on: Annotated[str, msgspec.Meta(max_length=4096)]


def list_exported_models(folder: pathlib.Path) -> tuple[str, ...]:
    """Return the networks of an export, the default first."""
    return tuple(_read_manifest(folder).models)


def read_exported_parts(folder: pathlib.Path, *, names: tuple[str, ...]) -> StoredParts:
    """Read networks of an export; every file is compared with its digest first."""
    require_read(folder)
    manifest = _read_manifest(folder)
    chain = load(folder / LABELS_FILE, Chain, max_bytes=_MOST_BYTES)
    text = None
    params: dict[str, Params] = {}
    encoder: Params | None = None
    for name in names:
        tensors = read_weights(folder, manifest.models[name].tensors)  # type: ignore[index]
        text = tensors.pop(PROMPTS, text)
        tree = unflatten(tensors)
        tree.pop(GATE, None)
        if manifest.encoder is not None:
            encoder = tree.pop(ENCODER, None)
        params[name] = tree
    frozen, preprocessing = None, load(folder / PREPROCESSING_FILE, Preprocessing, max_bytes=_MOST_BYTES)
    if manifest.encoder is not None:
        frozen = _make_encoder(folder / MANIFEST_FILE, manifest.encoder, encoder, preprocessing)
    if text is not None and (text.ndim != 2 or len(text) != chain.num_steps or not np.isfinite(text).all()):
        raise BadInput(f"{folder}: {PROMPTS} has the shape {list(text.shape)}; expected [{chain.num_steps}, width]")
    return StoredParts(
        chain=chain,
        text_features=None if text is None else jax.device_put(text),
        frozen=frozen,
        preprocessing=preprocessing,
        params=params,
        best_steps={name: manifest.models[name].best_step for name in names},  # type: ignore[index]
        trained_on=manifest.trained_on,
    )


def _read_manifest(folder: pathlib.Path) -> _Manifest:
    return load(folder / MANIFEST_FILE, _Manifest, max_bytes=_MOST_BYTES)


def _make_encoder(
    manifest: pathlib.Path, encoder: _Encoder, params: Any, preprocessing: Preprocessing
) -> "ImageEncoder":
    """Return the encoder of an export, after checking that network, preprocessing and tensors fit each other."""
    from stepcot_jax.encoders.load import ImageEncoder, count_layers, make_network  # every kind of network

    network = make_network(encoder.network, where=f"{manifest}, encoder.network")
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
    carried = {} if params is None else params
    refuse_misfit(f"{manifest.parent}, image encoder", carried, shapes, source=manifest.name)
    return ImageEncoder(
        name=encoder.name,
        width=encoder.width,
        preprocessing=preprocessing,
        digest=encoder.digest,
        num_parameters=sum(leaf.size for leaf in jax.tree.leaves(shapes)),
        network=network,
        read_params=lambda: params,
    )


def check_counts(folder: pathlib.Path, parts: StoredParts, networks: Networks) -> None:
    """Refuse weights of another number of steps or layers than the files state, before that many are made."""
    for name, tree in parts.params.items():
        layers = (networks.teacher.num_layers, r"teacher/graph_attention/attention_(\d+)/")
        stated = {
            f"{folder / LABELS_FILE}: steps": (parts.chain.num_steps, rf"{name}/(?:.*/)?(?:classifier|head)_(\d+)/")
        }
        of_kind = {"teacher": stated | {f"{folder}/settings.json, num_layers": layers}, "student": stated}
        require_counts(tree, of_kind.get(name, {}))  # the plain network's heads are one matrix
