"""A policy over replies: fine-tuned on records, then optimised for rewards against its frozen start."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from stepcot_jax.policies.policy import AnyPolicy, copy_frozen, policy_params, split_parts
from stepcot_jax.policies.sampling import Sampling, generate, rollout_keys
from stepcot_jax.systems import grpo, sft
from stepcot_jax.systems.curriculum import CURRICULUM, CurriculumState, StagedRows, StagedSftUpdate
from stepcot_jax.systems.grpo import GrpoUpdate, Rollouts
from stepcot_jax.systems.options import DPO, REFERENCE, DpoOptions, GrpoOptions, SelfCheckOptions, SftOptions
from stepcot_jax.systems.sft import POLICY, Batch, Normalise, SftUpdate
from stepcot_jax.training.optimizers import make_optimizer
from stepcot_jax.training.state import Params, TrainState, put_given
from stepcot_jax.training.system import Phase, Stream, System, Update


@dataclasses.dataclass
class PolicySystem(System):
    """The phase "sft" of one policy, and "grpo" or "dpo" after it."""

    policy: AnyPolicy
    normalise: Normalise
    sampling: Sampling
    fine_tuning: SftOptions
    sft_updates: int
    optimising: GrpoOptions | DpoOptions | None = None
    grpo_updates: int = 0
    checking: SelfCheckOptions = SelfCheckOptions()  # noqa: RUF009 - frozen
    rollouts: Rollouts | None = None
    start: Callable[[], Params] | None = None
    begin: Callable[[Params], Params] | None = None
    staged: StagedRows | None = None
    streams: Mapping[str, Stream] = dataclasses.field(default_factory=dict)
    epsilon: float = 1e-8
    clip_norm: float = 1.0

    score_name = "score"

    def __post_init__(self) -> None:
        self.end_of_sft = self.fine_tuning.epochs * self.sft_updates
        schedule = sft_schedule(self.fine_tuning, self.sft_updates)
        self.optimizers = {sft.NAME: self._make_optimizer(schedule, self.fine_tuning.weight_decay)}
        self.second = DPO if isinstance(self.optimising, DpoOptions) else grpo.NAME
        if self.optimising is not None:
            schedule = grpo_schedule(self.optimising, self.grpo_updates)
            self.optimizers[self.second] = self._make_optimizer(schedule, self.optimising.weight_decay)
        self.names = tuple(self.optimizers)

    def _make_optimizer(self, schedule: optax.Schedule, weight_decay: float) -> optax.GradientTransformation:
        return make_optimizer(
            learning_rate=schedule,
            weight_decay=weight_decay,
            epsilon=self.epsilon,
            clip_norm=self.clip_norm,
            is_packed=not self.policy.is_large,
        )

    def init(self, key: Array, example: Batch) -> TrainState:
        """Return random parameters, which `fill` replaces by those of the start."""
        init_key, run_key = jax.random.split(key)
        params = self.policy.init(
            init_key,
            self.normalise(jnp.asarray(example["images"])),
            jnp.asarray(example["prompts"]),
            jnp.asarray(example["lengths"]),
            jnp.zeros((len(example["prompts"]), 2), jnp.int32),
        )["params"]
        parts = split_parts(params if self.begin is None else self.begin(params), POLICY)
        # Only the penalty needs the reference, a copy of the parameters.
        is_compared = self.optimising is not None and self.optimising.beta > 0
        reference = {REFERENCE: copy_frozen(self.policy, parts[POLICY])} if is_compared else {}
        # Moments take twice the memory of the trained parameters. Only the last phase can get epochs after the start.
        names = self.names if self.fine_tuning.epochs else self.names[-1:]
        moments = {name: self.optimizers[name].init({POLICY: parts[POLICY]}) for name in names}
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params={**parts, **reference},
            optimizers={**moments, **self._schedules()},
            key=jax.random.key_data(run_key),
        )

    def fill(self, state: TrainState) -> TrainState:
        """Return the first state with the start's parameters, put array by array; the reference is a copy of them."""
        if self.start is None:
            return state
        params = {**state.params, **put_given(state.params, split_parts(self.start(), POLICY))}
        return self._freeze(state.replace(params=params))

    def _freeze(self, state: TrainState) -> TrainState:
        """Return the state with the policy as the frozen start of GRPO or DPO, if there is one."""
        if REFERENCE not in state.params:
            return state
        return state.replace(params={**state.params, REFERENCE: copy_frozen(self.policy, state.params[POLICY])})

    def _schedules(self) -> dict[str, Any]:
        """Return the first state of the curriculum, if there is one."""
        if self.staged is None:
            return {}
        curriculum = self.staged.curriculum
        return {CURRICULUM: curriculum.to_arrays(CurriculumState.first(curriculum.settings))}

    def phases(self) -> Sequence[Phase]:
        """Return fine-tuning, and GRPO or DPO with its rollouts on the host."""
        phases = []
        if self.fine_tuning.epochs:
            parts = (self.policy, self.normalise, self.optimizers[sft.NAME], self.fine_tuning)
            staged = self.staged
            update = SftUpdate(*parts) if staged is None else StagedSftUpdate(*parts, len(staged.curriculum.domains))
            phases.append(Phase(sft.NAME, self.fine_tuning.epochs, update, self.streams[sft.NAME], staged))
        if self.optimising is not None and self.rollouts is not None and self.optimising.epochs:
            common, options = (self.policy, self.normalise, self.optimizers[self.second]), self.optimising
            if isinstance(options, DpoOptions):
                from stepcot_jax.systems.dpo import DpoUpdate  # for this job alone

                optimise: Update = DpoUpdate(*common, options)
            else:
                optimise = GrpoUpdate(*common, options, self.checking)
            phases.append(Phase(self.second, options.epochs, optimise, self.streams[self.second], self.rollouts))
        return phases

    def end_phase(self, name: str) -> str:
        """Return a warning if all rewards of GRPO were equal within their groups, or no prompt of DPO had a pair."""
        return self.rollouts.signal.warn(name) if name == self.second and self.rollouts is not None else ""

    def phase_of(self, step: int) -> str:
        """Return the name of the phase that the update `step`, counted from 1, belongs to."""
        return sft.NAME if self.optimising is None or step <= self.end_of_sft else self.second

    def predict(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Return greedy replies as "tokens" [case, token]."""
        number = len(batch["prompts"])
        keys = rollout_keys(jax.random.key(0), first=0, number=number)  # not used by greedy replies
        images = self.normalise(batch["images"])
        replies = generate(
            self.policy,
            policy_params(params, POLICY),
            images,
            batch["prompts"],
            batch["lengths"],
            sampling=self.sampling,
            keys=keys,
        )
        return {"tokens": replies.tokens}

    def evaluate(self, predictions: Any) -> dict[str, float]:
        """Return (A + V) / 2 under the name of the "phase"; a figure that is NaN or absent (no box) takes no part."""
        figures = [predictions.get(name, math.nan) for name in ("a_score", "v_score")]
        figures = [figure for figure in figures if not math.isnan(figure)]
        return {predictions["phase"]: sum(figures) / len(figures) if figures else math.nan}

    def after_epoch(self, state: TrainState, scores: dict[str, float]) -> TrainState:
        """Return the state with the curriculum updated, and with the reference frozen when fine-tuning ends."""
        del scores
        step = int(jax.device_get(state.step))
        if self.staged is not None and step <= self.end_of_sft:
            state = self.staged.curriculum.end_epoch(state)
        return self._freeze(state) if step == self.end_of_sft else state


def sft_schedule(settings: SftOptions, updates_per_epoch: int) -> optax.Schedule:
    """Return the learning rate by update: linear warm-up, then a cosine to 0 over the rest, or constant."""
    total = max(settings.epochs * updates_per_epoch, 1)
    warmup = min(round(settings.warmup_epochs * updates_per_epoch), total)
    rest = total - warmup
    cosine = settings.schedule == "cosine" and rest > 0
    after = (
        optax.cosine_decay_schedule(settings.learning_rate, rest)
        if cosine
        else optax.constant_schedule(settings.learning_rate)
    )
    if not warmup:
        return after
    rise = optax.linear_schedule(settings.first_learning_rate, settings.learning_rate, warmup)
    return optax.join_schedules([rise, after], [warmup])


def grpo_schedule(settings: GrpoOptions | DpoOptions, updates_per_epoch: int) -> optax.Schedule:
    """Return the learning rate by pass over a batch of rollouts: constant, or a cosine to 0."""
    num_passes = settings.num_updates if isinstance(settings, GrpoOptions) else 1
    total = max(settings.epochs * updates_per_epoch * num_passes, 1)
    if settings.schedule == "cosine":
        return optax.cosine_decay_schedule(settings.learning_rate, total)
    return optax.constant_schedule(settings.learning_rate)
