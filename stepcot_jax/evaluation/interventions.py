"""What given answers change: which step is worth asking, accuracy as steps are corrected, and reliance of steps.

Everything here takes a network as a function from given answers to probabilities (`ReadGiven`) and knows nothing else
of it. A correction is the true answer of a step, given in place of the network's own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.distributions import softmax
from stepcot_jax.evaluation.resamples import mean_where

Probabilities = npt.NDArray[np.float64]
ReadGiven = Callable[[npt.NDArray[np.float32]], Probabilities]
"""Given answers [variant, case, step, answer], distributions or zeros to predict -> probabilities of the same shape."""

Policy = Literal["expected gain", "uncertainty", "chain order", "random"]
POLICIES: tuple[Policy, ...] = ("expected gain", "uncertainty", "chain order", "random")
"""Ways to choose the next step to check, the first by what its answer is expected to settle."""

KINDS = ("own", "true", "another case's", "uniform")
"""Answers that reliance is measured with."""


def give_logits(read_logits: Callable[[Any], Any], temperatures: Sequence[float] = ()) -> ReadGiven:
    """Return a `ReadGiven` of a function from given answers to logits.

    Args:
      read_logits: given answers [variant, case, step, answer] -> padded logits of the same shape.
    """
    scale = np.asarray(temperatures or 1.0, np.float64).reshape(-1, 1)
    return lambda given: softmax(np.asarray(read_logits(given), np.float64) / scale, axis=-1)


def as_distributions(labels: npt.NDArray[np.integer], chain: Chain) -> npt.NDArray[np.float32]:
    """Return labels [..., step] as given answers [..., step, answer]; a negative label becomes zeros."""
    most = max(chain.answers_per_step)
    return (np.asarray(labels)[..., None] == np.arange(most)).astype(np.float32)


def exchange(labels: npt.NDArray[np.integer], rng: np.random.Generator) -> npt.NDArray[np.integer]:
    """Return for each case the labels [case, step] of another one, drawn so that each is used once."""
    order = rng.permutation(len(labels))
    found = np.empty_like(labels)
    found[order] = labels[np.roll(order, 1)]
    return found


def entropy(probabilities: Probabilities) -> Probabilities:
    """Return the entropy in nats over the last axis."""
    return -(probabilities * np.log(np.maximum(probabilities, 1e-300))).sum(axis=-1)


def expected_gains(
    read: ReadGiven, given: npt.NDArray[np.float32], chain: Chain
) -> tuple[npt.NDArray[np.float64], Probabilities]:
    """Return how much each step's answer is expected to settle the last step's, in one call of the network.

    The gain of asking a step is the mutual information of its answer and the last step's: each answer is given in turn,
    and the mean entropy of what follows is subtracted from the entropy of its mixture, both weighted by the probability
    that the network gives each answer. The mixture stands for the reading as it is: a network that treats a given
    answer as certain concludes more firmly from any answer, which is no information (docs/corrections.md has both).

    Args:
      given: [case, step, answer], what is given already.

    Returns:
      Gains in nats [case, step], 0 or more, minus infinity for given steps and the last one; and the probabilities
      [1 + number of answers of all steps but the last, case, step, answer]: with nothing more given, then with each
    """
    variants = [given]
    for position, num_answers in enumerate(chain.answers_per_step[:-1]):
        for answer in range(num_answers):
            varied = given.copy()
            varied[:, position] = np.arange(given.shape[-1]) == answer
            variants.append(varied)
    found = read(np.stack(variants))
    last, after = found[:, :, -1], entropy(found[:, :, -1])
    gains, start = np.full(given.shape[:2], -np.inf), 1
    for position, num_answers in enumerate(chain.answers_per_step[:-1]):
        own = slice(start, start + num_answers)
        weights = found[0, :, position, :num_answers].T
        weights = weights / weights.sum(axis=0)
        mixture = (weights[:, :, None] * last[own]).sum(axis=0)
        is_open = given[:, position].sum(axis=-1) == 0
        gains[is_open, position] = (entropy(mixture) - (weights * after[own]).sum(axis=0))[is_open]
        start += num_answers
    return gains, found


def choose_steps(
    policy: Policy,
    read: ReadGiven,
    given: npt.NDArray[np.float32],
    chain: Chain,
    *,
    can_ask: npt.NDArray[np.bool_],
    costs: Sequence[float] = (),
    rng: np.random.Generator | None = None,
) -> npt.NDArray[np.int64]:
    """Return the step to check next in each case, -1 where none is left.

    Args:
      given: [case, step, answer], what is given already.
      can_ask: [case, step], steps that somebody can answer; the last step and given ones are never asked.
      costs: of asking each step, positive; gain and uncertainty are taken per cost. () for equal costs.
    """
    allowed = can_ask & (given.sum(axis=-1) == 0)
    allowed[:, -1] = False
    if policy == "expected gain":
        scores = expected_gains(read, given, chain)[0]
    elif policy == "uncertainty":
        scores = entropy(read(given[None])[0])
    elif policy == "chain order":
        scores = np.broadcast_to(-np.arange(chain.num_steps, dtype=np.float64), allowed.shape)
    else:
        scores = (rng or np.random.default_rng(0)).random(allowed.shape)
    if costs and policy in ("expected gain", "uncertainty"):
        scores = scores / np.asarray(costs, np.float64)
    chosen = np.where(allowed, scores, -np.inf).argmax(axis=1)
    return np.where(allowed.any(axis=1), chosen, -1)


def correct_in_turn(
    policy: Policy,
    read: ReadGiven,
    labels: npt.NDArray[np.integer],
    chain: Chain,
    *,
    costs: Sequence[float] = (),
    seed: int = 0,
) -> tuple[Probabilities, npt.NDArray[np.bool_]]:
    """Correct one step after another to its true answer and read again.

    Args:
      labels: [case, step], negative where nobody can answer.

    Returns:
      Probabilities [1 + corrections, case, step, answer] with 0, 1, ... steps corrected; and which steps were
    """
    truth, rng = as_distributions(labels, chain), np.random.default_rng(seed)
    given = np.zeros_like(truth)
    found, corrected = [read(given[None])[0]], [np.zeros(labels.shape, bool)]
    cases = np.arange(len(labels))
    for _ in range(chain.num_steps - 1):
        chosen = choose_steps(policy, read, given, chain, can_ask=labels >= 0, costs=costs, rng=rng)
        asked = chosen >= 0
        given = given.copy()
        given[cases[asked], chosen[asked]] = truth[cases[asked], chosen[asked]]
        found.append(read(given[None])[0])
        corrected.append(given.sum(axis=-1) > 0)
    return np.stack(found), np.stack(corrected)


def measure_reliance(
    read: ReadGiven, labels: npt.NDArray[np.integer], chain: Chain, *, seed: int = 0
) -> dict[str, Any]:
    """Measure how far each step's answer moves each later one.

    The movement is the total variation distance (half the sum of the absolute differences) between a later step's
    probabilities with one earlier step given and with none, averaged over the cases: 0 for a network that ignores its
    earlier answers, at most 1.

    Args:
      labels: [case, step], negative where not annotated; such an answer is not given.

    Returns:
      By kind of answer (`KINDS`: the network's own as certain, the true one, another case's, equal shares), by earlier
      step, by later step: the mean movement, None without cases. "mean_movement": over all pairs, with the true answer.
    """
    none = np.zeros((*labels.shape, max(chain.answers_per_step)), np.float32)
    before = read(none[None])[0]
    own = as_distributions(before.argmax(axis=-1), chain)
    counts = np.asarray(chain.answers_per_step)[:, None]
    equal = (np.arange(none.shape[-1]) < counts) / counts
    answers = {
        "own": own,
        "true": as_distributions(labels, chain),
        "another case's": as_distributions(exchange(labels, np.random.default_rng(seed)), chain),
        "uniform": np.broadcast_to(equal, none.shape).astype(np.float32),
    }
    moved: dict[str, Any] = {kind: {} for kind in KINDS}
    movements: list[float] = []
    for kind, source in answers.items() if chain.num_steps > 1 else ():
        variants = np.stack([none] * (chain.num_steps - 1))
        for position in range(chain.num_steps - 1):
            variants[position, :, position] = source[:, position]
        distance = np.abs(read(variants) - before).sum(axis=-1) / 2
        for position in range(chain.num_steps - 1):
            was_given = source[:, position].sum(axis=-1) > 0
            means = mean_where(distance[position, :, position + 1 :].T, was_given[None])
            moved[kind][chain.steps[position].name] = {
                step.name: None if np.isnan(mean) else float(mean)
                for step, mean in zip(chain.steps[position + 1 :], means, strict=True)
            }
            if kind == "true":
                movements.extend(means)
    known = [movement for movement in movements if not np.isnan(movement)]
    return {**moved, "mean_movement": sum(known) / len(known) if known else None}


def describe_reliance(reliance: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return one sentence on each network: whether a true answer moves its later steps."""
    lines = []
    for model, found in reliance.items():
        moved = {(one, other): value for one, own in found["true"].items() for other, value in own.items()}
        known = {pair: value for pair, value in moved.items() if value is not None}
        if known:
            (earlier, later), most = max(known.items(), key=lambda item: item[1])
            lines.append(
                f"{model}: a true answer given at one step moves a later one by {100 * found['mean_movement']:.1f} "
                f"points on average, at most {100 * most:.1f} ({earlier} → {later})"
            )
    return lines
