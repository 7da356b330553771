"""Folds of a cross-validation by patient."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from stepcot_jax.data.records.cases import Case, as_table
from stepcot_jax.data.splits.split_making import PUBLISHED_FRACTIONS, deal
from stepcot_jax.data.splits.splits import Splits, check_splits

NUM_FOLDS = 5
"""Number of folds of the table `folds`."""


def list_folds(num_folds: int = NUM_FOLDS) -> list[str]:
    """Return the values of `config.data.fold` for all folds.

    >>> list_folds(3)
    ['1/3', '2/3', '3/3']
    """
    return [f"{fold}/{num_folds}" for fold in range(1, num_folds + 1)]


def make_fold(
    cases: Iterable[Case], *, fold: str, seed: int, fractions: tuple[float, ...] = PUBLISHED_FRACTIONS, joined: Any = ()
) -> Splits:
    """Make the splits of one fold of a cross-validation by patient.

    All folds of one seed come from one deal, so that every case is in the test split of exactly one fold. The other
    folds' cases are dealt to train and val, again by patient.

    Args:
      fold: the fold that is the test split, such as "2/5" for the second of five.
      fractions: shares as in `make_splits`; train and val keep their ratio, the share of test is ignored.
    """
    table = as_table(cases)
    number, num_folds = map(int, fold.split("/"))
    test = deal(table, seed=seed, fractions=(1 / num_folds,) * num_folds, joined=joined)[number - 1]
    chosen = np.ones(len(table), bool)
    chosen[list(test)] = False
    train, val, _ = fractions
    shares = (train / (train + val), val / (train + val))
    train_cases, val_cases = deal(table, seed=seed, fractions=shares, joined=joined, chosen=chosen)
    splits = Splits(train=train_cases, val=val_cases, test=test)
    check_splits(splits, table, source=f"fold {fold} made with seed {seed}")
    return splits
