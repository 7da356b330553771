"""The networks of Step-CoT: their parameters, and forward passes on a batch."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from stepcot_jax.models.form_reader import LinearHeads
from stepcot_jax.models.layers import GivenAnswers
from stepcot_jax.models.student import Baseline, Student
from stepcot_jax.models.teacher import Teacher, TeacherReading
from stepcot_jax.training.state import Params

Batch = dict[str, Array]


class Networks(flax.struct.PyTreeNode):
    """The modules of a run; all static."""

    teacher: Teacher = flax.struct.field(pytree_node=False)
    student: Student = flax.struct.field(pytree_node=False)
    image_encoder: nn.Module | None = flax.struct.field(pytree_node=False, default=None)
    projection_width: int = flax.struct.field(pytree_node=False, default=256)
    remat: bool = flax.struct.field(pytree_node=False, default=False)
    baseline: Baseline | None = flax.struct.field(pytree_node=False, default=None)
    plain: LinearHeads | None = flax.struct.field(pytree_node=False, default=None)


@functools.partial(jax.jit, static_argnames=("networks", "names"))
def init_params(
    networks: Networks,
    *,
    key: Array,
    batch: Batch,
    text_features: Array | None,
    names: tuple[str, ...] = ("teacher", "student", "plain"),
) -> Params:
    """Return random parameters of the named networks that there are, and of projections, for batches of these shapes.

    Names do not change the numbers of a network.
    """
    # Compiled as one program: operation by operation it takes about 1.7 times as long, for the same bits.
    encoder_key, teacher_key, student_key, *projection_keys = jax.random.split(key, 5)
    params, features = init_encoder(networks, key=encoder_key, batch=batch)
    if text_features is not None and text_features.ndim == 3:
        text_features = text_features[:1]
    if "teacher" in names:
        params["teacher"] = networks.teacher.init(
            teacher_key, image_features=features, text_features=text_features, deterministic=True
        )["params"]
    if "student" in names:
        params["student"] = networks.student.init(student_key, image_features=features, deterministic=True)["params"]
    for side, width, projection_key in zip(
        ("teacher", "student"), (networks.teacher.width, networks.student.width), projection_keys, strict=True
    ):
        projection = nn.Dense(networks.projection_width)
        params[f"{side}_projection"] = projection.init(projection_key, jnp.zeros((1, width)))["params"]
    if networks.plain is not None and "plain" in names:
        params["plain"] = networks.plain.init(jax.random.fold_in(key, 1), features)["params"]
    return params


def init_encoder(networks: Networks, *, key: Array, batch: Batch) -> tuple[Params, Array]:
    """Return the parameters of the image encoder, if one is trained, and features [1, width] of an empty image."""
    if networks.image_encoder is None:
        return {}, jnp.zeros_like(batch["image_features"][:1])
    images = jnp.zeros_like(batch["images"][:1])
    params = networks.image_encoder.init(key, images)["params"]
    return {"image_encoder": params}, networks.image_encoder.apply({"params": params}, images)


def encode_images(networks: Networks, params: Params, batch: Batch) -> Array:
    """Return image features [case, width]: those of the batch, or its images through the encoder."""
    if networks.image_encoder is None:
        return batch["image_features"]
    encode = networks.image_encoder.apply
    if networks.remat:
        encode = jax.checkpoint(encode)
    return encode({"params": params["image_encoder"]}, batch["images"]).astype(jnp.float32)


def encode_with_moments(networks: Networks, params: Params, batch: Batch) -> tuple[Array, Array]:
    """Return image features [case, width] and the features of the gate [case, feature] (`evaluation.gate`)."""
    if networks.image_encoder is None:
        return batch["image_features"], batch["image_features"]
    return apply_with_moments(networks.image_encoder, params["image_encoder"], batch["images"])


def apply_with_moments(encoder: nn.Module, params: Params, images: Array) -> tuple[Array, Array]:
    """Return an encoder's features, and its "moments" [case, feature], which are the features if it sows none."""
    features, sown = encoder.apply({"params": params}, images, mutable=["moments"])
    features, moments = features.astype(jnp.float32), jax.tree.leaves(sown)
    return features, jnp.concatenate(moments, axis=-1) if moments else features


def measure_distance(moments: Array, mean: Array, whitening: Array) -> Array:
    """Return the gate's distance [case]: the length of the whitened difference between its features and their mean."""
    # In full precision: a distance adds up many small differences.
    white = jnp.matmul(moments - mean[None], whitening, precision=jax.lax.Precision.HIGHEST)
    return jnp.sqrt(jnp.square(white).sum(axis=1))


_encode = jax.jit(encode_with_moments, static_argnames="networks")


def read_moments(params: Params, batch: Batch, *, networks: Networks) -> Array:
    """Return the features of the gate, [case, feature]; see `encode_with_moments`."""
    return _encode(networks, params, batch)[1]


def encode_in_parts(networks: Networks, params: Params, batch: Mapping[str, Any], *, size: int = 128) -> np.ndarray:
    """Return image features [case, width] of any number of cases on the host, `size` images at a time."""
    if networks.image_encoder is None:
        return np.asarray(batch["image_features"], np.float32)
    num_cases = len(batch["images"])
    images = np.asarray(batch["images"])
    images = np.concatenate([images, np.zeros((-num_cases % size, *images.shape[1:]), images.dtype)])
    encoder_params = {"image_encoder": params["image_encoder"]}
    parts = [
        np.asarray(_encode(networks, encoder_params, {"images": images[start : start + size]})[0])
        for start in range(0, len(images), size)
    ]
    return np.concatenate(parts)[:num_cases]


def read_as_teacher(
    networks: Networks,
    teacher_params: Params,
    image_features: Array,
    text_features: Array | None,
    *,
    given_answers: GivenAnswers | None = None,
    key: Array | None,
    first_case: Any = 0,
) -> TeacherReading:
    """Return the teacher's reading of image features [case, width]; dropout is active if a `key` is given."""
    return networks.teacher.apply(
        {"params": teacher_params},
        image_features=image_features,
        text_features=text_features,
        given_answers=given_answers,
        deterministic=key is None,
        rngs=None if key is None else {"dropout": key},
        first_case=first_case,
    )


def predict_logits(networks: Networks, names: Sequence[str], params: Params, batch: Batch) -> dict[str, Array]:
    """Return padded logits [case, step, answer] of the named networks, without dropout."""
    features, text_features = encode_images(networks, params, batch), batch.get("text_features")
    given, logits = batch.get("given_answers"), {}
    if "teacher" in names:
        logits["teacher"] = read_as_teacher(
            networks, params["teacher"], features, text_features, given_answers=given, key=None
        ).logits
    if "student" in names:
        logits["student"] = networks.student.apply(
            {"params": params["student"]}, image_features=features, given_answers=given, deterministic=True
        ).logits
    if "baseline" in names:
        logits["baseline"] = read_as_baseline(networks, params, features, text_features)
    if "plain" in names:
        logits["plain"] = read_as_plain(networks, params, features)
    return logits


def read_as_plain(networks: Networks, params: Params, image_features: Array) -> Array:
    """Return the padded logits [case, step, answer] of the linear heads."""
    if networks.plain is None:
        raise ValueError("networks.plain is required: these networks have no linear heads")
    return networks.plain.apply({"params": params["plain"]}, image_features)


def read_as_baseline(networks: Networks, params: Params, image_features: Array, text_features: Array | None) -> Array:
    """Return the baseline's padded logits [case, step, answer]."""
    if networks.baseline is None or text_features is None:
        missing = "networks.baseline" if networks.baseline is None else "batch['text_features']"
        raise ValueError(f"{missing} is required: the baseline tells the steps apart by their prompts")
    return networks.baseline.apply(
        {"params": params["baseline"]}, image_features=image_features, text_features=text_features
    )


def make_predict(
    networks: Networks, text_features: Array | None, names: Sequence[str]
) -> Callable[[Params, Batch], dict[str, Array]]:
    """Return `predict_logits` compiled for fixed networks and prompts: (params, batch) -> logits by name."""
    text = {} if text_features is None else {"text_features": text_features}
    return jax.jit(lambda params, batch: predict_logits(networks, names, params, {**batch, **text}))


@functools.partial(jax.jit, static_argnames=("networks", "name"))
def _read_given(params: Params, batch: Batch, *, networks: Networks, name: str) -> Array:
    return predict_logits(networks, (name,), params, batch)[name]


def make_read_given(
    networks: Networks,
    name: str,
    params: Params,
    image_features: np.ndarray,
    text_features: Array | None,
    *,
    num_at_once: int = 4096,
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from given answers [variant, case, step, answer], 0 to predict, to logits of fixed cases."""
    num_cases = len(image_features)
    plain = networks.replace(image_encoder=None)
    shared = {} if text_features is None else {"text_features": text_features}
    network_params = {name: jax.device_put(params[name])}

    def read_given(given: np.ndarray) -> np.ndarray:
        logits = np.empty(given.shape, np.float32)
        rows, flat = given.reshape(-1, *given.shape[2:]), logits.reshape(-1, *given.shape[2:])
        size = min(num_at_once, len(rows))
        if not size:
            return logits
        starts = [*range(0, len(rows) - size, size), len(rows) - size]  # the last overlaps: one shape, compiled once
        for start in starts:
            cases = np.arange(start, start + size) % num_cases
            batch = {"image_features": image_features[cases], "given_answers": rows[start : start + size], **shared}
            flat[start : start + size] = _read_given(network_params, batch, networks=plain, name=name)
        return logits

    return read_given


def make_given_reader(
    networks: Networks, name: str, params: Params, rows: Mapping[str, Any], text_features: Array | None
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function of `make_read_given` for images or features on the host."""
    features = encode_in_parts(networks, params, rows)
    # All variants of the cases after one another: one shape, compiled once.
    return make_read_given(networks, name, params, features, text_features, num_at_once=max(len(features), 1))
