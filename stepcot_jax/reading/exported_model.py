"""The parts of a trained model as an export holds them: JSON and safetensors, read without running its programs.

Files of an export have their names in a workdir: the same functions read them from both.
"""

import dataclasses
import pathlib
from typing import Annotated, Literal

import jax
import msgspec
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.features.carried_encoder import CarriedEncoder, make_carried_encoder
from stepcot_jax.features.store import FrozenImageEncoder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.exported_files import MANIFEST_FILE, read_weights, require_read
from stepcot_jax.host.own_folder import load
from stepcot_jax.training.state import Params, unflatten

ENCODER = "image_encoder"
GATE = "gate"  # Name of the gate, which load.py computes; a reader has gate.npz
PROMPTS = "prompts"  # Name of the tensor with the vectors of the teacher's prompts; they replace the text encoder

LABELS_FILE = "labels.json"

_MOST_BYTES = 4 * 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredParts:
    """The networks of a run or of an export, with what they need."""

    chain: Chain
    text_features: jax.Array | None  # float32 [step, width]; None without text
    frozen: FrozenImageEncoder | None  # the frozen image encoder; None if the parameters hold one
    params: dict[str, Params]  # by network, its parameter tree
    best_steps: dict[str, int]  # the update of each network's weights
    trained_on: str = ""  # the training data in a few words


class _Model(msgspec.Struct):
    tensors: Annotated[tuple[str, ...], msgspec.Meta(max_length=4)]  # files; `read_weights` refuses those elsewhere
    best_step: Annotated[int, msgspec.Meta(ge=0)]


class _Manifest(msgspec.Struct):
    models: Annotated[dict[Literal["student", "teacher"], _Model], msgspec.Meta(min_length=1)]
    encoder: CarriedEncoder | None
    trained_on: Annotated[str, msgspec.Meta(max_length=4096)]


def list_exported_models(folder: pathlib.Path) -> tuple[str, ...]:
    """Return the networks of an export, the default last."""
    return tuple(reversed(_read_manifest(folder).models))


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
    frozen = None
    if manifest.encoder is not None:
        frozen = make_carried_encoder(folder / MANIFEST_FILE, manifest.encoder, encoder)
    if text is not None and (text.ndim != 2 or len(text) != chain.num_steps or not np.isfinite(text).all()):
        raise BadInput(f"{folder}: {PROMPTS} has the shape {list(text.shape)}; expected [{chain.num_steps}, width]")
    return StoredParts(
        chain=chain,
        text_features=None if text is None else jax.device_put(text),
        frozen=frozen,
        params=params,
        best_steps={name: manifest.models[name].best_step for name in names},  # type: ignore[index]
        trained_on=manifest.trained_on,
    )


def _read_manifest(folder: pathlib.Path) -> _Manifest:
    return load(folder / MANIFEST_FILE, _Manifest, max_bytes=_MOST_BYTES)
