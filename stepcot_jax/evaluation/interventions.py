"""What given answers change: which step is worth asking, accuracy as steps are corrected, and reliance of steps.

A network is a function from given answers to probabilities (`ReadGiven`); a correction is a step's true answer.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.predictions import softmax
from stepcot_jax.evaluation.statistics import mean_where

Probabilities = npt.NDArray[np.float64]
ReadGiven = Callable[[npt.NDArray[np.float32]], Probabilities]
"""Given answers [variant, case, step, answer], distributions or zeros to predict -> probabilities of the same shape."""

Policy = Literal["expected gain", "uncertainty", "chain order", "random"]
POLICIES: tuple[Policy, ...] = ("expected gain", "uncertainty", "chain order", "random")
"""Ways to choose the next step to check; "expected gain" is that of `Gains.choose`."""

_TIED = 1e-9  # expected accuracies that differ by less are equal

KINDS = ("own", "true", "another case's", "uniform")  # Answers that reliance is measured with


def as_probabilities(read_logits: Callable[[Any], Any], temperatures: Sequence[float] = ()) -> ReadGiven:
    """Return a `ReadGiven` of a function from given answers [variant, case, step, answer] to padded logits."""
    scale = np.asarray(temperatures or 1.0, np.float64).reshape(-1, 1)
    return lambda given: softmax(np.asarray(read_logits(given), np.float64) / scale, axis=-1)


def as_distributions(labels: npt.NDArray[np.integer], chain: Chain) -> npt.NDArray[np.float32]:
    """Return labels [..., step] as given answers [..., step, answer]; a negative label becomes zeros."""
    most = max(chain.answers_per_step)
    return (np.asarray(labels)[..., None] == np.arange(most)).astype(np.float32)


def exchange(labels: npt.NDArray[np.integer], rng: np.random.Generator) -> npt.NDArray[np.integer]:
    """Return for each case the labels [case, step] of another one; every case's labels are used once."""
    order = rng.permutation(len(labels))
    exchanged = np.empty_like(labels)
    exchanged[order] = labels[np.roll(order, 1)]
    return exchanged


def entropy(probabilities: Probabilities) -> Probabilities:
    """Return the entropy in nats over the last axis."""
    return -(probabilities * np.log(np.maximum(probabilities, 1e-300))).sum(axis=-1)


@runtime_checkable
class LooksAhead(Protocol):
    """A `ReadGiven` that knows what each answer would make of the last step's."""

    def __call__(self, given: Any, /) -> Probabilities:
        """Return probabilities of given answers, see `ReadGiven`."""
        ...

    def look_ahead(self, given: Any) -> list[Probabilities]:
        """Return P(answer, the last step's answer | given) [case, answer, last answer] of each step not given."""
        ...


def look_ahead(read: ReadGiven, given: npt.NDArray[np.floating], chain: Chain) -> list[Probabilities]:
    """Return P(answer, the last step's answer) [case, answer, last answer] of each step before the last.

    A network is given every answer in turn, weighed by its own probability. The sum over the answers is then not its
    reading without the answer: a network that takes a given answer as certain concludes more firmly from any, which is
    no information (docs/corrections.md).
    """
    if isinstance(read, LooksAhead):
        return read.look_ahead(given)[:-1]
    variants = [given]
    for position, num_answers in enumerate(chain.answers_per_step[:-1]):
        for answer in range(num_answers):
            varied = given.copy()
            varied[:, position] = np.arange(given.shape[-1]) == answer
            variants.append(varied)
    probabilities = read(np.stack(variants))
    last, pairs, start = probabilities[:, :, -1, : chain.answers_per_step[-1]], [], 1
    for position, num_answers in enumerate(chain.answers_per_step[:-1]):
        weights = probabilities[0, :, position, :num_answers]
        weights = weights / weights.sum(axis=1, keepdims=True)
        pairs.append(weights[:, :, None] * last[start : start + num_answers].swapaxes(0, 1))
        start += num_answers
    return pairs


@dataclasses.dataclass(frozen=True)
class Gains:
    """What the answer to each step is worth for the last one; -inf where a step is given, and for the last step."""

    accuracy: npt.NDArray[np.float64]  # [case, step], expected rise of the largest probability
    information: npt.NDArray[np.float64]  # [case, step], mutual information in nats

    def choose(self, *, costs: Sequence[float] = ()) -> npt.NDArray[np.int64]:
        """Return the step of the largest accuracy per cost, of equal ones the most informative; -1 for none."""
        scale = np.asarray(costs or 1.0, np.float64)
        accuracy, information = self.accuracy / scale, self.information / scale
        best = accuracy.max(axis=1, keepdims=True)
        chosen = np.where(accuracy >= best - _TIED, information, -np.inf).argmax(axis=1)
        return np.where(np.isfinite(best[:, 0]), chosen, -1)


def expected_gains(pairs: Sequence[Probabilities], can_ask: npt.NDArray[np.bool_]) -> Gains:
    """Return the gains of the steps of `look_ahead` that can be asked."""
    accuracy, information = np.full(can_ask.shape, -np.inf), np.full(can_ask.shape, -np.inf)
    for position, joint in enumerate(pairs):
        shares, last = joint.sum(axis=2), joint.sum(axis=1)
        after = joint / np.maximum(shares, 1e-300)[:, :, None]
        accuracy[:, position] = joint.max(axis=2).sum(axis=1) - last.max(axis=1)
        information[:, position] = entropy(last) - (shares * entropy(after)).sum(axis=1)
    return Gains(*(np.where(can_ask, gains, -np.inf) for gains in (accuracy, information)))


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
    """Return the step to check next in each case, -1 where none is left; gain and uncertainty are taken per cost."""
    allowed = can_ask & (given.sum(axis=-1) == 0)
    allowed[:, -1] = False
    if policy == "expected gain":
        return expected_gains(look_ahead(read, given, chain), allowed).choose(costs=costs)
    if policy == "uncertainty":
        scores = entropy(read(given[None])[0])
    elif policy == "chain order":
        scores = np.broadcast_to(-np.arange(chain.num_steps, dtype=np.float64), allowed.shape)
    else:
        scores = (rng or np.random.default_rng(0)).random(allowed.shape)
    if costs and policy == "uncertainty":
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
    """Correct one step after another to its true answer; return readings and corrected steps after 0, 1, ..."""
    truth, rng = as_distributions(labels, chain), np.random.default_rng(seed)
    given = np.zeros_like(truth)
    readings, corrected = [read(given[None])[0]], [np.zeros(labels.shape, bool)]
    cases = np.arange(len(labels))
    for _ in range(chain.num_steps - 1):
        chosen = choose_steps(policy, read, given, chain, can_ask=labels >= 0, costs=costs, rng=rng)
        asked = chosen >= 0
        given = given.copy()
        given[cases[asked], chosen[asked]] = truth[cases[asked], chosen[asked]]
        readings.append(read(given[None])[0])
        corrected.append(given.sum(axis=-1) > 0)
    return np.stack(readings), np.stack(corrected)


def measure_reliance(read: ReadGiven, labels: npt.NDArray[np.integer], chain: Chain) -> dict[str, Any]:
    """Measure how far each step's answer moves each later step's probabilities, by total variation distance."""
    none = np.zeros((*labels.shape, max(chain.answers_per_step)), np.float32)
    before = read(none[None])[0]
    counts = np.asarray(chain.answers_per_step)[:, None]
    equal = (np.arange(none.shape[-1]) < counts) / counts
    answers = {
        "own": as_distributions(before.argmax(axis=-1), chain),
        "true": as_distributions(labels, chain),
        "another case's": as_distributions(exchange(labels, np.random.default_rng(0)), chain),
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
    for model, movements in reliance.items():
        moved = {
            (one, other): value
            for one, later_steps in movements["true"].items()
            for other, value in later_steps.items()
        }
        known = {pair: value for pair, value in moved.items() if value is not None}
        if known:
            (earlier, later), most = max(known.items(), key=lambda item: item[1])
            lines.append(
                f"{model}: a true answer given at one step moves a later one by {100 * movements['mean_movement']:.1f} "
                f"points on average, at most {100 * most:.1f} ({earlier} → {later})"
            )
    return lines
