"""Supervised fine-tuning of a policy: rows of packed records on the host, and the compiled update (MEDSAGE: Eq. 7)."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grain
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.losses.sequence import sequence_loss, sequence_weight
from stepcot_jax.models.stacked_layers import unstack_layers
from stepcot_jax.policies.policy import AnyPolicy, lay_out_update, policy_params
from stepcot_jax.policies.records import EncodedRecord, lay_out_pack, pack_records, stack_rows
from stepcot_jax.systems.options import SftOptions
from stepcot_jax.training.devices import GlobalBatch, differentiate
from stepcot_jax.training.optimizers import global_norm
from stepcot_jax.training.state import Params, TrainState, apply_gradients

NAME = "sft"
"""Name of the phase, its optimizer and its best weights."""

POLICY = "policy"
"""Name of the policy's parameters."""

Batch = dict[str, Any]
Normalise = Callable[[Array], Array]
"""Pictures uint8 [case, height, width, 3], or the output of `See` -> the network's input, on the device."""

See = Callable[[np.ndarray], np.ndarray]
"""Pictures uint8 [case, height, width, 3] -> the input of `Normalise`: the pictures, or a frozen encoder's patches."""


@dataclasses.dataclass(frozen=True)
class PackedRows:
    """Rows of a fine-tuning batch from the numbers of their packs."""

    dataset: VqaDataset
    encoded: Mapping[int, EncodedRecord]
    packs: Sequence[tuple[int, ...]]
    length: int
    part_weights: tuple[float, float]
    rows: slice
    see: See

    def __call__(self, update: int, numbers: Int[np.ndarray, " row"]) -> Batch:
        """Return this process's rows: images, and the entries that `lay_out_pack` and `sequence_loss` document."""
        del update
        packs = [self.packs[number] for number in numbers[self.rows]]
        laid_out = stack_rows([lay_out_pack([self.encoded[index] for index in pack], self.length) for pack in packs])
        weights = np.tile(np.array(self.part_weights, np.float32), (len(packs), 1))
        images = self.dataset.load_images([self.dataset.image_of[pack[0]] for pack in packs])
        return {"images": self.see(images), **laid_out, "part_weights": weights}


def pack_split(
    dataset: VqaDataset, encoded: Mapping[int, EncodedRecord], *, pack_length: int
) -> tuple[list[tuple[int, ...]], int]:
    """Return the packs of the training split and the tokens of the longest one; see `policies.records.pack_records`."""
    indices = [int(index) for index in dataset.splits.train]
    lengths = [encoded[index].length for index in indices]
    packs = pack_records(lengths, [int(dataset.image_of[index]) for index in indices], longest=pack_length)
    named = [tuple(indices[number] for number in pack) for pack in packs]
    return named, max(sum(encoded[index].length for index in pack) for pack in named)


def draw_batches(number: int, *, batch_size: int, seed: int, make: Callable[[int, Any], Batch]) -> grain.MapDataset:
    """Return endless batches; each item comes once before any repeats, in a new order each time."""
    order = grain.MapDataset.range(number).seed(seed).shuffle().repeat()
    drawn = order.batch(batch_size, drop_remainder=True)
    return drawn.map_with_index(lambda update, numbers: make(update, np.asarray(numbers)))


@dataclasses.dataclass(frozen=True)
class SftUpdate:
    """One device's update of fine-tuning."""

    policy: AnyPolicy
    normalise: Normalise
    optimizer: optax.GradientTransformation
    settings: SftOptions

    def score(self, params: Params, rows: Batch) -> Float[Array, "row token word"]:
        """Return the scores of the next token, at each token of packed rows."""
        logits: Array = self.policy.apply(
            {"params": policy_params(params, POLICY)},
            self.normalise(rows["images"]),
            rows["tokens"],
            rows["segments"],
            rows["places"],
            method="score_packed",
        )
        return logits

    def loss_of(self, logits: Float[Array, "row token word"], rows: Batch, divisor: Array | None = None) -> Array:
        """Return the share of these rows in the loss with the divisor of the global batch, or their own loss."""
        return sequence_loss(
            logits=logits,
            tokens=rows["targets"],
            parts=rows["parts"],
            part_weights=rows["part_weights"],
            reduction=self.settings.reduction,
            divisor=divisor,
        )

    def measure(self, logits: Float[Array, "row token word"], rows: Batch) -> dict[str, Array]:  # noqa: ARG002
        """Return further sums over rows, which are added up over all devices."""
        return {}

    def gradients(self, params: Params, batch: Batch, global_batch: GlobalBatch) -> tuple[dict[str, Array], Params]:
        """Return the loss of the global batch with the sums of `measure`, and its gradients."""
        share = sequence_weight(
            parts=batch["parts"], part_weights=batch["part_weights"], reduction=self.settings.reduction
        )
        divisor = global_batch.add_up(share)
        params = lay_out_update(self.policy, params, global_batch.num_passes)

        def loss(trained: Params, rows: Batch) -> tuple[Array, dict[str, Array]]:
            logits = self.score({**params, **trained}, rows)
            value = self.loss_of(logits, rows, divisor)
            return value, {"loss": value, **self.measure(logits, rows)}

        numbers, gradients = differentiate(loss, {POLICY: params[POLICY]}, batch, global_batch)
        return numbers, unstack_layers(gradients)

    def __call__(
        self, state: TrainState, batch: Batch, global_batch: GlobalBatch
    ) -> tuple[TrainState, dict[str, Array]]:
        """Return the state after the update, and the loss and gradient norm before it."""
        numbers, gradients = self.gradients(state.params, batch, global_batch)
        state = apply_gradients(state, NAME, self.optimizer, gradients)
        numbers = {f"{NAME}/{name}": number for name, number in numbers.items()}
        return state.replace(step=state.step + jnp.int32(1)), {
            **numbers,
            f"{NAME}/gradient_norm": global_norm(gradients),
        }
