"""Answers counted in training labels, without a picture: the baseline for the figures of corrections."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.calibration import fit_mixture, fit_temperature
from stepcot_jax.evaluation.interventions import LooksAhead, Policy, correct_in_turn
from stepcot_jax.evaluation.joint import AnswerTree, JointModel, JointReader, Pairs
from stepcot_jax.evaluation.joint_fit import WrittenBack, fit_conflict, fit_joint, fit_pool
from stepcot_jax.evaluation.predictions import Predictions, logits_by_step

_SMOOTHING = 2.0  # cases that each row of a table has in addition, spread as the answers are over all cases
_MOST_COMPARED = 500
"""Largest number of validation cases on which baselines are compared."""


class NaiveBayes:
    """Naive Bayes: the answers to all other steps are independent given the answer that is asked for."""

    _own: Float[np.ndarray, "case answer"] | None = None

    def __init__(self, labels: Int[np.ndarray, "case step"], chain: Chain) -> None:
        self._shares, self._tables = [], dict[tuple[int, int], Float64[np.ndarray, "asked answer"]]()
        sizes = chain.answers_per_step
        for step, size in enumerate(sizes):
            totals = np.bincount(labels[labels[:, step] != NOT_ANNOTATED, step], minlength=size) + 1
            self._shares.append(totals / totals.sum())
        for asked, size in enumerate(sizes):
            for step, shares in enumerate(self._shares):
                known = labels[(labels[:, [asked, step]] != NOT_ANNOTATED).all(axis=1)]
                counts = np.zeros((size, sizes[step]))
                np.add.at(counts, (known[:, asked], known[:, step]), 1)
                row = counts.sum(axis=1, keepdims=True) + _SMOOTHING
                self._tables[asked, step] = (counts + _SMOOTHING * shares) / row

    def __call__(
        self, given: Float[np.ndarray, "variant case step answer"]
    ) -> Float64[np.ndarray, "variant case step answer"]:
        """Return each step's distribution given the answers to the other steps, which are virtual evidence."""
        read = np.zeros(given.shape)
        for asked, shares in enumerate(self._shares):
            prior = shares if self._own is None or asked < given.shape[2] - 1 else self._own
            logs = np.broadcast_to(np.log(np.maximum(prior, 1e-30)), (*given.shape[:2], len(shares))).copy()
            for step in range(given.shape[2]):
                told = given[:, :, step, : len(self._shares[step])].astype(np.float64)
                if step != asked and told.any():
                    likelihood = told @ self._tables[asked, step].T
                    logs += np.log(np.where(told.any(axis=-1, keepdims=True), likelihood, 1.0))
            weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
            read[:, :, asked, : len(shares)] = weights / weights.sum(axis=-1, keepdims=True)
        return read

    def look_ahead(self, given: Float[np.ndarray, "case step answer"]) -> Pairs:
        """Return P(answer, the last step's answer | given) of each step that is not given."""
        size = len(self._shares[-1])
        last = self(given[None])[0, :, -1, :size]
        return [last[:, None] * table.T for table in self.tables_of(len(self._shares) - 1)]

    def beside(self, own: Float[np.ndarray, "case answer"]) -> "NaiveBayes":
        """Return the reader of cases whose distributions of the last step replace its shares: a network and a count."""
        reader = copy.copy(self)
        reader._own = own
        return reader

    def tables_of(self, asked: int) -> list[Float64[np.ndarray, "asked answer"]]:
        """Return P(answer of each step | answer to the asked one)."""
        return [self._tables[asked, step] for step in range(len(self._shares))]


class PriorReader:
    """The joint model without its picture."""

    def __init__(self, tree: AnswerTree) -> None:
        self._tree = tree

    def __call__(
        self, given: Float[np.ndarray, "variant case step answer"]
    ) -> Float64[np.ndarray, "variant case step answer"]:
        """Return each step's distribution given the answers to the other steps."""
        return self._join(given.shape[1])(given)

    def look_ahead(self, given: Float[np.ndarray, "case step answer"]) -> Pairs:
        """Return P(answer, the last step's answer | given) of each step."""
        return self._join(len(given)).look_ahead(given)

    def _join(self, num_cases: int) -> JointReader:
        own = [np.tile(np.log(shares), (num_cases, 1)) for shares in self._tree.marginals]
        return JointReader(self._tree, own, [np.zeros_like(logs) for logs in own])


@dataclasses.dataclass(frozen=True)
class Counting:
    """A baseline that sees no picture."""

    name: str
    read: LooksAhead
    bayes: NaiveBayes


def choose_counting(
    tree: AnswerTree,
    training: Int[np.ndarray, "case step"],
    validation: Int[np.ndarray, "case step"],
    chain: Chain,
) -> Counting:
    """Return the better baseline: mean accuracy of the last step after one to all answers that it asks for."""
    chosen = validation[np.unique(np.linspace(0, len(validation) - 1, _MOST_COMPARED).round().astype(int))]
    bayes = NaiveBayes(training, chain)
    baselines = [Counting("naive Bayes", bayes, bayes), Counting("joint model", PriorReader(tree), bayes)]
    means = [correction_curve(baseline.read, chosen, chain)[1:].mean() for baseline in baselines if chain.num_steps > 1]
    return baselines[int(np.nanargmax(means))] if np.isfinite(means).any() else baselines[0]


def correction_curve(
    read: LooksAhead, labels: Int[np.ndarray, "case step"], chain: Chain, policy: Policy = "expected gain"
) -> Float64[np.ndarray, "count"]:
    """Return the accuracy of the last step after 0, 1, ... true answers, to the questions that the policy chooses."""
    known = labels[:, -1] != NOT_ANNOTATED
    if not known.any():
        return np.full(chain.num_steps, np.nan)
    readings, _ = correct_in_turn(policy, read, labels, chain)
    return (readings[:, known, -1].argmax(axis=-1) == labels[known, -1]).mean(axis=1)


def fit_joints(
    tree: AnswerTree, validation: Predictions, written: Mapping[str, WrittenBack], chain: Chain
) -> dict[str, JointModel]:
    """Fit the joint model of each network that takes given answers on validation cases."""
    joints, labels = {}, validation.labels
    for model, cases in written.items():
        steps = logits_by_step(validation.logits[model], chain=chain, model=model)
        known = [of_step != NOT_ANNOTATED for of_step in labels.T]
        annotated = [(own[of_step], truth[of_step]) for own, truth, of_step in zip(steps, labels.T, known, strict=True)]
        temperatures = [fit_temperature(*columns)[0] for columns in annotated]
        mixtures = [fit_mixture(*columns) for columns in annotated]
        joint = fit_joint(tree, validation.logits[model], labels, temperatures=temperatures, mixtures=mixtures)
        joints[model] = fit_conflict(fit_pool(joint, cases), cases)
    return joints


def measure_corrections(
    readers: Mapping[str, tuple[LooksAhead, Float[np.ndarray, "case answer"]]],
    labels: Int[np.ndarray, "case step"],
    counting: Counting,
    chain: Chain,
) -> dict[str, Any]:
    """Return the curves of joint readings of the same cases, each beside its rivals.

    These are answers to random questions, and the network's own distributions of the last step, which are in `readers`,
    times naive Bayes of the given answers; the last curve is the baseline's.
    """
    last, curves = chain.steps[-1].name, dict[str, Float64[np.ndarray, "count"]]()
    for model, (read, own) in readers.items():
        curves[f"{model}, joint reading"] = correction_curve(read, labels, chain)
        curves[f"{model}, joint reading, random questions"] = correction_curve(read, labels, chain, "random")
        both = f"{model} x naive Bayes" if model == "plain" else f"{model}, own {last} x naive Bayes"
        curves[both] = correction_curve(counting.bayes.beside(own), labels, chain)
    if curves:
        curves[f"{counting.name} without the picture"] = correction_curve(counting.read, labels, chain)
    return {"curves": {name: curve.tolist() for name, curve in curves.items()}, "num_cases": len(labels)}


def describe_corrections(corrections: Mapping[str, Any], chain: Chain) -> list[str]:
    """Return a line for each curve, after a line that says what it shows."""
    curves, lines = corrections["curves"], list[str]()
    for name, curve in curves.items():
        shares = " ".join("   -" if share is None else f"{100 * share:.1f}" for share in curve)
        lines.append(f"  {name:<{max(map(len, curves))}}  {shares}")
    return [f"{chain.steps[-1].name} right after 0, 1, ... true answers (%):", *lines] if lines else []
