"""From a function that answers batches to the figures of every model on a split.

The evaluator knows no trainer and no parameters: it calls `predict` and keeps what comes back. Every case
of the split counts exactly once, however the batches were padded or ordered.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.distributions import own_logits, softmax
from stepcot_jax.evaluation.metrics import StepMetrics, chain_accuracy, step_metrics


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What the models said about each case of a split, in the split's order, padding removed.

    Attributes:
      index: int32 [case], position of the case in the split, ascending.
      labels: int32 [case, step], `NOT_ANNOTATED` where nobody answered.
      logits: for each model float32 [case, step, answer]; beyond a step's own answers, padding.
    """

    index: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    logits: dict[str, npt.NDArray[np.float32]]


@dataclasses.dataclass(frozen=True)
class ModelMetrics:
    """Figures of one model on a split, each in 0..1, NaN where it is undefined.

    Attributes:
      mean_accuracy: mean of the steps' accuracy, over the steps that have annotated cases.
      mean_majority_accuracy: mean of the steps' majority accuracy, over the same steps.
      chain_accuracy: share of the cases whose annotated steps are all answered right.
      steps: figures of each step, in the chain's order.
    """

    mean_accuracy: float
    mean_majority_accuracy: float
    chain_accuracy: float
    steps: tuple[StepMetrics, ...]


def collect(predict: Callable[[Any], Mapping[str, Any]], batches: Iterable[Mapping[str, Any]]) -> Predictions:
    """Logits and labels of every case that the batches hold.

    Args:
      predict: from a batch to the padded logits [case, step, answer] of each model, by the model's name.
      batches: dicts with `labels` int32 [case, step], `present` bool [case] (False for a padding row) and
        `index` int32 [case] (position of the case in the split), and whatever else `predict` needs.

    Returns:
      The cases in the order of `index`.

    Raises:
      ValueError: there is no batch, a case comes twice, the models change between batches, or logits
        and labels do not fit.
    """
    parts = [_collect_batch(predict, batch) for batch in batches]
    if not parts:
        raise ValueError("found no batch to evaluate, accepted is at least one")
    names = list(parts[0].logits)
    for part in parts:
        if set(part.logits) != set(names):
            raise ValueError(f"found models {sorted(part.logits)} in one batch and {sorted(names)} in the first")
    index = np.concatenate([part.index for part in parts])
    cases, occurrences = np.unique(index, return_counts=True)
    if (occurrences > 1).any():
        repeated = cases[occurrences > 1]
        raise ValueError(f"{len(repeated)} cases come more than once, the first at index {repeated[:5].tolist()}")
    order = np.argsort(index)
    return Predictions(
        index=index[order],
        labels=np.concatenate([part.labels for part in parts])[order],
        logits={name: np.concatenate([part.logits[name] for part in parts])[order] for name in names},
    )


def evaluate(predictions: Predictions, chain: Chain) -> dict[str, ModelMetrics]:
    """Figures of each model over the collected cases.

    Args:
      predictions: labels and logits of the cases.
      chain: the steps, which say how many of the padded answers are a step's own.

    Returns:
      The figures by the model's name, in the order of `predictions.logits`.

    Raises:
      ValueError: the logits do not fit the chain.
      FloatingPointError: a logit of a step's own answers is not finite.
    """
    return {
        name: _evaluate_model(name, logits=logits, labels=predictions.labels, chain=chain)
        for name, logits in predictions.logits.items()
    }


def _collect_batch(predict: Callable[[Any], Mapping[str, Any]], batch: Mapping[str, Any]) -> Predictions:
    predicted = predict(batch)
    on_host, labels, present, index = jax.device_get(
        (dict(predicted), batch["labels"], batch["present"], batch["index"])
    )
    present = np.asarray(present, dtype=bool)
    labels = np.asarray(labels, dtype=np.int32)
    # `predicted` gives the order of the models: a dict that went through a JAX tree comes back sorted.
    logits = {name: np.asarray(on_host[name], dtype=np.float32) for name in predicted}
    for name, found in logits.items():
        if found.ndim != 3 or found.shape[:2] != labels.shape:
            raise ValueError(f"{name}: found logits {found.shape} for labels {labels.shape} [case, step]")
    return Predictions(
        index=np.asarray(index, dtype=np.int32)[present],
        labels=labels[present],
        logits={name: found[present] for name, found in logits.items()},
    )


def _evaluate_model(
    name: str, *, logits: npt.NDArray[np.float32], labels: npt.NDArray[np.int32], chain: Chain
) -> ModelMetrics:
    steps: list[StepMetrics] = []
    answers: list[npt.NDArray[np.intp]] = []
    for position, own in enumerate(own_logits(logits, chain=chain, model=name)):
        probabilities = softmax(own)
        steps.append(step_metrics(step=chain.steps[position], probabilities=probabilities, labels=labels[:, position]))
        answers.append(probabilities.argmax(axis=1))
    annotated = [step for step in steps if step.num_cases]
    return ModelMetrics(
        mean_accuracy=_mean([step.accuracy for step in annotated]),
        mean_majority_accuracy=_mean([step.majority_accuracy for step in annotated]),
        chain_accuracy=chain_accuracy(answers=np.stack(answers, axis=1), labels=labels),
        steps=tuple(steps),
    )


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
