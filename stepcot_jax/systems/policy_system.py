"""A policy over replies: fine-tuned on records, then optimised for rewards against its frozen start."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from stepcot_jax.policies.policy import AnyPolicy, copy_frozen, policy_params, split_parts
from stepcot_jax.policies.qwen_policy import QwenPolicy
from stepcot_jax.policies.sampling import Sampling, generate, rollout_keys
from stepcot_jax.policies.tokenizers import Tokenizer
from stepcot_jax.record import Record
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.settings.sections import GrpoSettings, SftSettings
from stepcot_jax.systems import grpo, sft
from stepcot_jax.systems.curriculum import CURRICULUM, CurriculumState, StagedRows, StagedSftUpdate
from stepcot_jax.systems.grpo import REFERENCE, GrpoUpdate, Rollouts, make_reward_settings
from stepcot_jax.systems.judged_rewards import JudgedRewards, make_judge
from stepcot_jax.systems.self_check import SelfCheck
from stepcot_jax.systems.sft import POLICY, Batch, Normalise, SftUpdate
from stepcot_jax.training.devices import Devices
from stepcot_jax.training.optimizers import make_optimizer
from stepcot_jax.training.state import Params, TrainState, put_given
from stepcot_jax.training.system import Phase, Stream, System

Schedule = optax.Schedule


@dataclasses.dataclass
class PolicySystem(System):
    """The phases "sft" and, with the job "grpo", "grpo" of one policy.

    Attributes:
      sampling: of greedy replies, for evaluation.
      sft_updates: in an epoch of fine-tuning.
      grpo_updates: in an epoch of GRPO.
      rollouts: host part of a GRPO update; None for the job "sft".
      start: loads the parameters to start from, as `apply` takes them, or some of them; None for those of `init`.
      begin: applied to random parameters, such as `policy_network.start_coordinates`.
      staged: rows of fine-tuning with a curriculum; None without.
      streams: of the phases by name; set before `phases` is called.
    """

    settings: Settings
    policy: AnyPolicy
    normalise: Normalise
    sampling: Sampling
    sft_updates: int
    grpo_updates: int
    rollouts: Rollouts | None = None
    start: Callable[[], Params] | None = None
    begin: Callable[[Params], Params] | None = None
    staged: StagedRows | None = None
    streams: Mapping[str, Stream] = dataclasses.field(default_factory=dict)

    score_name = "score"

    def __post_init__(self) -> None:
        settings = self.settings
        self.names = (sft.NAME,) if settings.job == "sft" else (sft.NAME, grpo.NAME)
        self.end_of_sft = settings.sft.epochs * self.sft_updates
        self.optimizers = {
            sft.NAME: self._make_optimizer(sft_schedule(settings.sft, self.sft_updates), settings.sft.weight_decay),
            grpo.NAME: self._make_optimizer(
                grpo_schedule(settings.grpo, self.grpo_updates), settings.grpo.weight_decay
            ),
        }

    def _make_optimizer(self, schedule: Schedule, weight_decay: float) -> optax.GradientTransformation:
        training = self.settings.training
        return make_optimizer(
            learning_rate=schedule,
            weight_decay=weight_decay,
            epsilon=training.adam_epsilon,
            clip_norm=training.clip_norm,
            is_packed=not isinstance(self.policy, QwenPolicy),
        )

    def init(self, key: Array, example: Batch) -> TrainState:
        """Return random parameters; `fill` puts those of the start in their place.

        The reference is a copy of them; there is none without a penalty (`grpo.beta` 0), which alone compares with it.
        """
        init_key, run_key = jax.random.split(key)
        params = self.policy.init(
            init_key,
            self.normalise(jnp.asarray(example["images"])),
            jnp.asarray(example["prompts"]),
            jnp.asarray(example["lengths"]),
            jnp.zeros((len(example["prompts"]), 2), jnp.int32),
        )["params"]
        parts = split_parts(params if self.begin is None else self.begin(params), POLICY)
        is_compared = self.settings.job != "sft" and self.settings.grpo.beta > 0
        reference = {REFERENCE: copy_frozen(self.policy, parts[POLICY])} if is_compared else {}
        # Moments take twice the memory of what trains. Only the last phase can get epochs after the run's start.
        names = self.names if self.settings.sft.epochs else self.names[-1:]
        moments = {name: self.optimizers[name].init({POLICY: parts[POLICY]}) for name in names}
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params={**parts, **reference},
            optimizers={**moments, **self._schedules()},
            key=jax.random.key_data(run_key),
        )

    def fill(self, state: TrainState) -> TrainState:
        """Return the first state with the parameters of the start, array by array; the reference is a copy of them."""
        if self.start is None:
            return state
        params = {**state.params, **put_given(state.params, split_parts(self.start(), POLICY))}
        return self._freeze(state.replace(params=params))

    def _freeze(self, state: TrainState) -> TrainState:
        """Return the state with the policy as the frozen start of GRPO, if there is one."""
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
        """Return fine-tuning, and GRPO with its rollouts on the host."""
        found = []
        if self.settings.sft.epochs:
            parts = (self.policy, self.normalise, self.optimizers[sft.NAME], self.settings.sft)
            staged = self.staged
            update = SftUpdate(*parts) if staged is None else StagedSftUpdate(*parts, len(staged.curriculum.domains))
            found.append(Phase(sft.NAME, self.settings.sft.epochs, update, self.streams[sft.NAME], staged))
        if self.rollouts is not None and self.settings.grpo.epochs:
            optimise = GrpoUpdate(
                self.policy,
                self.normalise,
                self.optimizers[grpo.NAME],
                self.settings.grpo,
                self.settings.self_check,
            )
            stream = self.streams[grpo.NAME]
            found.append(Phase(grpo.NAME, self.settings.grpo.epochs, optimise, stream, self.rollouts))
        return found

    def end_phase(self, name: str) -> str:
        """Return a warning if all rewards of GRPO were equal within their groups."""
        return self.rollouts.signal.warn(name) if name == grpo.NAME and self.rollouts is not None else ""

    def phase_of(self, step: int) -> str:
        """Return the name of the phase that the update `step`, counted from 1, belongs to."""
        return sft.NAME if self.settings.job == "sft" or step <= self.end_of_sft else grpo.NAME

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
        """Return the score of figures with "a_score" and "v_score" under the name of their "phase": (A + V) / 2."""
        return {predictions["phase"]: (predictions["a_score"] + predictions["v_score"]) / 2}

    def after_epoch(self, state: TrainState, scores: dict[str, float]) -> TrainState:
        """Move the curriculum on; freeze the reference when fine-tuning ends."""
        del scores
        step = int(jax.device_get(state.step))
        if self.staged is not None and step <= self.end_of_sft:
            state = self.staged.curriculum.end_epoch(state)
        return self._freeze(state) if step == self.end_of_sft else state


def sft_schedule(settings: SftSettings, updates_per_epoch: int) -> Schedule:
    """Return the rate by update: linear warm-up, then a cosine to 0 over the rest, or constant."""
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


def grpo_schedule(settings: GrpoSettings, updates_per_epoch: int) -> Schedule:
    """Return the rate by pass over a batch of rollouts: constant, or a cosine to 0."""
    total = max(settings.epochs * updates_per_epoch * settings.num_updates, 1)
    if settings.schedule == "cosine":
        return optax.cosine_decay_schedule(settings.learning_rate, total)
    return optax.constant_schedule(settings.learning_rate)


# The rollouts of a run from its settings, with the judge and the self-check that they ask for.


def make_rollouts(
    settings: Settings,
    *,
    policy: AnyPolicy,
    normalise: Normalise,
    tokenizer: Tokenizer,
    records: Sequence[Record],
    devices: Devices,
    workdir: pathlib.Path,
    longest: int,
    longest_check: int,
) -> Rollouts:
    """Return the host part of GRPO's updates."""
    judge = self_check = None
    if settings.rewards.open_answer == "judge":
        judge = JudgedRewards(make_judge(settings.rewards, workdir), ill_formed=settings.rewards.ill_formed)
    if settings.self_check.enabled:
        self_check = SelfCheck(
            policy=policy,
            normalise=normalise,
            tokenizer=tokenizer,
            devices=devices,
            settings=settings.self_check,
            group_size=settings.grpo.group_size,
            temperature=settings.grpo.temperature,
            longest=longest,
            longest_check=longest_check,
        )
    return Rollouts(
        policy=policy,
        normalise=normalise,
        tokenizer=tokenizer,
        dialect=settings.vqa.dialect,
        with_thinking=settings.vqa.with_thinking,
        records=records,
        devices=devices,
        settings=settings.grpo,
        rewards=make_reward_settings(settings.rewards),
        longest=longest,
        self_check=self_check,
        judge=judge,
    )
