"""Which stage each row of fine-tuning shows: easy, medium or hard (MedCLM). Host-side and pure.

The schedules "epochs" and "mixed" are ours; "adaptive" has the formulas of MedCLM's public code (ksyint/PROGRESSIVE,
a7cca74), since our copy of the paper prints none. A domain is a lesion with a modality (`stage_views.domain_of`).
"""

import collections
import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepcot_jax.data.grounded.stage_views import STAGES, Stage
from stepcot_jax.settings.policy_sections import CurriculumSettings

_STREAM = 4  # of stage draws, apart from those of other cases

Losses = Mapping[tuple[str, Stage], float]
"""Mean loss of an epoch by domain and stage."""


@dataclasses.dataclass(frozen=True)
class CurriculumState:
    """What a schedule remembers; JSON-able, so that a checkpoint can hold it.

    Attributes:
      easy: running mean of the easy loss of each domain that had one.
      medium: the same of the medium loss.
      overall: running mean of the mean loss over domains and stages.
      history: its last values, oldest first, as many as a plateau needs.
      hard_share: lambda, the probability of the hard stage once it has begun.
    """

    epoch: int = 0
    easy: Mapping[str, float] = dataclasses.field(default_factory=dict)
    medium: Mapping[str, float] = dataclasses.field(default_factory=dict)
    overall: float = 0.0
    history: tuple[float, ...] = ()
    hard_share: float = 0.0

    @classmethod
    def first(cls, settings: CurriculumSettings) -> "CurriculumState":
        """Return the state before the first epoch."""
        return cls(overall=settings.first_overall)

    def to_json(self) -> str:
        """Return the state as JSON, with every bit of its numbers."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "CurriculumState":
        """Return the state that `to_json` wrote."""
        read: dict[str, Any] = json.loads(text)
        return cls(**{**read, "history": tuple(read["history"])})

    def gap(self, domain: str, settings: CurriculumSettings) -> float:
        """Return (easy - medium) / (easy + least_loss) of a domain's running means; 0 if easy is below least_loss."""
        easy, medium = (means.get(domain, settings.first_loss) for means in (self.easy, self.medium))
        return 0.0 if easy < settings.least_loss else (easy - medium) / (easy + settings.least_loss)


def medium_probability(state: CurriculumState, settings: CurriculumSettings, domain: str) -> float:
    """Return the probability of the medium stage in "adaptive": ramp(e) sigmoid((gap - centre) / width).

    ramp(e) = 0 for e <= easy_epochs, else min(1, (e - easy_epochs) / ramp_epochs).
    """
    ramp = min(1.0, max(0, state.epoch - settings.easy_epochs) / settings.ramp_epochs)
    exponent = (state.gap(domain, settings) - settings.gap_centre) / settings.gap_width
    return ramp * 0.5 * (1 + math.tanh(exponent / 2))  # a sigmoid that cannot overflow


def stage_shares(
    state: CurriculumState, settings: CurriculumSettings, domain: str, *, num_epochs: int
) -> tuple[float, float, float]:
    """Return the probabilities of easy, medium and hard for a row of a domain in the epoch that comes next.

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
        place = (state.epoch >= first) + (state.epoch >= second)
        return float(place == 0), float(place == 1), float(place == 2)
    hard = state.hard_share if state.epoch >= settings.hard_epoch else 0.0
    medium = medium_probability(state, settings, domain) if state.epoch >= settings.easy_epochs else 0.0
    return (1 - hard) * (1 - medium), (1 - hard) * medium, hard


def first_epochs(settings: CurriculumSettings, *, num_epochs: int) -> tuple[int, int]:
    """Return the first medium and the first hard epoch of the schedule "epochs", counted from 0."""
    easy, medium, _ = settings.shares
    # 1e-9: a sum of shares may be just below the half that it stands for.
    first, second = (math.floor(share * num_epochs + 0.5 + 1e-9) for share in (easy, easy + medium))
    return first, second


def draw_stages(
    state: CurriculumState,
    settings: CurriculumSettings,
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
        place = np.random.default_rng((_STREAM, seed, update, row)).random()
        drawn.append("hard" if place < hard else "medium" if place < hard + medium else "easy")
    return drawn


def after_epoch(state: CurriculumState, settings: CurriculumSettings, losses: Losses) -> CurriculumState:
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


def _adapt_hard_share(state: CurriculumState, settings: CurriculumSettings) -> float:
    steps = np.diff(state.history[-settings.plateau_values :])
    is_plateau = len(state.history) >= settings.plateau_values and bool(
        np.all(np.abs(steps) <= settings.plateau_tolerance)
    )
    gaps = [state.gap(domain, settings) for domain in sorted({*state.easy, *state.medium})]
    if is_plateau and gaps and statistics.median(gaps) >= settings.hard_gap:
        return min(state.hard_share + settings.hard_increase, settings.most_hard)
    is_rise = len(state.history) >= 2 and state.history[-1] - state.history[-2] >= settings.rise
    return state.hard_share * settings.hard_factor if is_rise else state.hard_share
