"""A network with its image encoder as a pure function of named tensors and images, and as StableHLO."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.exported_model import ENCODER, PROMPTS
from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.systems.networks import apply_with_moments, measure_distance, read_as_teacher
from stepcot_jax.training.state import flatten, unflatten

PLATFORMS = ("cpu", "cuda", "tpu")

GATE = "gate"

Tensors = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Program:
    """A network that reads images: (tensors, normalised images [case, size, size, 3]) -> logits or gate scores."""

    name: str
    read: Callable[[Tensors, Array], Float32[Array, "case ..."]]
    tensors: Tensors  # '/'-joined names -> arrays: the network, its image encoder and, for the teacher, the prompts
    size: int  # height and width of an image in pixels


def make_program(trained: Trained, name: str) -> Program:
    """Return the program of a network of a run."""
    trained.check_model(name)
    encode, encoder_params = _image_encoder(trained, name)
    networks, chosen = trained.networks, {ENCODER: encoder_params, name: trained.params[name][name]}
    tensors = flatten(chosen)
    if name == "teacher" and trained.text_features is not None:
        tensors[PROMPTS] = trained.text_features

    def read(tensors: Tensors, images: Array) -> Array:
        params = unflatten(tensors)
        features = encode(params[ENCODER], images)
        if name == "teacher":
            return read_as_teacher(networks, params[name], features, params.get(PROMPTS), key=None).logits
        return networks.student.apply({"params": params[name]}, image_features=features, deterministic=True).logits

    arrays = {key: np.asarray(value) for key, value in sorted(tensors.items())}
    return Program(name, read, arrays, trained.preprocessing.size)


def make_gate_program(trained: Trained, name: str) -> Program | None:
    """Return the program of a network's gate, which computes scores [case]; None if the run stored no gate."""
    gate = trained.gate(name)
    if gate is None:
        return None
    look, encoder_params = _gate_features(trained, name)

    def read(tensors: Tensors, images: Array) -> Array:
        params = unflatten(tensors)
        return measure_distance(look(params[ENCODER], images), params[GATE]["mean"], params[GATE]["whitening"])

    gate_params = {"mean": gate.mean, "whitening": gate.whitening / np.float32(gate.limit)}
    arrays = flatten({ENCODER: encoder_params, GATE: gate_params})
    tensors = {key: np.asarray(value) for key, value in sorted(arrays.items())}
    return Program(f"{name}_gate", read, tensors, trained.preprocessing.size)


def export_program(program: Program) -> jax.export.Exported:
    """Export a program for any number of images and all `PLATFORMS`, independent of this machine."""
    (num_cases,) = jax.export.symbolic_shape("case")
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in program.tensors.items()}
    images = jax.ShapeDtypeStruct((num_cases, program.size, program.size, 3), jnp.float32)
    return jax.export.export(jax.jit(program.read), platforms=PLATFORMS)(shapes, images)


def _image_encoder(trained: Trained, name: str) -> tuple[Callable[[Any, Array], Array], Any]:
    """Return the function from parameters and normalised images to features, and the parameters."""
    network, frozen = trained.networks.image_encoder, trained.frozen_encoder
    if network is not None:
        return (lambda params, images: network.apply({"params": params}, images)), trained.params[name][ENCODER]
    if not isinstance(frozen, ImageEncoder):
        source = "imported features" if frozen is None else f"{frozen.name}, which runs in PyTorch"
        raise BadInput(
            f"{trained.workdir}: the {name} reads {source}; an export needs an image encoder of this package: "
            "resnet_small, resnet18, or pretrained weights that docs/encoders.md lists"
        )
    return (lambda params, images: frozen.network.apply({"params": params}, images)[0]), frozen.params


def _gate_features(trained: Trained, name: str) -> tuple[Callable[[Any, Array], Array], Any]:
    """Return the function from parameters and normalised images to the gate's features, and the parameters."""
    network = trained.networks.image_encoder
    if network is None:
        return _image_encoder(trained, name)
    params = trained.params[name][ENCODER]
    return (lambda params, images: apply_with_moments(network, params, images)[1]), params
