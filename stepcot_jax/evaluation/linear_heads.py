"""Linear heads on a run's image features: one multinomial logistic regression a step, a rival of its networks."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, Int

from stepcot_jax.chain import Chain, find_one_answer
from stepcot_jax.evaluation.chains import answer_accuracy, mean_over_steps
from stepcot_jax.evaluation.predictions import SplitPredictions, logits_by_step
from stepcot_jax.evaluation.statistics import Interval, Weights, bootstrap
from stepcot_jax.pages.sheets import Column, Table, columns, show_entry

PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""Values of L2, tried from the first on, each from the weights of the last, until no step gains on validation."""

_MOST_ITERATIONS = 60  # at each L2; 30 leave separable answers unfinished on some CPUs
_CURVATURE = 0.15  # a typical p (1 - p) of an answer; it scales the search alone
_NEVER = -1000.0  # logit of an answer that no training case has


@dataclasses.dataclass(frozen=True)
class FittedHeads:
    """A linear map from image features to the answers of all steps, one step after another."""

    weights: Float64[np.ndarray, "width column"]
    bias: Float64[np.ndarray, "column"]
    sizes: tuple[int, ...]  # number of answers of each step
    penalties: tuple[float, ...]  # L2 chosen for each step

    def read(self, features: Float[np.ndarray, "case width"]) -> Float32[np.ndarray, "case step answer"]:
        """Return logits, 0 beyond a step's own answers."""
        logits = np.zeros((len(features), len(self.sizes), max(self.sizes)), np.float32)
        for step, own in enumerate(_split_steps(features @ self.weights + self.bias, self.sizes)):
            logits[:, step, : own.shape[1]] = own
        return logits


def fit_linear_heads(
    features: Mapping[str, Float[np.ndarray, "case width"]],
    labels: Mapping[str, Int[np.ndarray, "case step"]],
    sizes: Sequence[int],
) -> FittedHeads:
    """Fit the heads on "train", and choose each step's L2 by the mean log-probability of the answers of "val".

    A step's loss is the mean cross-entropy of its annotated cases, plus L2 / 2 times the squared weights of the
    standardised features. Among few validation cases the log-probability varies less than the accuracy.
    """
    import jax  # a second to import, which readers of reports need not wait for
    import jax.numpy as jnp
    from scipy.optimize import minimize

    train = np.asarray(features["train"], np.float32)
    mean, scale = train.mean(axis=0, dtype=np.float64), train.std(axis=0, dtype=np.float64)
    scale = np.where(scale > 1e-6 * scale.max(initial=0), scale, np.inf)  # a constant feature says nothing
    # Along the covariance's axes, in units of the loss's curvature, the search takes tens of steps instead of hundreds.
    standard = ((train - mean) / scale).astype(np.float32)
    variances, axes = np.linalg.eigh((standard.T @ standard / len(train)).astype(np.float64))
    basis, curvature = axes / scale[:, None], _CURVATURE * np.append(np.maximum(variances, 0), 1)[:, None]
    inputs, targets = {}, {}
    for split, rows in features.items():
        projected = (rows - mean).astype(np.float32) @ basis.astype(np.float32)
        inputs[split] = jax.device_put(np.pad(projected, ((0, 0), (0, 1)), constant_values=1))
        targets[split] = jax.device_put(_as_targets(labels[split], sizes))
    offset = np.where(np.asarray(targets["train"]).any(axis=0), 0, _NEVER).astype(np.float32)
    shrinks = np.append(np.ones(len(basis)), 0)[:, None]  # not the bias

    @jax.jit
    def of_steps(weights: Any, inputs: Any, targets: Any) -> Any:
        logits = jnp.matmul(inputs, weights, precision="highest") + offset[None]
        parts = zip(_split_steps(logits, sizes), _split_steps(targets, sizes), strict=True)
        return jnp.stack([-(truth * jax.nn.log_softmax(own, axis=1)).sum() for own, truth in parts])

    differentiate = jax.jit(jax.value_and_grad(lambda *arguments: of_steps(*arguments).sum()))

    def loss(flat: np.ndarray, penalty: float, scales: np.ndarray) -> tuple[float, np.ndarray]:
        own = flat.reshape(len(scales), -1) * scales
        value, gradient = differentiate(own.astype(np.float32), inputs["train"], targets["train"])
        pull = penalty * shrinks * own
        return float(value) + (pull * own).sum() / 2, ((np.asarray(gradient, np.float64) + pull) * scales).ravel()

    weights, found, losses = np.zeros((len(shrinks), len(offset))), [], []
    for penalty in PENALTIES:
        scales = 1 / np.sqrt(curvature + penalty * shrinks)
        start, options = (weights / scales).ravel(), {"maxiter": _MOST_ITERATIONS, "ftol": 1e-9}
        reached = minimize(loss, start, args=(penalty, scales), jac=True, method="L-BFGS-B", options=options).x
        weights = reached.reshape(weights.shape) * scales
        found.append(_split_steps(weights, sizes))
        losses.append(np.asarray(of_steps(weights.astype(np.float32), inputs["val"], targets["val"])))
        if len(losses) > 1 and (losses[-1] >= losses[-2]).all():  # no step gains
            break
    chosen = np.argmin(losses, axis=0).tolist()  # of equal ones the largest L2
    best = np.concatenate([found[at][step] for step, at in enumerate(chosen)], axis=1)
    mapped = basis @ best[:-1]
    return FittedHeads(mapped, best[-1] + offset - mean @ mapped, tuple(sizes), tuple(PENALTIES[at] for at in chosen))


def _split_steps(of_all: Any, sizes: Sequence[int]) -> list[Any]:
    ends = np.cumsum(sizes).tolist()
    return [of_all[:, end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _as_targets(labels: Int[np.ndarray, "case step"], sizes: Sequence[int]) -> Float32[np.ndarray, "case column"]:
    """Return for each step's answers 1 over the number of its annotated cases where true, else 0."""
    parts = [truth[:, None] == np.arange(size) for truth, size in zip(labels.T, sizes, strict=True)]
    return np.concatenate([true / max(true.sum(), 1) for true in parts], axis=1).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Rival:
    """The heads beside the networks of a run, on the test split, as report.json has them."""

    name: str
    num_cases: int  # training cases that they were fitted on
    l2: Mapping[str, float]  # by step
    last_step: str
    figures: Mapping[str, tuple[Interval, Interval]]  # of `compare_with_heads`
    note: str  # the rest of a sentence that begins with the heads

    def tabulate(self) -> Table:
        """Return the figures as a table."""
        rows = []
        for name, both in self.figures.items():
            is_own = name == self.name
            shown = (show_entry(figure, Column("", "percent" if is_own else "points")) for figure in both)
            rows.append((f"{name} (%)" if is_own else f"{name} less the heads (points)", *shown))
        heads = columns("text", "network", "mean step accuracy", self.last_step)
        notes = (f"These heads, fitted on {self.num_cases:,} training cases, {self.note}",)
        return Table("heads", self.name.capitalize(), heads, tuple(rows), notes)

    def describe(self) -> list[str]:
        """Return the figures and the note as lines of text."""
        table = self.tabulate()
        lines = [f"{name}: mean step accuracy {mean}, {self.last_step} {last}" for name, mean, last in table.rows]
        return [*lines, *table.notes]


def compare_with_heads(
    split: SplitPredictions,
    logits: Float[np.ndarray, "case step answer"],
    chain: Chain,
    *,
    name: str,
    num_resamples: int,
) -> dict[str, tuple[Interval, Interval]]:
    """Return accuracies, mean of the steps and last step: the heads' under `name`, each network's less the heads'."""
    labels, models = split.predictions.labels, {name: logits, **split.predictions.logits}
    left_out, answers = find_one_answer(labels), []
    for model, of_all in models.items():
        of_steps = logits_by_step(of_all, chain=chain, model=model)
        answers.append(np.stack([own.argmax(axis=1) for own in of_steps], axis=1))

    def compute(weights: Weights) -> dict[str, np.ndarray]:
        accuracies = np.stack([answer_accuracy(weights, answers=given, labels=labels)[0] for given in answers])
        figures = np.stack([mean_over_steps(accuracies, left_out=left_out), accuracies[:, :, -1]], axis=2)
        return dict(zip(models, [figures[0], *(figures[1:] - figures[0])], strict=True))

    found = bootstrap(compute, split.facts["patient_id"], num_resamples=num_resamples)
    return {model: (mean, last) for model, (mean, last) in found.items()}
