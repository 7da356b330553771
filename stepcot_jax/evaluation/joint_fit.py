"""Fit joint models on validation cases: weights of the picture, the pool's exponents, the limit of conflict.

All are fitted by the log-probability of answers that are not given, under random given ones.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.calibration import Mixture
from stepcot_jax.evaluation.joint import (
    AnswerTree,
    JointModel,
    ReadLogits,
    as_evidence,
    infer,
    log_likelihood,
    log_shares,
    log_sum_exp,
    pool,
)

_TINY = np.finfo(np.float64).tiny
_MOST_FITTED = 1000
"""Largest number of validation cases on which weights are fitted."""
_NUM_DRAWS = 2  # of given answers, for each case
_LARGEST_WEIGHT = 2.0
_RIDGE = 5.0  # of squared distances to the best common weight, over the number of answers; decides with few cases
_COMMON = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
_JOINT_ALONE = (0.0, 1.0, 0.0)
_LARGEST_GROWTH = 1.0


def draw_given(labels: Int[np.ndarray, "case step"], *, seed: int) -> Int[np.ndarray, "case step"]:
    """Return the labels of a random subset of each case's steps, one to all but one; other labels are missing."""
    draw, num_steps = np.random.default_rng(seed), labels.shape[1]
    num_given = draw.integers(1, max(num_steps, 2), size=len(labels))
    order = draw.permuted(np.tile(np.arange(num_steps), (len(labels), 1)), axis=1)
    return np.where(order < num_given[:, None], labels, NOT_ANNOTATED)


def fit_joint(
    tree: AnswerTree,
    logits: Float[np.ndarray, "case step answer"],
    labels: Int[np.ndarray, "case step"],
    *,
    temperatures: Sequence[float],
    mixtures: Sequence[Mixture] = (),
    seed: int = 0,
) -> JointModel:
    """Fit the weights on validation cases by the mean log-probability of answers, given random subsets of the others.

    Args:
      tree: of training labels.
      logits: of a pass without given answers.
      temperatures, mixtures: fitted on the same cases.
    """
    from scipy.optimize import minimize  # takes a quarter of a second to import

    if len(labels) > _MOST_FITTED:
        chosen = np.sort(np.random.default_rng(seed).permutation(len(labels))[:_MOST_FITTED])
        logits, labels = logits[chosen], labels[chosen]
    told = np.concatenate([draw_given(labels, seed=seed + number) for number in range(_NUM_DRAWS)])
    labels, logits = np.tile(labels, (_NUM_DRAWS, 1)), np.tile(logits, (_NUM_DRAWS, 1, 1))
    given, free = as_evidence(told, tree.sizes), (told == NOT_ANNOTATED) & (labels != NOT_ANNOTATED)
    free &= (told != NOT_ANNOTATED).any(axis=1, keepdims=True)
    model = JointModel(tree, tuple(temperatures), (_COMMON[0],) * len(tree.sizes), mixtures=tuple(mixtures))
    if not free.any():
        return model
    own = model.calibrate(logits)
    likelihoods = [log_likelihood(given[:, step, :size]) for step, size in enumerate(tree.sizes)]

    def loss(weights: Float64[np.ndarray, "step"]) -> float:
        weighed = dataclasses.replace(model, weights=tuple(weights.tolist())).weigh(own)
        pairs, _ = infer(tree, [logs + told for logs, told in zip(weighed, likelihoods, strict=True)])
        return -score_answers([pair.sum(axis=2) for pair in pairs], labels, free)

    start = min((np.full(len(tree.sizes), weight) for weight in _COMMON), key=loss)
    found = minimize(
        lambda weights: loss(weights) + _RIDGE * float(((weights - start) ** 2).sum()) / int(free.sum()),
        start,
        method="L-BFGS-B",
        bounds=[(0.0, _LARGEST_WEIGHT)] * len(tree.sizes),
        options={"maxiter": 15},
    )
    return dataclasses.replace(model, weights=tuple(found.x.tolist()))


def score_answers(
    steps: Sequence[Float64[np.ndarray, "case answer"]],
    labels: Int[np.ndarray, "case step"],
    counted: Int[np.ndarray, "case step"],
) -> float:
    """Return the mean log-probability of the labels that count."""
    chosen = [
        shares[np.arange(len(labels)), np.maximum(labels[:, step], 0)][counted[:, step]]
        for step, shares in enumerate(steps)
    ]
    return float(np.log(np.maximum(np.concatenate(chosen), _TINY)).mean())


@dataclasses.dataclass(frozen=True)
class WrittenBack:
    """What a network says of cases under random given answers.

    Attributes:
      alone: logits [case, step, answer] of a pass without given answers.
      told: labels [draw, case, step] of the given answers, missing where none is given.
      written: logits [draw, case, step, answer] with the given answers written back.
    """

    labels: Int[np.ndarray, "case step"]
    alone: Float[np.ndarray, "case step answer"]
    told: Int[np.ndarray, "draw case step"]
    written: Float[np.ndarray, "draw case step answer"]


def read_written_back(
    read: ReadLogits, labels: Int[np.ndarray, "case step"], sizes: Sequence[int], *, seed: int = 0
) -> WrittenBack:
    """Read cases under random subsets of their true answers."""
    told = np.stack([draw_given(labels, seed=seed + number) for number in range(_NUM_DRAWS)])
    nothing = np.zeros((1, *labels.shape, max(sizes)), np.float32)
    given = as_evidence(told, sizes).astype(np.float32)
    return WrittenBack(labels, np.asarray(read(nothing))[0], told, np.asarray(read(given)))


_CONFLICTS = 0.03
"""Share of readings that conflict more than the limit, at most, of cases like those of validation."""


def fit_conflict(model: JointModel, cases: WrittenBack) -> JointModel:
    """Return the model with the limit of conflict, fitted on validation cases under random given answers.

    The limit is a conformal quantile over n cases; with fewer than 33, or one step, there is none.
    """
    num_cases = len(cases.labels)
    rank = np.ceil((num_cases + 1) * (1 - _CONFLICTS))
    if rank > num_cases or len(model.tree.sizes) < 2:
        return model
    given = as_evidence(cases.told, model.tree.sizes)
    conflicts = [model.measure_conflict(cases.alone, of_draw) for of_draw in given]
    return dataclasses.replace(model, conflict_limit=float(np.quantile(conflicts, rank / num_cases, method="higher")))


def fit_pool(model: JointModel, cases: WrittenBack) -> JointModel:
    """Return the model with exponents, fitted on validation cases by the log-probability of answers that are not given.

    With few cases they are near 0, 1 and 0, the joint model alone.
    """
    from scipy.optimize import minimize

    given = as_evidence(cases.told, model.tree.sizes)
    joined = model.join(cases.alone)(given)
    labels, told = np.tile(cases.labels, (len(given), 1)), np.concatenate(cases.told)
    network, exponents = model.scale(np.concatenate(cases.written)), []
    for step, (size, logs) in enumerate(zip(model.tree.sizes, network, strict=True)):
        free = (told[:, step] == NOT_ANNOTATED) & (labels[:, step] != NOT_ANNOTATED)
        free &= (told != NOT_ANNOTATED).any(axis=1)
        of_joint, truth = log_shares(np.concatenate(joined)[free, step, :size]), labels[free, step]
        of_network, num_given = logs[free], (told[free] != NOT_ANNOTATED).sum(axis=1).astype(np.float64)

        def loss(
            found: Any, own: Any = of_network, joint: Any = of_joint, truth: Any = truth, num_given: Any = num_given
        ) -> float:
            pooled = pool(own, joint, found, num_given)
            gained = (pooled[np.arange(len(truth)), truth] - log_sum_exp(pooled)).sum()
            far = ((found - np.array(_JOINT_ALONE)) ** 2).sum()
            return float(_RIDGE * far - gained) / max(len(truth), 1)

        bounds = [(0.0, _LARGEST_WEIGHT)] * 2 + [(-_LARGEST_GROWTH, _LARGEST_GROWTH)]
        found = minimize(loss, np.array(_JOINT_ALONE), method="L-BFGS-B", bounds=bounds).x
        exponents.append(tuple(found.tolist()))
    return dataclasses.replace(model, exponents=tuple(exponents))
