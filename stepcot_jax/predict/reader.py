"""A trained network that reads batches of images, compiled once for one batch size."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.single_reading import join_heads, split_heads
from stepcot_jax.predict.trained_model import Trained
from stepcot_jax.systems.networks import Networks, encode_images
from stepcot_jax.training.state import Params

NOT_GIVEN = -1
"""In `given_answers`: the step is answered by the network."""

SPLIT_FROM = 8 * 2**20
"""Bytes of a teacher's heads from which each is read where it lies, instead of as a part of a stack.

At the published width (50 MB) that takes half the time for 1 and for 8 images. Below, the processor's cache holds
them and a copy costs nothing, while steps that are compiled one by one take a second more to compile.
"""


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a network makes of images.

    Attributes:
      logits: of each step's answers; beyond a step's own answers, padding.
      probabilities: of the logits: calibrated where the run has fitted temperatures, else their softmax.
      answer_sets: which answers the conformal sets hold; None where the run has fitted none. They are of readings
        without given answers: what follows a given answer has a coverage that nobody measured.
      attention: of the teacher's graph, [case, step, layer, head, node i, node j]; None of the student, and where it
        was not asked for.
    """

    logits: Float32[np.ndarray, "case step answer"]
    probabilities: Float[np.ndarray, "case step answer"]
    answer_sets: Bool[np.ndarray, "case step answer"] | None
    attention: Float32[np.ndarray, "case step layer head node node"] | None


@functools.partial(jax.jit, static_argnames=("networks", "model", "with_attention"))
def _read(
    params: Params,
    batch: dict[str, jax.Array],
    text_features: Any,
    given_answers: jax.Array,
    *,
    networks: Networks,
    model: str,
    with_attention: bool,
) -> tuple[jax.Array, Any]:
    features = encode_images(networks, params, batch)
    if model == "teacher" and networks.teacher.unroll:
        params = {**params, "teacher": join_heads(params["teacher"])}
    return read_features(
        features,
        params=params,
        text_features=text_features,
        given_answers=given_answers,
        networks=networks,
        model=model,
        with_attention=with_attention,
    )


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
    """Logits [case, step, answer] of image features, and the attention of the teacher's graph; None of the student."""
    if model == "student":
        reading = networks.student.apply({"params": params["student"]}, image_features=features, deterministic=True)
        return reading.logits, None
    reading = networks.teacher.apply(
        {"params": params["teacher"]},
        image_features=features,
        text_features=text_features,
        given_answers=given_answers,
        deterministic=True,
        with_attention=with_attention,
    )
    return reading.logits, reading.attention


class Reader:
    """Reads images with one network of a run.

    Args:
      trained: the run.
      model: "teacher" or "student".
      batch_size: images that are read at once; fewer are padded, more are read in several batches.
      with_attention: whether readings have the attention, without which the teacher compiles faster.

    Raises:
      BadInput: the run has no such network.
    """

    def __init__(
        self, trained: Trained, *, model: str = "student", batch_size: int = 8, with_attention: bool = True
    ) -> None:
        trained.check_model(model)
        if batch_size < 1:
            raise BadInput(f"batch_size: found {batch_size}, accepted are whole numbers from 1")
        self.trained, self.model, self.batch_size = trained, model, batch_size
        self._with_attention = with_attention
        wanted = [name for name in (model, "image_encoder") if name in trained.params[model]]
        self.params: Params = jax.device_put({name: trained.params[model][name] for name in wanted})
        self.text_features = trained.text_features if model == "teacher" else None
        is_large = model == "teacher" and _num_bytes(self.params["teacher"]["heads"]) >= SPLIT_FROM
        self._networks = trained.networks
        if is_large:
            self._networks = dataclasses.replace(trained.networks, teacher=trained.networks.teacher.clone(unroll=True))

    @functools.cached_property
    def _laid_out(self) -> Params:
        """The parameters as `_read` takes them."""
        if self.model == "teacher" and self._networks.teacher.unroll:
            return {**self.params, "teacher": split_heads(self.params["teacher"])}
        return self.params

    @property
    def image_network(self) -> tuple[nn.Module, Params]:
        """The module that encodes images, with its parameters.

        Raises:
          BadInput: the encoder runs in another framework.
        """
        frozen = self.trained.frozen_encoder
        if frozen is None:
            network: Any = self.trained.networks.image_encoder
            return network, self.params["image_encoder"]
        if isinstance(frozen, ImageEncoder):
            return frozen.network, frozen.params
        raise BadInput(
            f"{frozen.name}: found an encoder that runs in PyTorch, accepted are those of this package "
            "(docs/encoders.md), in which gradients can be followed to the image"
        )

    def read(
        self,
        images: Float32[np.ndarray, "case height width 3"],
        given_answers: Int[np.ndarray, "case step"] | None = None,
    ) -> Reading:
        """Read images.

        Args:
          images: normalised, at the encoder's size; any number of them, from 1.
          given_answers: a label, or `NOT_GIVEN`; only the teacher takes them.

        Raises:
          BadInput: the images have another shape, or given answers cannot be taken.
        """
        images, given = np.asarray(images, np.float32), self.check_given(given_answers, num_cases=len(images))
        side = self.trained.preprocessing.size
        if images.ndim != 4 or not len(images) or images.shape[1:] != (side, side, 3):
            raise BadInput(f"images: found {images.shape}, accepted are [1 or more, {side}, {side}, 3]")
        parts = [
            self._read_batch(images[start : start + self.batch_size], given[start : start + self.batch_size])
            for start in range(0, len(images), self.batch_size)
        ]
        logits = np.concatenate([logits for logits, _ in parts])
        attention = None if parts[0][1] is None else np.concatenate([each for _, each in parts])
        return self.interpret(logits, attention)

    def check_given(self, given_answers: Any, *, num_cases: int) -> Int[np.ndarray, "case step"]:
        """Given answers as an array, `NOT_GIVEN` everywhere if there are none.

        Raises:
          BadInput: the network cannot take any, or they are no labels of the chain.
        """
        shape = (num_cases, self.trained.chain.num_steps)
        if given_answers is None:
            return np.full(shape, NOT_GIVEN, np.int32)
        given = np.asarray(given_answers, np.int32)
        most = np.asarray(self.trained.chain.answers_per_step, np.int32)
        if given.shape != shape or (given < NOT_GIVEN).any() or (given >= most[None]).any():
            raise BadInput(f"given_answers: found {given.shape}, accepted are labels {shape}, {NOT_GIVEN} for none")
        if (given != NOT_GIVEN).any():
            self.check_takes_answers()
        return given

    def check_takes_answers(self) -> None:
        """Refuse given answers where the network has no place for them.

        Raises:
          BadInput: the network is the student, or a teacher without memory.
        """
        if self.model == "student":
            accepted = "--model=teacher" if "teacher" in self.trained.params else "the teacher of the run"
            raise BadInput(
                "given answers: found the student, whose steps pass on all their logits (f + tanh(logits @ W)), in "
                f"which a given answer has no place; accepted is {accepted}, which writes an answer to its memory"
            )
        teacher = self.trained.settings.teacher
        if not (teacher.memory and teacher.write_back):
            raise BadInput(
                f"given answers: found a teacher with config.teacher.memory={teacher.memory} and write_back="
                f"{teacher.write_back}, whose steps do not pass their answers on; accepted is a teacher with both"
            )

    def _read_batch(self, images: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        num_images, num_missing = len(images), self.batch_size - len(images)
        if num_missing:
            images = np.concatenate([images, np.zeros((num_missing, *images.shape[1:]), np.float32)])
            given = np.concatenate([given, np.full((num_missing, given.shape[1]), NOT_GIVEN, np.int32)])
        frozen = self.trained.frozen_encoder
        batch = {"images": images} if frozen is None else {"image_features": jnp.asarray(frozen.encode(images))}
        logits, attention = _read(
            self._laid_out,
            batch,
            self.text_features,
            given,
            networks=self._networks,
            model=self.model,
            with_attention=self._with_attention,
        )
        kept = None if attention is None else np.asarray(attention)[:num_images]
        return np.asarray(logits)[:num_images], kept

    def interpret(self, logits: Float32[np.ndarray, "case step answer"], attention: Any = None) -> Reading:
        """Logits as a reading: with probabilities, and answer sets where the run has fitted them."""
        calibration, chain = self.trained.calibration, self.trained.chain
        if calibration is None:
            weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
            return Reading(logits, weights / weights.sum(axis=-1, keepdims=True), None, attention)
        from stepcot_jax.evaluation.calibration import answer_sets, calibrated_probabilities

        probabilities = calibrated_probabilities(logits, self.model, calibration, chain)
        return Reading(logits, probabilities, answer_sets(probabilities, self.model, calibration, chain), attention)


def _num_bytes(tree: Params) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
