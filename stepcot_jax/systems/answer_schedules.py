"""Which true answers a network is given in training, so that it learns to follow corrections.

As published, memory holds the teacher's own answers, which say nothing that the image does not: a teacher trained so
ignores them. True answers, given now and then, make the memory worth reading: RandInt in the literature on concept
bottlenecks (Espinosa Zarlenga et al., Concept Embedding Models, NeurIPS 2022), scheduled sampling in that on sequences
(Bengio et al., NeurIPS 2015). It is ours, not the paper's (docs/departures.md).
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from stepcot_jax.settings.sections import TrainingSettings

Schedule = Literal["none", "random", "prefix", "annealed"]

_STREAM = 0x61  # of the update's random key, apart from those of dropout


@dataclasses.dataclass(frozen=True)
class AnswerSchedule:
    """Draws the answers given in an update: a function of the seed, the update and the case's position.

    Attributes:
      schedule: "none": as published. "random": each annotated answer of each case with probability `rate`. "prefix":
        with probability `rate` a case is given the answers of its first steps, 1 to all but the last, equally likely.
        "annealed": as "random", at a rate that goes from 1 to `rate` in equal parts over `num_updates`.
      noise: share of the given answers that are wrong ones of the same step, equally likely; 0 to 1.
      student: whether the student is given the same answers in its update; else only the teacher.
    """

    schedule: Schedule = "none"
    rate: float = 0.0
    noise: float = 0.0
    student: bool = True
    num_updates: int = 1

    @classmethod
    def from_settings(cls, training: TrainingSettings, *, num_updates: int) -> "AnswerSchedule":
        """Return the schedule of a run's settings, over `num_updates` updates."""
        return cls(
            schedule=training.given_answers,
            rate=training.given_rate,
            noise=training.given_noise,
            student=training.given_to == "both",
            num_updates=num_updates,
        )

    def draw(
        self,
        key: Array,
        *,
        labels: Int[Array, "case step"],
        step: Int[Array, ""],
        answers_per_step: tuple[int, ...],
        first_case: Int[Array, ""] | int = 0,
    ) -> Int[Array, "case step"]:
        """Return the given answers, -1 where the network is to predict."""
        num_cases, num_steps = labels.shape
        counts = jnp.asarray(answers_per_step)
        rate = jnp.float32(self.rate)
        if self.schedule == "annealed":
            rate = 1.0 + (rate - 1.0) * jnp.clip(step / self.num_updates, 0.0, 1.0)

        def draw_one(case: Array, own: Array) -> Array:
            keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, _STREAM), case), 4)
            if self.schedule == "prefix":
                length = jax.random.randint(keys[0], (), 1, max(num_steps, 2))
                chosen = (jnp.arange(num_steps) < length) & jax.random.bernoulli(keys[1], rate)
            else:
                chosen = jax.random.bernoulli(keys[1], rate, (num_steps,))
            others = (own + jax.random.randint(keys[2], (num_steps,), 1, jnp.maximum(counts, 2))) % counts
            wrong = jax.random.bernoulli(keys[3], self.noise, (num_steps,))
            return jnp.where(chosen & (own >= 0), jnp.where(wrong, others, own), -1)

        return jax.vmap(draw_one)(first_case + jnp.arange(num_cases), labels).astype(jnp.int32)


AS_PUBLISHED = AnswerSchedule()
"""No answer is given in training."""
