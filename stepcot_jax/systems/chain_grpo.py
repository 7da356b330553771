"""The teacher refined by rewards: it answers the chain as a policy, and GRPO raises its rewards (GEMeX-RMCoT: Eq. 2).

First the teacher is trained on labels, or loaded from a finished run. "start" is its best so far, by the reward of
its answers on validation; GRPO begins there, and "start" stays the frozen reference of the divergence. Both networks
are predicted and reported, so that a run holds its own comparison of before and after.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, UInt32

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.consistency import Rules
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.host.errors import BadInput
from stepcot_jax.losses.policy_gradient import advantages, aggregate_weight, policy_gradient_loss
from stepcot_jax.losses.sequence import token_log_probs
from stepcot_jax.policies.sampling import rollout_keys
from stepcot_jax.systems.grpo import RewardSignal, flatten_groups, make_objective
from stepcot_jax.systems.networks import Batch, Networks, encode_images, predict_logits, read_as_teacher
from stepcot_jax.systems.options import REFERENCE, GrpoOptions
from stepcot_jax.systems.step_cot import StepCoT
from stepcot_jax.systems.updates import split_shared, teacher_part
from stepcot_jax.training.devices import ONE_DEVICE, GlobalBatch, differentiate
from stepcot_jax.training.optimizers import global_norm
from stepcot_jax.training.state import Params, TrainState, apply_gradients
from stepcot_jax.training.system import Phase, Stream, Update

# The chain as a policy: steps are answered in order, each from the answers drawn before it.


NOT_GIVEN = -1
"""Answer of a step that is still to be drawn; any negative label is none."""

Read = Callable[[Int[Array, "rollout step"]], Float[Array, "rollout step answer"]]
"""Given answers, negative where a step has none -> scores of every step, such as a teacher's logits."""


def sample_chains(
    read: Read,
    *,
    num_steps: int,
    keys: UInt32[Array, "rollout 2"],
    temperature: float = 1.0,
    greedy: bool = False,
) -> Int[Array, "rollout step"]:
    """Draw an answer of each step in order, with `num_steps` passes."""

    def answer(step: Int[Array, ""], given: Int[Array, "rollout step"]) -> Int[Array, "rollout step"]:
        scores = read(given)[:, step].astype(jnp.float32) / jnp.float32(temperature)
        if greedy:
            drawn = jnp.argmax(scores, axis=-1)
        else:
            drawn = jax.vmap(lambda key, row: jax.random.categorical(_fold(key, step), row))(keys, scores)
        return given.at[:, step].set(drawn.astype(jnp.int32))

    start = jnp.full((keys.shape[0], num_steps), NOT_GIVEN, jnp.int32)
    chains: Int[Array, "rollout step"] = jax.lax.fori_loop(0, num_steps, answer, start)
    return chains


def score_chains(
    read: Read, answers: Int[Array, "rollout step"], *, temperature: float = 1.0
) -> Float[Array, "rollout step"]:
    """Return each step's log-probability given the answers before it; their sum is that of the chain."""
    counted = jnp.ones(answers.shape, bool)
    return token_log_probs(logits=read(answers), tokens=answers, counted=counted, temperature=temperature)


def _fold(key: UInt32[Array, "2"], step: Int[Array, ""]) -> Array:
    return jax.random.fold_in(jax.random.wrap_key_data(key), step)


# Rewards of sampled chains: the diagnosis is right, steps are right, no two answers contradict each other.


class RewardParts(flax.struct.PyTreeNode):
    """Rewards of chains and their parts, 0 to 1; NaN where a part is undefined."""

    total: Array
    diagnosis: Array
    steps: Array
    consistent: Array


@dataclasses.dataclass(frozen=True)
class ChainRewards:
    """The reward of a chain: a weighted sum of three parts.

    Attributes:
      rules: pairs of answers that contradict each other (`evaluation.consistency`).
      steps_weight: of the share of right steps.
      chain_weight: of a chain without a contradiction.
    """

    rules: Rules
    diagnosis_weight: float = 1.0
    steps_weight: float = 0.0
    chain_weight: float = 0.0

    def __post_init__(self) -> None:
        if not self.highest > 0:
            raise BadInput(
                "config.rewards.diagnosis_weight, steps_weight and chain_weight: all are 0; expected one above 0 with "
                "the job 'chain_grpo'"
            )

    @property
    def highest(self) -> float:
        """Reward of a chain that is right in every part."""
        return self.diagnosis_weight + self.steps_weight + self.chain_weight

    def score(self, *, chains: Int[Array, "*chain step"], labels: Int[Array, "*chain step"]) -> RewardParts:
        """Return the rewards of chains and their parts."""
        annotated, right = labels >= 0, chains == labels
        num_annotated = jnp.sum(annotated, axis=-1, dtype=jnp.float32)
        num_right = jnp.sum(right & annotated, axis=-1, dtype=jnp.float32)
        diagnosis = jnp.where(annotated[..., -1], right[..., -1].astype(jnp.float32), jnp.nan)
        steps = jnp.where(num_annotated > 0, num_right / jnp.maximum(num_annotated, 1.0), jnp.nan)
        consistent = self.consistent(chains)
        weights = (self.diagnosis_weight, self.steps_weight, self.chain_weight)
        # A part without weight is left out, so that its NaN does not count.
        weighted = [w * part for w, part in zip(weights, (diagnosis, steps, consistent), strict=True) if w > 0]
        return RewardParts(sum(weighted[1:], weighted[0]), diagnosis, steps, consistent)

    def consistent(self, chains: Int[Array, "*chain step"]) -> Float[Array, "*chain"]:
        """Return 1 for each chain without a forbidden pair (`evaluation.consistency.inconsistent`), else 0."""
        is_consistent = jnp.ones(chains.shape[:-1], bool)
        for (earlier, later), allowed in self.rules.allowed.items():
            if not np.all(allowed):
                is_consistent &= jnp.asarray(allowed)[chains[..., earlier], chains[..., later]]
        return is_consistent.astype(jnp.float32)


# One update of a teacher by rewards: sample chains, score them, and follow the policy gradient (GEMeX-RMCoT: Eq. 2).
#
# The tokens are the steps' answers. Rewards are functions of arrays, so an update is one compiled program. A case and
# all its chains are on one device; devices exchange only gradients, and the rewards of all chains, which shuffling and
# the deviation of the batch need.


OPTIMIZER = "chain_grpo"
"""Name of the optimizer's state."""

_SHUFFLE = 0x5F  # folded into the update's random key; the rollouts use other streams


class ChainMetrics(flax.struct.PyTreeNode):
    """The metrics of an update by name; scalars of the global batch."""

    numbers: dict[str, Array]


def make_chain_update(
    networks: Networks, rewards: ChainRewards, rollouts: GrpoOptions, optimizer: optax.GradientTransformation
) -> Update:
    """Return one device's update: (state, batch) -> (state, metrics); it trains `updates.teacher_part`."""
    # Dropout is off, in sampling and in every log-probability: the ratio of the first pass is 1.
    objective = make_objective(rollouts)

    def update(
        state: TrainState, batch: Batch, global_batch: GlobalBatch = ONE_DEVICE
    ) -> tuple[TrainState, ChainMetrics]:
        rows, text_features = split_shared(batch)
        sampled, numbers = sample_rollouts(networks, rewards, rollouts, state, rows, text_features, global_batch)
        counted = flatten_groups(jnp.broadcast_to(sampled["scored"][..., None], sampled["chains"].shape))
        total = global_batch.add_up(aggregate_weight(counted, objective))

        def loss(trained: Params, rows: Batch) -> tuple[Array, dict[str, Array]]:
            features = encode_images(networks, trained, rows)
            read = _make_reader(networks, trained["teacher"], features, text_features, rollouts.group_size)
            flat = {name: flatten_groups(rows[name]) for name in ("chains", "old", "reference", "advantage", "scored")}
            losses = policy_gradient_loss(
                log_probs=score_chains(read, flat["chains"], temperature=rollouts.temperature),
                old_log_probs=flat["old"],
                reference_log_probs=flat["reference"],
                advantage=flat["advantage"][:, None],
                counted=jnp.broadcast_to(flat["scored"][:, None], flat["chains"].shape),
                settings=objective,
                divisor=total,
            )
            return losses.total, {"total": losses.total, "kl": losses.divergence, "clipped": losses.clipped}

        def one_pass(state: TrainState, _: None) -> tuple[TrainState, dict[str, Array]]:
            parts, gradients = differentiate(loss, teacher_part(state.params), {**rows, **sampled}, global_batch)
            state = apply_gradients(state, OPTIMIZER, optimizer, gradients)
            return state, {**parts, "gradient_norm": global_norm(gradients)}

        state, of_passes = jax.lax.scan(one_pass, state, length=rollouts.num_updates)
        numbers |= {name: jnp.mean(values) for name, values in of_passes.items()}
        return state.replace(step=state.step + 1), ChainMetrics(numbers)

    return update


def sample_rollouts(
    networks: Networks,
    rewards: ChainRewards,
    rollouts: GrpoOptions,
    state: TrainState,
    rows: Batch,
    text_features: Array | None,
    global_batch: GlobalBatch = ONE_DEVICE,
) -> tuple[Batch, dict[str, Array]]:
    """Return sampled chains of a device's cases by name, [case, rollout, ...], and numbers of the global batch."""
    labels, size = rows["labels"], rollouts.group_size
    num_cases, num_steps = labels.shape
    read, read_reference = (
        _make_reader(networks, params["teacher"], encode_images(networks, params, rows), text_features, size)
        for params in (state.params, state.params[REFERENCE])
    )
    key = state.key_of_update()
    keys = rollout_keys(key, first=size * global_batch.first_case(num_cases), number=num_cases * size)
    chains = sample_chains(read, num_steps=num_steps, keys=keys, temperature=rollouts.temperature)
    old = score_chains(read, chains, temperature=rollouts.temperature)
    reference = score_chains(read_reference, chains, temperature=rollouts.temperature)
    grouped = chains.reshape(num_cases, size, num_steps)
    parts = rewards.score(chains=grouped, labels=jnp.broadcast_to(labels[:, None], grouped.shape))
    total = global_batch.gather(parts.total)
    if rollouts.shuffle_rewards:
        total = shuffle_scored(total, key=jax.random.fold_in(key, _SHUFFLE))
    advantage = advantages(total, std_ddof=rollouts.std_ddof, std_epsilon=rollouts.std_epsilon, scale=rollouts.scale)
    local_advantage = jax.lax.dynamic_slice_in_dim(advantage, global_batch.first_case(num_cases), num_cases)
    sampled = {
        "chains": grouped,
        "old": old.reshape(grouped.shape),
        "reference": reference.reshape(grouped.shape),
        "advantage": local_advantage,
        "scored": ~jnp.isnan(parts.total),
    }
    return jax.lax.stop_gradient(sampled), _describe(parts, total, old, global_batch)


def shuffle_scored(rewards: Float[Array, "case rollout"], *, key: Array) -> Float[Array, "case rollout"]:
    """Return the rewards in random order over the global batch; NaN stays where it is."""
    flat = rewards.reshape(-1)
    unscored = jnp.isnan(flat)
    drawn = jnp.lexsort((jax.random.uniform(key, flat.shape), unscored))
    positions = jnp.argsort(unscored, stable=True)
    return jnp.zeros_like(flat).at[positions].set(flat[drawn]).reshape(rewards.shape)


def _describe(
    parts: RewardParts,
    total: Float[Array, "case rollout"],
    old: Float[Array, "rollout step"],
    global_batch: GlobalBatch,
) -> dict[str, Array]:
    """Return means over the global batch; `total` is that of all devices. 0 where nothing is scored."""
    means = {
        "reward": parts.total,
        "reward_diagnosis": parts.diagnosis,
        "reward_steps": parts.steps,
        "reward_consistent": parts.consistent,
        "entropy": -old,
    }
    sums = {
        name: (jnp.nansum(values), jnp.sum(~jnp.isnan(values), dtype=jnp.float32)) for name, values in means.items()
    }
    numbers = {name: one / jnp.maximum(number, 1.0) for name, (one, number) in global_batch.add_up(sums).items()}
    scored = jnp.sum(~jnp.isnan(total), axis=1) > 1
    highest, lowest = jnp.nanmax(total, axis=1), jnp.nanmin(total, axis=1)
    num_scored = jnp.maximum(jnp.sum(scored, dtype=jnp.float32), 1.0)
    numbers["equal_groups"] = jnp.sum(scored & (highest == lowest), dtype=jnp.float32) / num_scored
    numbers["scored"] = jnp.mean(~jnp.isnan(total), dtype=jnp.float32)
    return numbers


def _make_reader(
    networks: Networks, teacher: Mapping[str, Any], features: Array, text_features: Array | None, size: int
) -> Read:
    """Return the teacher's logits of `size` chains a case, without dropout, as a function of the answers so far."""
    repeated = jnp.repeat(features, size, axis=0)

    def read(given: Int[Array, "rollout step"]) -> Float[Array, "rollout step answer"]:
        logits: Array = read_as_teacher(
            networks, dict(teacher), repeated, text_features, given_answers=given, key=None
        ).logits
        return logits

    return read


def check_same_shapes(params: Params, expected: Params) -> Params:
    """Return `params`; refuse other names or shapes than those of `expected`."""
    shapes = [
        {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (params, expected)
    ]
    differing = sorted(
        path for path in shapes[0].keys() | shapes[1].keys() if shapes[0].get(path) != shapes[1].get(path)
    )
    if differing:
        path = differing[0]
        raise BadInput(
            f"config.policy.start: {path} is {shapes[0].get(path, 'missing')}; expected "
            f"{shapes[1].get(path, 'no such tensor')}; {len(differing)} tensors differ"
        )
    return params


TEACHER, START = "teacher", "start"
"""The refined network, and the one that GRPO began with."""

PHASE = "chain_grpo"


class ChainGrpo(StepCoT):
    """A teacher that is trained on labels, then refined by rewards; the student is not trained.

    `params["reference"]` holds "start": the best epoch of the teacher's phase so far, then frozen. At the end of that
    phase the teacher returns to it.

    Args:
      start: returns the parameters of "start", from a finished run; None trains the teacher for `teacher_epochs` first.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        rewards: ChainRewards,
        rollouts: GrpoOptions,
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
        self.gated = (TEACHER,)
        self.rewards, self.rollouts, self.refining = rewards, rollouts, refining
        self.grpo_epochs, self.grpo_stream, self.start = grpo_epochs, grpo_stream, start
        self.teacher_updates, self.stop_reading = teacher_updates, stop_reading
        if start is not None:
            self.teacher_epochs = self.teacher_updates = 0
        num_grpo_updates = 0 if grpo_stream is None else grpo_epochs * grpo_stream.batches_per_epoch
        self.last_update = self.teacher_updates + num_grpo_updates
        self.signal = RewardSignal("the chains of each case")

    def init(self, key: Array, example: Batch) -> TrainState:
        """Return random parameters, or those of the finished run, and fresh optimizers."""
        state = super().init(key, example)
        teacher = teacher_part(state.params)
        if self.start is not None:
            teacher = check_same_shapes(self.start(), teacher)
        params = {**state.params, **teacher, REFERENCE: jax.tree.map(jnp.copy, teacher)}
        optimizers = {**state.optimizers, OPTIMIZER: self.refining.init(teacher)}
        return state.replace(params=params, optimizers=optimizers)

    def phases(self) -> Sequence[Phase]:
        """Return the teacher's phase, left out with a `start`, and the phase of GRPO."""
        refine = Phase(PHASE, self.grpo_epochs, self.chain_update, self.grpo_stream)
        return [*super().phases(), refine] if self.teacher_epochs else [refine]

    @functools.cached_property
    def chain_update(self) -> Update:
        """The update by rewards."""
        return make_chain_update(self.networks, self.rewards, self.rollouts, self.refining)

    def predict(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Return padded logits [case, step, answer] of both networks, each read with its own answers."""
        return {
            name: predict_logits(self.networks, (TEACHER,), weights, batch)[TEACHER]
            for name, weights in ((TEACHER, params), (START, params[REFERENCE]))
        }

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Return the mean reward of each network's most probable answers, 0 to 1; NaN if no chain can be scored.

        With the weight of the diagnosis alone it is the diagnosis accuracy.
        """
        scores, labels = {}, jnp.asarray(predictions.labels)
        for name in self.names:
            logits = predictions.logits[name]
            if not np.isfinite(logits).all():
                raise FloatingPointError(f"{name}: a logit is not finite")
            parts = self.rewards.score(chains=jnp.asarray(logits.argmax(axis=-1), jnp.int32), labels=labels)
            scored = np.asarray(parts.total, np.float64)
            known = scored[~np.isnan(scored)]
            scores[name] = float(known.mean() / self.rewards.highest) if known.size else float("nan")
        return scores

    def given_reader(self, name: str, params: Params, batch: Batch) -> Callable[[np.ndarray], np.ndarray]:
        """Return the reader of "teacher" or "start", see `StepCoT.given_reader`."""
        return super().given_reader(TEACHER, params[REFERENCE] if name == START else params, batch)

    def after_epoch(self, state: TrainState, scores: dict[str, float]) -> TrainState:
        """Return the state with the best epoch as "start", to which the teacher returns at the end of its phase."""
        step, params = int(jax.device_get(state.step)), state.params
        if step <= self.teacher_updates and scores[TEACHER] > scores[START]:
            params = {**params, REFERENCE: jax.tree.map(jnp.copy, teacher_part(params))}
        elif step == self.teacher_updates:
            params = {**params, **jax.tree.map(jnp.copy, params[REFERENCE])}
        if step == self.last_update:
            self.stop_reading()
        return state.replace(params=params)

    def numbers(self, metrics: Any) -> dict[str, float]:
        """Return the numbers of the teacher's update, or the rewards, KL and clip share of an update by rewards."""
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
