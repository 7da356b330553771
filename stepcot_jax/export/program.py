"""A network with its image encoder as a pure function of named tensors and images, and as StableHLO."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.exported_model import ENCODER, GATE, PROMPTS
from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.systems.networks import apply_with_moments, measure_distance, predict_logits
from stepcot_jax.training.state import flatten, unflatten

PLATFORMS = ("cpu", "cuda", "tpu")

Tensors = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Program:
    """A network that reads images: (tensors, normalised images [case, size, size, 3]) -> numbers by name.

    "logits" are [case, step, answer]; "gate" are the gate's scores [case], if the run stored a gate of the network.
    """

    name: str
    read: Callable[[Tensors, Array], dict[str, Array]]
    tensors: Tensors  # '/'-joined names -> arrays: the network, its image encoder and gate, the teacher's prompts
    size: int  # height and width of an image in pixels


def make_program(trained: Trained, name: str) -> Program:
    """Return the program of a network of a run, with its gate if the run stored one."""
    trained.check_model(name)
    encode, encoder_params = _image_encoder(trained, name)
    networks, gate = trained.networks.replace(image_encoder=None), trained.gate(name)
    chosen: dict[str, Any] = {ENCODER: encoder_params, name: trained.params[name][name]}
    if gate is not None:
        chosen[GATE] = {"mean": gate.mean, "whitening": gate.whitening / np.float32(gate.limit)}
    tensors = flatten(chosen)
    if name == "teacher" and trained.text_features is not None:
        tensors[PROMPTS] = trained.text_features

    def read(tensors: Tensors, images: Array) -> dict[str, Array]:
        params = unflatten(tensors)
        features, moments = encode(params[ENCODER], images)
        batch: dict[str, Any] = {"image_features": features, "text_features": params.get(PROMPTS)}
        logits = predict_logits(networks, (name,), params, batch)[name]
        if gate is None:
            return {"logits": logits}
        scores = measure_distance(moments, params[GATE]["mean"], params[GATE]["whitening"])
        return {"logits": logits, GATE: scores}

    arrays = {key: np.asarray(value) for key, value in sorted(tensors.items())}
    return Program(name, read, arrays, trained.preprocessing.size)


def export_program(program: Program) -> jax.export.Exported:
    """Export a program for any number of images and all `PLATFORMS`, independent of this machine."""
    (num_cases,) = jax.export.symbolic_shape("case")
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in program.tensors.items()}
    images = jax.ShapeDtypeStruct((num_cases, program.size, program.size, 3), jnp.float32)
    return jax.export.export(jax.jit(program.read), platforms=PLATFORMS)(shapes, images)


def _image_encoder(trained: Trained, name: str) -> tuple[Callable[[Any, Array], tuple[Array, Array]], Any]:
    """Return the function from parameters and normalised images to features and the gate's, and the parameters."""
    network, frozen = trained.networks.image_encoder, trained.frozen_encoder
    if network is not None:
        return functools.partial(apply_with_moments, network), trained.params[name][ENCODER]
    if not isinstance(frozen, ImageEncoder):
        source = "imported features" if frozen is None else f"{frozen.name}, which runs in PyTorch"
        raise BadInput(
            f"{trained.workdir}: the {name} reads {source}; an export needs an image encoder of this package: "
            "resnet_small, resnet18, or pretrained weights that docs/encoders.md lists"
        )

    def encode(params: Any, images: Array) -> tuple[Array, Array]:
        features = frozen.network.apply({"params": params}, images)[0]
        return features, features

    return encode, frozen.params
