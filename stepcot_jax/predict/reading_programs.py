"""What is compiled to read a batch of images: encoder, gate's distance, and the network's steps."""

import functools
from typing import Any

import jax

from stepcot_jax.models.reading_step import join_heads
from stepcot_jax.systems.networks import Networks, encode_images, encode_with_moments, measure_distance
from stepcot_jax.training.state import Params

GateArrays = tuple[jax.Array, jax.Array]
"""Mean and whitening of a gate, the limit divided out."""


@functools.partial(jax.jit, static_argnames=("networks", "model", "with_attention"))
def read_batch(
    params: Params,
    batch: dict[str, jax.Array],
    text_features: Any,
    given_answers: jax.Array,
    gate: GateArrays | None,
    *,
    networks: Networks,
    model: str,
    with_attention: bool,
) -> tuple[jax.Array, Any, Any]:
    """Return logits, the teacher's attention and the gate's scores of a batch; None for what was not asked for."""
    scores = None
    if gate is None:
        features = encode_images(networks, params, batch)
    else:
        features, moments = encode_with_moments(networks, params, batch)
        scores = _measure(moments, gate)
    if model == "teacher" and networks.teacher.unroll:
        params = {**params, "teacher": join_heads(params["teacher"])}
    logits, attention = read_features(
        features,
        params=params,
        text_features=text_features,
        given_answers=given_answers,
        networks=networks,
        model=model,
        with_attention=with_attention,
    )
    return logits, attention, scores


class OtherEncoder(Exception):
    """A gate has another number of features than this encoder."""


def _measure(moments: jax.Array, gate: GateArrays) -> jax.Array:
    if moments.shape[1] != len(gate[0]):
        raise OtherEncoder(f"a gate of {len(gate[0])} features; the encoder has {moments.shape[1]}")
    return measure_distance(moments, *gate)


@functools.partial(jax.jit, static_argnames="networks")
def measure_images(params: Params, batch: dict[str, jax.Array], gate: GateArrays, *, networks: Networks) -> jax.Array:
    """Return the gate's scores [case] of a batch; errors as for `read_batch`."""
    return _measure(encode_with_moments(networks, params, batch)[1], gate)


def read_features(
    features: jax.Array,
    *,
    params: Params,
    text_features: Any,
    given_answers: jax.Array,
    networks: Networks,
    model: str,
    with_attention: bool = True,
) -> tuple[jax.Array, Any]:
    """Return logits [case, step, answer] of image features, and the teacher's attention (None for the student)."""
    if model == "student":
        student = networks.student.apply(
            {"params": params["student"]}, image_features=features, given_answers=given_answers, deterministic=True
        )
        return student.logits, None
    reading = networks.teacher.apply(
        {"params": params["teacher"]},
        image_features=features,
        text_features=text_features,
        given_answers=given_answers,
        deterministic=True,
        with_attention=with_attention,
    )
    return reading.logits, reading.attention
