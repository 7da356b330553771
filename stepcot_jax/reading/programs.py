"""Read batches of images with a trained network, compiled once for one batch size.

The teacher's scan copies each step's head out of the stacked ones, twice the time for one case: `split_heads`.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from stepcot_jax.evaluation.interventions import ReadGiven, as_probabilities
from stepcot_jax.evaluation.joint import ReadLogits, name_joined
from stepcot_jax.evaluation.predictions import softmax
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.corrections import check_given
from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.run.stored import GATE_FILE
from stepcot_jax.systems.networks import (
    Networks,
    encode_images,
    encode_in_parts,
    encode_with_moments,
    make_read_given,
    measure_distance,
    predict_logits,
)
from stepcot_jax.training.state import Params

# The compiled program that reads a batch of images: encoder, gate's distance, and the network's steps.


GateArrays = tuple[jax.Array, jax.Array]  # Mean and whitening of a gate, divided by its limit


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
    """Return logits, the teacher's attention and the gate's scores of a batch; None for parts not requested."""
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
    """A gate has another number of features than its encoder."""


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
    """Return logits [case, step, answer] of image features, and the teacher's attention (None for other networks)."""
    if model != "teacher":
        batch = {"image_features": features, "given_answers": given_answers}
        return predict_logits(networks.replace(image_encoder=None), (model,), params, batch)[model], None
    reading = networks.teacher.apply(
        {"params": params["teacher"]},
        image_features=features,
        text_features=text_features,
        given_answers=given_answers,
        deterministic=True,
        with_attention=with_attention,
    )
    return reading.logits, reading.attention


SPLIT_FROM = 8 * 2**20
"""Bytes of a teacher's heads from which they are split.

At the published width (50 MB) splitting halves the time for 1 and for 8 images. Smaller heads fit the processor's
cache, where a copy costs nothing, while separately compiled steps take a second more to compile.
"""


@dataclasses.dataclass(frozen=True)
class Reading:
    """A network's output for images."""

    logits: Float32[np.ndarray, "case step answer"]  # of each step's answers; padding beyond a step's own answers
    probabilities: Float[np.ndarray, "case step answer"]  # scaled if the run fitted temperatures
    answer_sets: Bool[np.ndarray, "case step answer"] | None  # their coverage does not hold after a given answer
    attention: Float32[np.ndarray, "case step layer head node node"] | None  # of the teacher, for each layer
    gate_scores: Float[np.ndarray, "case"] | None = None  # above 1: outside of the training images
    conflicts: Float[np.ndarray, "case"] | None = None  # nats above the joint model's limit; None without one


class _Part(NamedTuple):
    """A network's output for one batch; None for parts not requested."""

    logits: Any
    attention: Any
    gate_scores: Any


class Reader:
    """Reads images with one network of a run, and with its joint model unless `as_published` or the run has none."""

    def __init__(
        self,
        trained: Trained,
        *,
        model: str = "student",
        batch_size: int = 8,
        with_attention: bool = True,
        as_published: bool = False,
    ) -> None:
        trained.check_model(model)
        if batch_size < 1:
            raise BadInput(f"batch_size must be at least 1; got {batch_size}")
        self.trained, self.model, self.batch_size = trained, model, batch_size
        self._with_attention, self.joint = with_attention, None if as_published else trained.joint(model)
        wanted = [name for name in (model, "image_encoder") if name in trained.params[model]]
        self.params: Params = jax.device_put({name: trained.params[model][name] for name in wanted})
        self.text_features = trained.text_features if model == "teacher" else None
        self._networks = trained.networks
        gate = trained.gate(model)
        # On the device: NumPy's threads would compete with those that decode for a core.
        self._gate = None if gate is None else jax.device_put((gate.mean, gate.whitening / np.float32(gate.limit)))
        if (
            model == "teacher"
            and sum(leaf.nbytes for leaf in jax.tree.leaves(self.params["teacher"]["heads"])) >= SPLIT_FROM
        ):
            self._networks = dataclasses.replace(trained.networks, teacher=trained.networks.teacher.clone(unroll=True))

    @functools.cached_property
    def _laid_out(self) -> Params:
        if self.model == "teacher" and self._networks.teacher.unroll:
            return {**self.params, "teacher": split_heads(self.params["teacher"])}
        return self.params

    def read(
        self,
        images: Float32[np.ndarray, "case height width 3"],
        given_answers: Int[np.ndarray, "case step"] | Float[np.ndarray, "case step answer"] | None = None,
    ) -> Reading:
        """Read images; given answers are labels [case, step], -1 for none, or distributions [case, step, answer]."""
        images = np.asarray(images, np.float32)
        given = self.check_given(given_answers, len(images))
        told = given if self.joint is None else np.zeros_like(given)
        side = self.trained.preprocessing.size
        if images.ndim != 4 or not len(images) or images.shape[1:] != (side, side, 3):
            raise BadInput(f"images must have shape [case, {side}, {side}, 3], case >= 1; got {list(images.shape)}")

        parts = self._read_parts(images, told)
        logits = np.concatenate([part.logits for part in parts])
        attention = None if parts[0].attention is None else np.concatenate([part.attention for part in parts])
        scores = None if self._gate is None else np.concatenate([part.gate_scores for part in parts])
        alone = self.interpret(logits, told, attention, None if scores is None else scores.astype(np.float64))
        return self.read_again(alone, images, given) if self.joint is not None and given.any() else alone

    def read_again(
        self, alone: Reading, images: Float32[np.ndarray, "case height width 3"], given_answers: Any
    ) -> Reading:
        """Return a reading of the same images with given answers, from the one without."""
        given = self.check_given(given_answers, len(images))
        if self.joint is None:
            return self.read(images, given)

        def read(variants: np.ndarray) -> np.ndarray:
            parts = [self._read_parts(images, variant) for variant in variants]
            return np.stack([np.concatenate([part.logits for part in of_variant]) for of_variant in parts])

        return self.interpret(alone.logits, given, alone.attention, alone.gate_scores, read)

    def _read_parts(self, images: np.ndarray, given: np.ndarray) -> list[_Part]:
        starts = range(0, len(images), self.batch_size)
        return [
            self._read_batch(images[start : start + self.batch_size], given[start : start + self.batch_size])
            for start in starts
        ]

    def check_given(self, given_answers: Any, num_cases: int) -> Float32[np.ndarray, "case step answer"]:
        """Return given answers as distributions; see `corrections.check_given`."""
        joined = self.joint is not None
        return check_given(given_answers, self.trained, model=self.model, num_cases=num_cases, joined=joined)

    def gate_scores(self, images: Float32[np.ndarray, "case height width 3"]) -> Float[np.ndarray, "case"] | None:
        """Return the gate's scores of images, as in `Reading`, without reading them; None if the run stored no gate."""
        if self._gate is None:
            return None
        parts = []
        for start in range(0, len(images), self.batch_size):
            batch = self._make_batch(_pad(np.asarray(images[start : start + self.batch_size]), self.batch_size))
            with self._naming_gate():
                scores = measure_images(self._encoder_params, batch, self._gate, networks=self._networks)
            parts.append(np.asarray(scores, np.float64))
        return np.concatenate(parts)[: len(images)]

    @contextlib.contextmanager
    def _naming_gate(self) -> Iterator[None]:
        try:
            yield
        except OtherEncoder as error:
            raise BadInput(f"{self.trained.workdir / GATE_FILE}, {self.model!r}: {error}") from None

    @property
    def _encoder_params(self) -> Params:
        return {name: self.params[name] for name in ("image_encoder",) if name in self.params}

    def _make_batch(self, images: np.ndarray) -> dict[str, Any]:
        frozen = self.trained.frozen_encoder
        return {"images": images} if frozen is None else {"image_features": jnp.asarray(frozen.encode(images))}

    def given_reader(self, images: Float32[np.ndarray, "case height width 3"]) -> ReadGiven:
        """Return a function from given answers to probabilities of the images, which are encoded once."""
        frozen, calibration = self.trained.frozen_encoder, self.trained.calibration
        if frozen is None:
            features = encode_in_parts(self._networks, self.params, {"images": images}, size=self.batch_size)
        else:
            features = np.asarray(frozen.encode(images))
        read = make_read_given(self.trained.networks, self.model, self.params, features, self.text_features)
        if self.joint is not None:
            chain = self.trained.chain
            nothing = np.zeros((1, len(images), chain.num_steps, max(chain.answers_per_step)), np.float32)
            return self.joint.join(np.asarray(read(nothing))[0], read)
        return as_probabilities(read, () if calibration is None else calibration.temperatures[self.model])

    def _read_batch(self, images: np.ndarray, given: np.ndarray) -> _Part:
        num_images = len(images)
        with self._naming_gate():
            outputs = read_batch(
                self._laid_out,
                self._make_batch(_pad(images, self.batch_size)),
                self.text_features,
                _pad(given, self.batch_size),
                self._gate,
                networks=self._networks,
                model=self.model,
                with_attention=self._with_attention,
            )
        return _Part(*(None if rows is None else np.asarray(rows)[:num_images] for rows in outputs))

    def interpret(
        self,
        logits: Float32[np.ndarray, "case step answer"],
        given: Float32[np.ndarray, "case step answer"],
        attention: Any = None,
        gate_scores: Any = None,
        read: ReadLogits | None = None,
    ) -> Reading:
        """Return logits with probabilities and, if the run fitted them, answer sets.

        Logits of a joint reading are those of a pass without the given answers; `read` makes another pass with them.
        """
        calibration, chain = self.trained.calibration, self.trained.chain
        if self.joint is not None:
            probabilities, sets = self.joint.join(logits, read)(given[None])[0], None
            conflicts, limit = None, self.joint.conflict_limit
            if limit is not None:
                conflicts = self.joint.measure_conflict(logits, given) - limit
            if calibration is not None:
                from stepcot_jax.evaluation.calibration import answer_sets

                sets = answer_sets(probabilities, name_joined(self.model), calibration, chain)
            return Reading(logits, probabilities, sets, attention, gate_scores, conflicts)
        if calibration is None:
            return Reading(logits, softmax(logits.astype(np.float64)), None, attention, gate_scores)
        from stepcot_jax.evaluation.calibration import answer_sets, calibrated_probabilities

        probabilities = calibrated_probabilities(logits, self.model, calibration, chain)
        sets = answer_sets(probabilities, self.model, calibration, chain)
        return Reading(logits, probabilities, sets, attention, gate_scores)


def _pad(rows: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), np.float32)])


def split_heads(teacher_params: dict[str, Any]) -> dict[str, Any]:
    """Return the teacher's parameters with the stacked step heads as a tuple of trees, for reading few cases fast.

    With a handful of cases the teacher's time is the time to read its weights. A scan copies each step's head out of
    the stack first, which doubles the time of a single case. Training keeps the stack: its copies are small compared
    with a batch's arithmetic, and it compiles once for all steps.

    Args:
      teacher_params: as declared by `Teacher`.

    Returns:
      The parameters with "heads" a tuple; a compiled function passes them to `join_heads`.
    """
    num_steps = len(jax.tree.leaves(teacher_params["heads"])[0])
    heads = tuple(
        jax.tree.map(lambda leaf, step=step: leaf[step], teacher_params["heads"]) for step in range(num_steps)
    )
    return {**teacher_params, "heads": heads}


def join_heads(split_params: dict[str, Any]) -> dict[str, Any]:
    """Undo `split_heads`; in a compiled function, with a teacher whose `unroll` is True, this copies nothing."""
    return {**split_params, "heads": jax.tree.map(lambda *leaves: jnp.stack(leaves), *split_params["heads"])}
