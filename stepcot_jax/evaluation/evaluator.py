"""Collect predictions on a split and compute the metrics of every model.

The evaluator knows no trainer and no parameters: it calls `predict` and keeps the results. Every case of the split
counts exactly once, however the batches were padded or ordered.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain, find_one_answer
from stepcot_jax.evaluation.distributions import own_probabilities
from stepcot_jax.evaluation.metrics import (
    StepMetrics,
    answer_accuracy,
    majority_chain_accuracy,
    mean_over_steps,
    step_metrics,
)
from stepcot_jax.evaluation.resamples import count_once


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Predictions of one or more models on a split, in the split's order, without padding rows.

    Attributes:
      index: int32 [case], position of the case in the split, ascending.
      labels: int32 [case, step], `NOT_ANNOTATED` where unannotated.
      logits: for each model float32 [case, step, answer]; padding beyond a step's own answers.
    """

    index: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    logits: dict[str, npt.NDArray[np.float32]]


@dataclasses.dataclass(frozen=True)
class ModelMetrics:
    """Metrics of one model on a split, each in 0..1, NaN where undefined.

    Attributes:
      mean_accuracy: mean of the steps' accuracy, over the steps whose annotated cases have two or more answers.
      mean_majority_accuracy: mean of the steps' majority accuracy, over the same steps.
      chain_accuracy: share of the cases whose annotated steps are all answered correctly.
      majority_chain_accuracy: the same share of a constant chain (`metrics.majority_chain_accuracy`).
      steps: metrics of each step, in the chain's order.
    """

    mean_accuracy: float
    mean_majority_accuracy: float
    chain_accuracy: float
    majority_chain_accuracy: float
    steps: tuple[StepMetrics, ...]


def collect(predict: Callable[[Any], Mapping[str, Any]], batches: Iterable[Mapping[str, Any]]) -> Predictions:
    """Collect logits and labels of every case in the batches.

    Args:
      predict: from a batch to padded logits [case, step, answer] by model name.
      batches: dicts with `labels` int32 [case, step], `present` bool [case] (False for a padding row), `index`
        int32 [case] (position of the case in the split), and the inputs of `predict`.

    Returns:
      The cases in the order of `index`.

    Raises:
      ValueError: there is no batch, a case comes twice, the models change between batches, or logits and labels do
        not fit.
    """
    parts = [_collect_batch(predict, batch) for batch in batches]
    if not parts:
        raise ValueError("there is no batch to evaluate")
    names = list(parts[0].logits)
    for part in parts:
        if set(part.logits) != set(names):
            raise ValueError(f"a batch has models {sorted(part.logits)}, the first one {sorted(names)}")
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
    """Compute the metrics of each model.

    Args:
      predictions: labels and logits of the cases.
      chain: the steps, which say how many of the padded answers are a step's own.

    Returns:
      The metrics by model name, in the order of `predictions.logits`.

    Raises:
      ValueError: the logits do not fit the chain.
      FloatingPointError: a logit of a step's own answers is not finite.
    """
    labels, found = predictions.labels, {}
    left_out = find_one_answer(labels)
    for model, logits in predictions.logits.items():
        probabilities = own_probabilities(logits, chain=chain, model=model)
        steps = tuple(
            step_metrics(step=step, probabilities=own, labels=truth)
            for step, own, truth in zip(chain.steps, probabilities, labels.T, strict=True)
        )
        answers = np.stack([own.argmax(axis=1) for own in probabilities], axis=1)
        accuracies, whole = answer_accuracy(count_once(len(labels)), answers=answers, labels=labels)
        majorities = np.array([[step.majority_accuracy for step in steps]])
        found[model] = ModelMetrics(
            mean_accuracy=float(mean_over_steps(accuracies, left_out=left_out)[0]),
            mean_majority_accuracy=float(mean_over_steps(majorities, left_out=left_out)[0]),
            chain_accuracy=float(whole[0]),
            majority_chain_accuracy=majority_chain_accuracy(labels),
            steps=steps,
        )
    return found


def _collect_batch(predict: Callable[[Any], Mapping[str, Any]], batch: Mapping[str, Any]) -> Predictions:
    import jax  # takes a second to import, which those who score stored answers need not wait for

    predicted = predict(batch)
    on_host, labels, present, index = jax.device_get(
        (dict(predicted), batch["labels"], batch["present"], batch["index"])
    )
    present = np.asarray(present, dtype=bool)
    labels = np.asarray(labels, dtype=np.int32)
    # `predicted` has the order of the models: a dict that went through a JAX tree comes back sorted.
    logits = {name: np.asarray(on_host[name], dtype=np.float32) for name in predicted}
    for name, found in logits.items():
        if found.ndim != 3 or found.shape[:2] != labels.shape:
            raise ValueError(f"{name}: logits {found.shape} do not fit labels {labels.shape} [case, step]")
    return Predictions(
        index=np.asarray(index, dtype=np.int32)[present],
        labels=labels[present],
        logits={name: found[present] for name, found in logits.items()},
    )
