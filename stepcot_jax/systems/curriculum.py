"""Schedules of the stage that a row of fine-tuning shows: easy, medium or hard (MedCLM). Host-side and pure.

The schedules "epochs" and "mixed" are ours; "adaptive" has the formulas of MedCLM's public code (ksyint/PROGRESSIVE,
a7cca74), since our copy of the paper prints none. A domain is a lesion with a modality (`stage_views.domain_of`).
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stepcot_jax.data.questions.making import write_texts
from stepcot_jax.data.questions.stage_views import (
    DIALECTS_WITH_HARD,
    STAGES,
    Stage,
    StageView,
    StageViews,
    domain_of,
    draw_views,
)
from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.host.errors import BadInput
from stepcot_jax.policies.policy_files import AnyTokenizer
from stepcot_jax.policies.records import EncodedRecord, RecordEncoder, lay_out_pack, stack_rows
from stepcot_jax.systems.options import CurriculumOptions, SftOptions, count_updates
from stepcot_jax.systems.sft import NAME, Batch, See, SftUpdate
from stepcot_jax.training.devices import GlobalBatch
from stepcot_jax.training.state import TrainState
from stepcot_jax.training.system import COLLECTED_NUMBERS

_STREAM = 4  # of the random numbers that draw stages

Losses = Mapping[tuple[str, Stage], float]
"""Mean loss of an epoch by domain and stage."""


@dataclasses.dataclass(frozen=True)
class CurriculumState:
    """The state of a schedule: running means of losses by domain and overall, oldest of `history` first."""

    epoch: int = 0
    easy: Mapping[str, float] = dataclasses.field(default_factory=dict)
    medium: Mapping[str, float] = dataclasses.field(default_factory=dict)
    overall: float = 0.0
    history: tuple[float, ...] = ()
    hard_share: float = 0.0

    @classmethod
    def first(cls, settings: CurriculumOptions) -> "CurriculumState":
        """Return the state before the first epoch."""
        return cls(overall=settings.first_overall)

    def gap(self, domain: str, settings: CurriculumOptions) -> float:
        """Return (easy - medium) / (easy + least_loss) of a domain's running means; 0 if easy is below least_loss."""
        easy, medium = (means.get(domain, settings.first_loss) for means in (self.easy, self.medium))
        return 0.0 if easy < settings.least_loss else (easy - medium) / (easy + settings.least_loss)

    def median_gap(self, settings: CurriculumOptions) -> float | None:
        """Return the median over the domains that had a loss in any epoch; None without any."""
        gaps = [self.gap(domain, settings) for domain in sorted({*self.easy, *self.medium})]
        return statistics.median(gaps) if gaps else None


def medium_probability(state: CurriculumState, settings: CurriculumOptions, domain: str) -> float:
    """Return the probability of the medium stage in "adaptive": ramp(e) sigmoid((gap - centre) / width).

    ramp(e) = 0 for e <= easy_epochs, else min(1, (e - easy_epochs) / ramp_epochs).
    """
    ramp = min(1.0, max(0, state.epoch - settings.easy_epochs) / settings.ramp_epochs)
    exponent = (state.gap(domain, settings) - settings.gap_centre) / settings.gap_width
    return ramp * 0.5 * (1 + math.tanh(exponent / 2))  # a sigmoid that cannot overflow


def stage_shares(
    state: CurriculumState, settings: CurriculumOptions, domain: str, *, num_epochs: int
) -> tuple[float, float, float]:
    """Return the probabilities of easy, medium and hard for a row of a domain in the next epoch.

    - "none", and rows without domain in every schedule: always medium, the bare picture.
    - "epochs": one stage at a time; boundaries are the cumulative shares of the epochs, rounded half up.
    - "mixed": the shares, in every epoch: the control without a curriculum.
    - "adaptive": easy before `easy_epochs`; then medium with `medium_probability`, else easy; from `hard_epoch` on
      first hard with probability `state.hard_share`.
    """
    if settings.schedule == "none" or not domain:
        return 0.0, 1.0, 0.0
    if settings.schedule == "mixed":
        easy, medium, hard = settings.shares
        return easy, medium, hard
    if settings.schedule == "epochs":
        first, second = first_epochs(settings, num_epochs=num_epochs)
        stage = (state.epoch >= first) + (state.epoch >= second)
        return float(stage == 0), float(stage == 1), float(stage == 2)
    hard = state.hard_share if state.epoch >= settings.hard_epoch else 0.0
    medium = medium_probability(state, settings, domain) if state.epoch >= settings.easy_epochs else 0.0
    return (1 - hard) * (1 - medium), (1 - hard) * medium, hard


def first_epochs(settings: CurriculumOptions, *, num_epochs: int) -> tuple[int, int]:
    """Return the first medium and the first hard epoch of the schedule "epochs", counted from 0."""
    easy, medium, _ = settings.shares
    # 1e-9: a sum of shares may be just below the half that it stands for.
    first, second = (math.floor(share * num_epochs + 0.5 + 1e-9) for share in (easy, easy + medium))
    return first, second


def draw_stages(
    state: CurriculumState,
    settings: CurriculumOptions,
    *,
    num_epochs: int,
    seed: int,
    update: int,
    domains: Sequence[str],
) -> list[Stage]:
    """Return the stage of each row of an update: a function of the state, the seed, the update and the row."""
    drawn: list[Stage] = []
    for row, domain in enumerate(domains):
        easy, medium, hard = stage_shares(state, settings, domain, num_epochs=num_epochs)
        if max(easy, medium, hard) == 1:
            drawn.append(STAGES[(easy, medium, hard).index(1)])
            continue
        uniform = np.random.default_rng((_STREAM, seed, update, row)).random()
        drawn.append("hard" if uniform < hard else "medium" if uniform < hard + medium else "easy")
    return drawn


def after_epoch(state: CurriculumState, settings: CurriculumOptions, losses: Losses) -> CurriculumState:
    """Return the state after an epoch.

    Running means, with d = `decay`: m <- d m + (1 - d) loss, from `first_loss` for easy and medium of each domain and
    `first_overall` for the mean over all domains and stages; a stage that was not drawn leaves its mean as it is. Then,
    with the last `plateau_values` of the overall mean: a plateau is that many values with differences of at most
    `plateau_tolerance`, a rise is a last difference of at least `rise`. A plateau with a median gap of at least
    `hard_gap` raises `hard_share` by `hard_increase`, up to `most_hard`; otherwise a rise multiplies it by
    `hard_factor`. The median is over the domains that had a loss in any epoch.

    Args:
      losses: mean of the epoch by domain and stage; rows without domain may be left out.
    """
    bad = [key for key, loss in losses.items() if not math.isfinite(loss)]
    if bad:
        raise ValueError(f"losses must be finite; got {losses[bad[0]]} for {bad[0]}")
    if settings.schedule != "adaptive" or not losses:
        return dataclasses.replace(state, epoch=state.epoch + 1)
    decay = settings.decay
    means: dict[str, dict[str, float]] = collections.defaultdict(dict)
    means |= {"easy": dict(state.easy), "medium": dict(state.medium)}
    for (domain, stage), loss in sorted(losses.items()):
        means[stage][domain] = decay * means[stage].get(domain, settings.first_loss) + (1 - decay) * loss
    overall = decay * state.overall + (1 - decay) * statistics.fmean(losses.values())
    history = (*state.history, overall)[-max(2, settings.plateau_values) :]
    ended = CurriculumState(state.epoch + 1, means["easy"], means["medium"], overall, history, state.hard_share)
    return dataclasses.replace(ended, hard_share=_adapt_hard_share(ended, settings))


def _adapt_hard_share(state: CurriculumState, settings: CurriculumOptions) -> float:
    steps = np.diff(state.history[-settings.plateau_values :])
    is_long = len(state.history) >= settings.plateau_values
    is_plateau = is_long and bool(np.all(np.abs(steps) <= settings.plateau_tolerance))
    gap = state.median_gap(settings)
    if is_plateau and gap is not None and gap >= settings.hard_gap:
        return min(state.hard_share + settings.hard_increase, settings.most_hard)
    is_rise = len(state.history) >= 2 and state.history[-1] - state.history[-2] >= settings.rise
    return state.hard_share * settings.hard_factor if is_rise else state.hard_share


# Fine-tuning with a curriculum: mean losses by domain and stage, and the schedule's state among the optimizer states.
#
# The update adds up the loss of each row by domain and stage, over all devices; the end of an epoch turns the sums
# into the schedule's next state. All of it is float32 in the `TrainState`, so that a resumed run draws the same
# stages.


CURRICULUM = "curriculum"
"""Name of the schedule's state in `TrainState.optimizers`."""

NO_DOMAIN = -1
"""Number of the domain of a row without one; its loss does not change the schedule."""

_SUMS, _COUNTS = "sums", "counts"


@dataclasses.dataclass(frozen=True)
class Curriculum:
    """The schedule of a run, and its state as arrays."""

    settings: CurriculumOptions
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
        values = {
            "epoch": state.epoch,
            "easy": [state.easy.get(domain, np.nan) for domain in self.domains],
            "medium": [state.medium.get(domain, np.nan) for domain in self.domains],
            "overall": state.overall,
            "history": history,
            "hard_share": state.hard_share,
            _SUMS: np.zeros(table),
            _COUNTS: np.zeros(table),
        }
        return {name: jnp.asarray(np.asarray(value, np.float32)) for name, value in values.items()}

    def restore(self, arrays: Any) -> CurriculumState:
        """Return the state that arrays of `to_arrays` hold, without the sums of the epoch."""
        saved = {name: np.asarray(value, np.float64) for name, value in jax.device_get(arrays).items()}

        def defined(values: np.ndarray) -> dict[str, float]:
            return {
                domain: float(value) for domain, value in zip(self.domains, values, strict=True) if not np.isnan(value)
            }

        return CurriculumState(
            epoch=int(saved["epoch"]),
            easy=defined(saved["easy"]),
            medium=defined(saved["medium"]),
            overall=float(saved["overall"]),
            history=tuple(float(value) for value in saved["history"] if not np.isnan(value)),
            hard_share=float(saved["hard_share"]),
        )

    def end_epoch(self, state: TrainState) -> TrainState:
        """Return the state for the next epoch: the schedule updated with the mean losses, sums and counts 0."""
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
        gap = state.median_gap(self.settings)
        return {f"{CURRICULUM}/median_gap": gap or 0.0, f"{CURRICULUM}/hard_share": state.hard_share}


@dataclasses.dataclass(frozen=True)
class StagedSftUpdate(SftUpdate):
    """One device's update of fine-tuning on rows with numbers of their "domains" and "stages", int32 [row]."""

    num_domains: int

    def measure(self, logits: Float[Array, "row token word"], rows: Batch) -> dict[str, Array]:
        """Return sums of the rows' losses and their counts, float32 [domain, stage]."""

        def loss_of_row(logits: Array, row: Batch) -> Array:
            return self.loss_of(*jax.tree.map(lambda values: values[None], (logits, row)))

        inputs = {name: rows[name] for name in ("targets", "parts", "part_weights")}
        losses = jax.lax.stop_gradient(jax.vmap(loss_of_row)(logits, inputs))
        of_domain = jax.nn.one_hot(rows["domains"], self.num_domains, dtype=jnp.float32)
        of_stage = jax.nn.one_hot(rows["stages"], len(STAGES), dtype=jnp.float32)
        return {
            _SUMS: jnp.einsum("r,rd,rs->ds", losses, of_domain, of_stage),
            _COUNTS: jnp.einsum("rd,rs->ds", of_domain, of_stage),
        }

    def __call__(
        self, state: TrainState, batch: Batch, global_batch: GlobalBatch
    ) -> tuple[TrainState, dict[str, Array]]:
        """Return the state after the update, its sums included, and the loss and gradient norm before it."""
        state, numbers = super().__call__(state, batch, global_batch)
        kept = state.optimizers[CURRICULUM]
        added = {name: kept[name] + numbers.pop(f"{NAME}/{name}") for name in (_SUMS, _COUNTS)}
        return state.replace(optimizers={**state.optimizers, CURRICULUM: {**kept, **added}}), numbers


# Rows of fine-tuning with a curriculum: the stage of each row is drawn, then its picture, prompt and target.
#
# Pictures of the records are read ahead. Stages are drawn by `Phase.collect`, when the schedule's state is known, so a
# resumed run and another number of processes draw the same stages.


_HARD_WEIGHTS = (1.0, 0.0)  # MedCLM: the answer alone
_Shown = tuple[int, bool]  # index of a record, and whether its view is hard; the tokens of a view depend on both


@dataclasses.dataclass
class StagedRows:
    """Rows of a fine-tuning batch; `read` is for reading ahead, the call is the phase's `collect`."""

    dataset: VqaDataset
    indices: Sequence[int]
    views: StageViews
    encoded: Mapping[_Shown, EncodedRecord]
    part_weights: tuple[float, float]
    curriculum: Curriculum
    rows: slice
    see: See

    def __post_init__(self) -> None:
        self.length = max(record.length for record in self.encoded.values())
        self._number_of = {domain: number for number, domain in enumerate(self.curriculum.domains)}
        self._known: tuple[int, CurriculumState] | None = None

    def read(self, update: int, numbers: Int[np.ndarray, " row"]) -> Batch:
        """Return the record indices of all rows, and the images of this process's rows."""
        indices = [self.indices[number] for number in numbers]
        images = self.dataset.load_images([self.dataset.image_of[index] for index in indices[self.rows]])
        return {"update": update, "indices": indices, "images": images}

    def __call__(self, state: TrainState, batch: Batch) -> Batch:
        """Return this process's rows as `StagedSftUpdate` takes them, and numbers for the log."""
        update, indices = batch["update"], batch["indices"]
        schedule = self._schedule(state, update)
        domains = [domain_of(self.dataset.records[index]) for index in indices]
        curriculum = self.curriculum
        stages = draw_stages(
            schedule,
            curriculum.settings,
            num_epochs=curriculum.num_epochs,
            seed=curriculum.seed,
            update=update,
            domains=domains,
        )
        views = [
            self.views.view(index, stage, seed=curriculum.seed, update=update, row=row)
            for row, (index, stage) in enumerate(zip(indices, stages, strict=True))
        ]
        shares = {f"{CURRICULUM}/{stage}": sum(view.stage == stage for view in views) / len(views) for stage in STAGES}
        return {
            **self._lay_out(views[self.rows], indices[self.rows], batch["images"]),
            COLLECTED_NUMBERS: {**shares, **curriculum.describe(schedule)},
        }

    def _schedule(self, state: TrainState, update: int) -> CurriculumState:
        """Return the schedule's state; read from the devices once an epoch, since that waits for the last update."""
        epoch = update // self.curriculum.updates_per_epoch
        if self._known is None or self._known[0] != epoch:
            self._known = epoch, self.curriculum.restore(state.optimizers[CURRICULUM])
        return self._known[1]

    def _lay_out(self, views: Sequence[StageView], indices: Sequence[int], images: np.ndarray) -> Batch:
        shown = images.copy()
        for row, (view, index) in enumerate(zip(views, indices, strict=True)):
            if view.index != index:
                shown[row] = self.dataset.load_images([int(self.dataset.image_of[view.index])])[0]
        rows = [lay_out_pack([self.encoded[_key(view)]], self.length) for view in views]
        weights = [_HARD_WEIGHTS if view.stage == "hard" else self.part_weights for view in views]
        domains = [self._number_of.get(domain_of(view.record), NO_DOMAIN) for view in views]
        return {
            "images": self.see(draw_views(shown, views)),
            **stack_rows(rows),
            "part_weights": np.array(weights, np.float32),
            "domains": np.array(domains, np.int32),
            "stages": np.array([STAGES.index(view.stage) for view in views], np.int32),
        }


def make_views(options: CurriculumOptions, dataset: VqaDataset, *, dialect: str, with_thinking: bool) -> StageViews:
    """Return the views of the training split."""
    if may_be_hard(options) and dialect not in DIALECTS_WITH_HARD:
        raise BadInput(
            f"config.curriculum.schedule: {options.schedule!r} has a hard stage, for which "
            f"config.vqa.dialect={dialect!r} has no reply of the answer alone; expected one of "
            f"{', '.join(DIALECTS_WITH_HARD)}, or a schedule without a hard stage (shares, most_hard)"
        )
    return StageViews(dataset.records, dataset.splits.train, dialect=dialect, with_thinking=with_thinking)


def may_be_hard(settings: CurriculumOptions) -> bool:
    """Return whether a schedule can show the hard stage."""
    return settings.most_hard > 0 if settings.schedule == "adaptive" else settings.shares[2] > 0


def stage_texts(options: CurriculumOptions, dataset: VqaDataset, *, dialect: str, with_thinking: bool) -> list[str]:
    """Return prompts and replies of all views of the training split, to count a vocabulary."""
    views = make_views(options, dataset, dialect=dialect, with_thinking=with_thinking)
    return [
        text
        for view in _all_views(views, dataset, options)
        for text in write_texts(view.record, dialect, with_thinking=view.with_thinking)
    ]


def make_staged_rows(
    options: CurriculumOptions,
    fine_tuning: SftOptions,
    dataset: VqaDataset,
    tokenizer: AnyTokenizer,
    *,
    dialect: str,
    with_thinking: bool,
    seed: int,
    encoded: Mapping[int, EncodedRecord],
    indices: Sequence[int],
    rows: slice,
    see: See,
) -> StagedRows:
    """Return the rows of a run's fine-tuning."""
    views = make_views(options, dataset, dialect=dialect, with_thinking=with_thinking)
    encoder = RecordEncoder(tokenizer, dialect, with_thinking=False)
    shown = {
        _key(view): encoder.encode(view.record) if view.stage == "hard" else encoded[view.index]
        for view in _all_views(views, dataset, options)
    }
    domains = {domain_of(dataset.records[int(index)]) for index in dataset.splits.train}
    curriculum = Curriculum(
        options,
        num_epochs=fine_tuning.epochs,
        updates_per_epoch=count_updates(fine_tuning, len(indices)),
        seed=seed,
        domains=tuple(sorted(domains - {""})),
    )
    part_weights = (fine_tuning.answer_weight, fine_tuning.reasoning_weight)
    return StagedRows(dataset, indices, views, shown, part_weights, curriculum, rows, see)


def _all_views(views: StageViews, dataset: VqaDataset, options: CurriculumOptions) -> list[StageView]:
    hard = may_be_hard(options)
    shown = [view for index in dataset.splits.train for view in views.shown_of(int(index))]
    return [view for view in shown if hard or view.stage != "hard"]


def _key(view: StageView) -> _Shown:
    return view.index, view.stage == "hard"
