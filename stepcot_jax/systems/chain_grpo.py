"""The teacher refined by rewards: it answers the chain as a policy, and GRPO raises its rewards (GEMeX-RMCoT: Eq. 2).

First the teacher is trained on labels, or taken from a finished run. "start" is its best so far, by the reward of its
own answers on validation; GRPO begins there, and "start" stays the frozen reference of the divergence. Both networks
are predicted and reported, so that a run holds its own comparison of before and after.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.evaluation.consistency import count_pairs, make_rules
from stepcot_jax.evaluation.evaluator import Predictions
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.systems.baseline import make_baseline_optimizer
from stepcot_jax.systems.chain_batches import check_settings, read_batches
from stepcot_jax.systems.chain_rewards import ChainRewards
from stepcot_jax.systems.chain_start import check_same_shapes, read_start
from stepcot_jax.systems.chain_update import OPTIMIZER, ChainMetrics, ChainRollouts, make_chain_update
from stepcot_jax.systems.gradients import teacher_part
from stepcot_jax.systems.grpo_objective import REFERENCE
from stepcot_jax.systems.networks import Batch, predict_logits
from stepcot_jax.systems.reward_signal import RewardSignal
from stepcot_jax.systems.step_cot import StepCoT
from stepcot_jax.training.state import Params, TrainState
from stepcot_jax.training.system import Phase, Stream, Update

TEACHER, START = "teacher", "start"
"""The refined network, and the one that GRPO began with."""

PHASE = "chain_grpo"


class ChainGrpo(StepCoT):
    """A teacher that is trained on labels, then refined by rewards; the student is not trained.

    `params["reference"]` holds the parts of "start": of the teacher's phase the best epoch so far, then frozen. At the
    end of that phase the teacher goes back to it.

    Args:
      start: returns the parts of "start", of a finished run; None trains the teacher for `teacher_epochs` first.
    """

    score_name = "mean_reward"

    def __init__(
        self,
        chain: Chain,
        *,
        rewards: ChainRewards,
        rollouts: ChainRollouts,
        refining: optax.GradientTransformation,
        grpo_epochs: int,
        grpo_stream: Stream | None = None,
        teacher_updates: int = 0,
        stop_reading: Callable[[], None] = lambda: None,
        start: Callable[[], Params] | None = None,
        **teaching: Any,
    ) -> None:
        super().__init__(chain, teacher_only=True, **teaching)
        self.names, self.score_name = (TEACHER, START), "mean_reward"
        self.rewards, self.rollouts, self.refining = rewards, rollouts, refining
        self.grpo_epochs, self.grpo_stream, self.start = grpo_epochs, grpo_stream, start
        self.teacher_updates, self.stop_reading = teacher_updates, stop_reading
        if start is not None:
            self.teacher_epochs = self.teacher_updates = 0
        of_grpo = 0 if grpo_stream is None else grpo_epochs * grpo_stream.batches_per_epoch
        self.last_update = self.teacher_updates + of_grpo
        self.signal = RewardSignal("the chains of each case")

    @classmethod
    def from_dataset(
        cls,
        settings: Settings,
        dataset: Dataset,
        image_encoder: nn.Module | None,
        *,
        batches_per_epoch: int,
        answer_weights: Array | None = None,
    ) -> "ChainGrpo":
        """Return the system of `config.job` "chain_grpo".

        Args:
          dataset: cases and splits; pairs of answers of the training split give the rules of contradiction.
          answer_weights: [step, answer] weights of the labels in that phase; None weighs all answers the same.
        """
        grpo, training, chain, start = settings.grpo, settings.training, dataset.chain, settings.policy.start
        check_settings(settings)
        counts = count_pairs(dataset.labels[np.asarray(dataset.splits.train, int)], chain)
        batches, length = read_batches(settings, dataset)
        teaching = StepCoT.from_settings(
            dataclasses.replace(settings, job="teacher"),
            chain,
            image_encoder,
            batches_per_epoch=batches_per_epoch,
            answer_weights=answer_weights,
        )
        networks = teaching.networks
        return cls(
            chain,
            rewards=ChainRewards.from_settings(settings.rewards, make_rules(chain, counts=counts)),
            rollouts=ChainRollouts.from_settings(grpo),
            refining=make_baseline_optimizer(
                learning_rate=grpo.learning_rate,
                schedule=grpo.schedule,
                num_batches=grpo.epochs * length * grpo.num_updates,
                weight_decay=grpo.weight_decay,
                epsilon=training.adam_epsilon,
                clip_norm=training.clip_norm,
            ),
            grpo_epochs=grpo.epochs,
            grpo_stream=Stream(batches, length),
            stop_reading=batches.close,
            teacher_updates=teaching.teacher_epochs * batches_per_epoch,
            start=functools.partial(read_start, start, settings) if start else None,
            teacher=networks.teacher,
            student=networks.student,
            image_encoder=networks.image_encoder,
            objective=teaching.objective,
            projection_width=networks.projection_width,
            remat=networks.remat,
            optimizers=teaching.optimizers,
            teacher_epochs=teaching.teacher_epochs,
            given=teaching.given,
        )

    def init(self, key: Array, example: Batch) -> TrainState:
        """Return random parameters, or those of the finished run, and fresh optimizers."""
        state = super().init(key, example)
        own = teacher_part(state.params)
        if self.start is not None:
            own = check_same_shapes(self.start(), own)
        params = {**state.params, **own, REFERENCE: jax.tree.map(jnp.copy, own)}
        optimizers = {**state.optimizers, OPTIMIZER: self.refining.init(own)}
        return state.replace(params=params, optimizers=optimizers)

    def phases(self) -> Sequence[Phase]:
        """Return the teacher's phase, left out with a `start`, and that of GRPO."""
        refine = Phase(PHASE, self.grpo_epochs, self.chain_update, self.grpo_stream)
        return [*super().phases(), refine] if self.teacher_epochs else [refine]

    @functools.cached_property
    def chain_update(self) -> Update:
        """The update by rewards."""
        return make_chain_update(self.networks, self.rewards, self.rollouts, self.refining)

    def predict(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Return padded logits [case, step, answer] of both networks, each read with its own answers."""
        return {
            name: predict_logits(self.networks, (TEACHER,), own, batch)[TEACHER]
            for name, own in ((TEACHER, params), (START, params[REFERENCE]))
        }

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Return the mean reward of each network's most probable answers, 0 to 1; NaN if no chain can be scored.

        With the weight of the diagnosis alone it is the diagnosis accuracy.
        """
        scores, labels = {}, jnp.asarray(predictions.labels)
        for name in self.names:
            found = predictions.logits[name]
            if not np.isfinite(found).all():
                raise FloatingPointError(f"{name}: a logit is not finite")
            parts = self.rewards.score(chains=jnp.asarray(found.argmax(axis=-1), jnp.int32), labels=labels)
            scored = np.asarray(parts.total, np.float64)
            known = scored[~np.isnan(scored)]
            scores[name] = float(known.mean() / self.rewards.highest) if known.size else float("nan")
        return scores

    def given_reader(self, name: str, params: Params, batch: Batch) -> Callable[[np.ndarray], np.ndarray]:
        """As that of `StepCoT`; `name` is "teacher" or "start"."""
        return super().given_reader(TEACHER, params[REFERENCE] if name == START else params, batch)

    def after_epoch(self, state: TrainState, scores: dict[str, float]) -> TrainState:
        """In the teacher's phase keep its best epoch as "start"; at the end of the phase go back to it."""
        step, params = int(jax.device_get(state.step)), state.params
        if step <= self.teacher_updates and scores[TEACHER] > scores[START]:
            params = {**params, REFERENCE: jax.tree.map(jnp.copy, teacher_part(params))}
        elif step == self.teacher_updates:
            params = {**params, **jax.tree.map(jnp.copy, params[REFERENCE])}
        if step == self.last_update:
            self.stop_reading()
        return state.replace(params=params)

    def numbers(self, metrics: Any) -> dict[str, float]:
        """Return those of the teacher's update, or rewards, KL, clip share and the like of an update by rewards."""
        if not isinstance(metrics, ChainMetrics):
            return super().numbers(metrics)
        numbers = {name: float(number) for name, number in jax.device_get(metrics.numbers).items()}
        mean = numbers["reward"] if numbers["scored"] > 0 else float("nan")
        self.signal.add(mean=mean, differs=numbers["equal_groups"] < 1)
        return {f"{TEACHER}/{name}": number for name, number in numbers.items()}

    def end_phase(self, name: str) -> str:
        """Return a warning if all rewards of GRPO were equal within their groups, or none was defined."""
        return self.signal.warn(name) if name == PHASE else ""

    def describe(self, numbers: dict[str, float]) -> str:
        """Return the loss of the teacher, or its reward and KL, in a few words."""
        if f"{TEACHER}/reward" not in numbers:
            return super().describe(numbers)
        return f"reward {numbers[f'{TEACHER}/reward']:.3f}, KL {numbers[f'{TEACHER}/kl']:.4f}"
