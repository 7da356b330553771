"""Fine-tuning with a curriculum: mean losses by domain and stage, and the schedule's state among the optimizer states.

The update adds up the loss of each row by domain and stage, over all devices; the end of an epoch turns the sums into
the schedule's next state. All of it is float32 in the `TrainState`, so that a resumed run draws the same stages.
"""

import dataclasses
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stepcot_jax.data.grounded.stage_views import STAGES
from stepcot_jax.losses.sequence import sequence_loss
from stepcot_jax.settings.policy_sections import CurriculumSettings
from stepcot_jax.systems.curriculum import CurriculumState, after_epoch
from stepcot_jax.systems.sft import NAME, POLICY, Batch, SftUpdate
from stepcot_jax.training.global_batch import GlobalBatch, differentiate
from stepcot_jax.training.optimizers import global_norm
from stepcot_jax.training.state import Params, TrainState, apply_gradients

CURRICULUM = "curriculum"
"""Of the schedule's state in `TrainState.optimizers`."""

NO_DOMAIN = -1
"""Number of the domain of a row that has none; its loss moves no schedule."""

_SUMS, _COUNTS = "sums", "counts"


@dataclasses.dataclass(frozen=True)
class Curriculum:
    """The schedule of a run, and its state as arrays.

    Attributes:
      domains: of the training records, see `stage_views.domain_of`; distinct, without "".
    """

    settings: CurriculumSettings
    num_epochs: int
    updates_per_epoch: int
    seed: int
    domains: tuple[str, ...]

    def to_arrays(self, state: CurriculumState) -> dict[str, Array]:
        """Return a state as float32 arrays, with sums and counts [domain, stage] of 0; NaN stands for no value."""
        settings = self.settings
        table = (len(self.domains), len(STAGES))
        history = np.full(max(2, settings.plateau_values), np.nan)
        history[: len(state.history)] = state.history
        found = {
            "epoch": state.epoch,
            "easy": [state.easy.get(domain, np.nan) for domain in self.domains],
            "medium": [state.medium.get(domain, np.nan) for domain in self.domains],
            "overall": state.overall,
            "history": history,
            "hard_share": state.hard_share,
            _SUMS: np.zeros(table),
            _COUNTS: np.zeros(table),
        }
        return {name: jnp.asarray(np.asarray(value, np.float32)) for name, value in found.items()}

    def restore(self, arrays: Any) -> CurriculumState:
        """Return the state that arrays of `to_arrays` hold, with the sums of the epoch left aside."""
        found = {name: np.asarray(value, np.float64) for name, value in jax.device_get(arrays).items()}

        def defined(values: np.ndarray) -> dict[str, float]:
            return {
                domain: float(value) for domain, value in zip(self.domains, values, strict=True) if not np.isnan(value)
            }

        return CurriculumState(
            epoch=int(found["epoch"]),
            easy=defined(found["easy"]),
            medium=defined(found["medium"]),
            overall=float(found["overall"]),
            history=tuple(float(value) for value in found["history"] if not np.isnan(value)),
            hard_share=float(found["hard_share"]),
        )

    def end_epoch(self, state: TrainState) -> TrainState:
        """Return the state for the next epoch: the schedule moved on by the mean losses, sums and counts 0."""
        before = state.optimizers[CURRICULUM]
        sums, counts = (np.asarray(jax.device_get(before[name]), np.float64) for name in (_SUMS, _COUNTS))
        losses = {
            (domain, stage): float(sums[row, column] / counts[row, column])
            for row, domain in enumerate(self.domains)
            for column, stage in enumerate(STAGES)
            if counts[row, column]
        }
        ended = self.to_arrays(after_epoch(self.restore(before), self.settings, losses))
        # Not `device_put`: of several processes each holds a part of the replicated arrays.
        after = jax.tree.map(lambda new, old: jnp.where(True, new, old), ended, before)
        return state.replace(optimizers={**state.optimizers, CURRICULUM: after})

    def describe(self, state: CurriculumState) -> dict[str, float]:
        """Return the numbers of "adaptive" for the log: median gap over the domains with a loss, and the hard share."""
        if self.settings.schedule != "adaptive":
            return {}
        gaps = [state.gap(domain, self.settings) for domain in sorted({*state.easy, *state.medium})]
        gap = statistics.median(gaps) if gaps else 0.0
        return {f"{CURRICULUM}/median_gap": gap, f"{CURRICULUM}/hard_share": state.hard_share}


@dataclasses.dataclass(frozen=True)
class StagedSftUpdate(SftUpdate):
    """One device's update of fine-tuning on rows of several stages.

    Rows have, beside those of `SftUpdate`, "domains" and "stages" int32 [row]: numbers of the domain, `NO_DOMAIN` for
    none, and of the stage shown.
    """

    num_domains: int

    def add_up_losses(self, logits: Float[Array, "row token word"], rows: Batch) -> dict[str, Array]:
        """Return sums of the rows' losses and their counts, float32 [domain, stage]."""

        def of_row(logits: Array, row: Batch) -> Array:
            one = jax.tree.map(lambda values: values[None], row)
            return sequence_loss(
                logits=logits[None],
                tokens=one["targets"],
                parts=one["parts"],
                part_weights=one["part_weights"],
                reduction=self.settings.reduction,
            )

        taken = {name: rows[name] for name in ("targets", "parts", "part_weights")}
        losses = jax.lax.stop_gradient(jax.vmap(of_row)(logits, taken))
        of_domain = jax.nn.one_hot(rows["domains"], self.num_domains, dtype=jnp.float32)
        of_stage = jax.nn.one_hot(rows["stages"], len(STAGES), dtype=jnp.float32)
        return {
            _SUMS: jnp.einsum("r,rd,rs->ds", losses, of_domain, of_stage),
            _COUNTS: jnp.einsum("rd,rs->ds", of_domain, of_stage),
        }

    def gradients(self, params: Params, batch: Batch, whole: GlobalBatch) -> tuple[dict[str, Array], Params]:
        """Return the loss of the global batch with sums and counts [domain, stage], and its gradients."""
        divisor = self.divisor(batch, whole)

        def loss(trained: Params, rows: Batch) -> tuple[Array, dict[str, Array]]:
            logits = self.score({**params, **trained}, rows)
            value = self.loss_of(logits, rows, divisor)
            return value, {"loss": value, **self.add_up_losses(logits, rows)}

        return differentiate(loss, {POLICY: params[POLICY]}, batch, whole)

    def __call__(self, state: TrainState, batch: Batch, whole: GlobalBatch) -> tuple[TrainState, dict[str, Array]]:
        """Return the state after the update, its sums included, and the loss and gradient norm before it."""
        numbers, gradients = self.gradients(state.params, batch, whole)
        state = apply_gradients(state, NAME, self.optimizer, gradients)
        kept = state.optimizers[CURRICULUM]
        added = {name: kept[name] + numbers[name] for name in (_SUMS, _COUNTS)}
        optimizers = {**state.optimizers, CURRICULUM: {**kept, **added}}
        logged = {"loss": numbers["loss"], "gradient_norm": global_norm(gradients)}
        return state.replace(step=state.step + jnp.int32(1), optimizers=optimizers), {
            f"{NAME}/{name}": number for name, number in logged.items()
        }
