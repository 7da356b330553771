"""What the training cases teach: a nested part of them, and answers before the last step withheld or shuffled.

Validation and test cases keep their labels. Everything is a function of the split's seed, so that runs with another
`config.seed` learn from the same labels.
"""

import dataclasses
import hashlib
from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.host.errors import BadInput

# Separate streams of random numbers.
_SHUFFLE, _CHAINS, _ANSWERS = 11, 12, 13


def keep_training_cases(dataset: Dataset, num_cases: int, *, seed: int) -> Dataset:
    """Return the dataset with fewer training cases: those of the first patients in an order of the seed's.

    The part holds whole patients, as few as have `num_cases` cases, so it can have some cases more. A smaller part of
    the same seed is inside every larger one. Cases left out are in no split.

    Raises:
      BadInput: the training split has fewer cases.
    """
    train, patients = dataset.splits.train, dataset.cases.patient_ids
    if num_cases > len(train):
        raise BadInput(f"config.data.num_train: {num_cases:,} of {len(train):,} training cases; expected at most those")
    of_patient: dict[str, list[int]] = {}
    for index in train:
        of_patient.setdefault(patients[index], []).append(index)
    kept: list[int] = []
    for patient in sorted(of_patient, key=lambda name: hashlib.sha256(f"{seed}:train:{name}".encode()).digest()):
        if len(kept) >= num_cases:
            break
        kept += of_patient[patient]
    source = f"{dataset.splits_source}; {len(kept)} of {len(train)} training cases (config.data.num_train)"
    splits = dataclasses.replace(dataset.splits, train=tuple(sorted(kept)))
    return dataclasses.replace(dataset, splits=splits, splits_source=source)


def shuffle_chains(dataset: Dataset, *, seed: int) -> Dataset:
    """Return the dataset with the answers before the last permuted among training cases of one last answer.

    Whole chains move, so that the training labels keep every count, and the joint distribution of the steps given the
    last answer: only what the steps say of the picture beyond the last answer is lost. No case keeps its own chain,
    unless it is the only one of its last answer.
    """
    last = dataset.cases.labels[list(dataset.splits.train), -1]
    order, rng = np.arange(len(last)), np.random.default_rng((_SHUFFLE, seed))
    for answer in np.unique(last):
        rows = np.flatnonzero(last == answer)
        drawn = rng.permutation(rows)
        order[drawn] = np.roll(drawn, 1)
    return _change(dataset, lambda labels: labels[order])


def withhold(dataset: Dataset, *, chains: float, answers: float, seed: int) -> Dataset:
    """Return the dataset without some of the training labels before the last step.

    Args:
      dataset: of a run.
      chains: share of the training cases, 0 to 1, of which only the last step's label stays.
      answers: share of the annotated single answers before the last step, 0 to 1, that are withheld at random.
      seed: of the draws; cases and answers of a smaller share are among those of a larger one.
    """
    there = dataset.cases.labels[list(dataset.splits.train), :-1] >= 0
    hidden = np.zeros(there.shape, bool)
    hidden[_draw(len(there), chains, (_CHAINS, seed))] = True
    hidden.reshape(-1)[np.flatnonzero(there)[_draw(int(there.sum()), answers, (_ANSWERS, seed))]] = True
    return _change(dataset, lambda before: np.where(hidden, NOT_ANNOTATED, before))


def _draw(number: int, share: float, seed: tuple[int, int]) -> Int[np.ndarray, " drawn"]:
    return np.random.default_rng(seed).permutation(number)[: round(share * number)]


def _change(dataset: Dataset, change: Callable[[np.ndarray], np.ndarray]) -> Dataset:
    """Return the dataset with other training labels before the last step, certain and uncertain ones."""
    train, labels, uncertain = list(dataset.splits.train), dataset.cases.labels.copy(), dataset.cases.uncertain.copy()
    for table in (labels, uncertain):
        table[train, :-1] = change(table[train, :-1])
    return dataclasses.replace(dataset, cases=dataset.cases.with_labels(labels, uncertain))
