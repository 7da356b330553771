"""How far earlier answers alone tell a later one, without any image: what there is for a memory to pass on."""

import collections
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from stepcot_jax.chain import NOT_ANNOTATED


def predict_from_answers(
    *, train: Int[np.ndarray, "case step"], asked: Int[np.ndarray, "case step"], step: int
) -> Int[np.ndarray, " case"]:
    """The most frequent answer of training cases whose earlier answers are all the same.

    Where no training case has the same earlier answers, the earliest of them is left out, and so on; of equally
    frequent answers the first is taken. A missing answer counts as an answer of its own.

    Args:
      train: labels to count.
      asked: labels of the cases to answer for; those before `step` are looked at, no others.
      step: position of the step.

    Returns:
      A label for each case, `NOT_ANNOTATED` if no training case has the step annotated.

    >>> train = np.array([[0, 1], [0, 1], [1, 0], [1, 2], [1, 2]])
    >>> predict_from_answers(train=train, asked=np.array([[0, 0], [1, 0], [3, 0]]), step=1).tolist()
    [1, 2, 1]
    """
    known = train[train[:, step] != NOT_ANNOTATED]
    tables: list[dict[tuple[int, ...], int]] = []
    for start in range(step + 1):
        counts: dict[tuple[int, ...], collections.Counter[int]] = collections.defaultdict(collections.Counter)
        for row in known.tolist():
            counts[tuple(row[start:step])][row[step]] += 1
        tables.append({earlier: _most_frequent(found) for earlier, found in counts.items()})
    answers = []
    for row in asked.tolist():
        found = (table.get(tuple(row[start:step])) for start, table in enumerate(tables))
        answers.append(next((answer for answer in found if answer is not None), NOT_ANNOTATED))
    return np.array(answers, np.int32)


def _most_frequent(counts: Mapping[int, int]) -> int:
    """Of several the first."""
    return min(counts, key=lambda answer: (-counts[answer], answer))


def accuracies_from_answers(*, train: Int[np.ndarray, "case step"], asked: Int[np.ndarray, "case step"]) -> list[float]:
    """The accuracy of `predict_from_answers` at each step over the annotated cases; NaN where there are none."""
    shares = []
    for step in range(train.shape[1]):
        truth = asked[:, step]
        annotated = truth != NOT_ANNOTATED
        answers = predict_from_answers(train=train, asked=asked, step=step)
        shares.append(float((answers == truth)[annotated].mean()) if annotated.any() else float("nan"))
    return shares
