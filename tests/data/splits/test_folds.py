"""Folds of a cross-validation: each case a test case once, patients on one side, the rest dealt to train and val."""

import numpy as np
import pytest

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.splits.making import list_folds, make_fold
from stepcot_jax.record import Record


def make_cases(num_patients=60, seed=0):
    rng, found = np.random.default_rng(seed), []
    for patient in range(num_patients):
        for image in range(int(rng.integers(1, 5))):
            answers = (0, int(rng.choice([0, 1, NOT_ANNOTATED], p=[0.5, 0.2, 0.3])))
            name = f"images/{patient}_{image}.png"
            found.append(Record(patient=f"P{patient}", image=name, answers=answers, reasoning=("", "")))
    return found


CASES = make_cases()


def make_all(cases=CASES, num_folds=5, **arguments):
    arguments = {"seed": 0, **arguments}
    return [make_fold(cases, fold=fold, **arguments) for fold in list_folds(num_folds)]


@pytest.mark.parametrize("num_folds", [2, 5])
def test_every_case_is_a_test_case_once_and_in_one_split_of_each_fold(num_folds):
    folds = make_all(num_folds=num_folds)
    assert sorted(index for splits in folds for index in splits.test) == list(range(len(CASES)))
    for splits in folds:
        assert sorted(splits.train + splits.val + splits.test) == list(range(len(CASES)))
        patients = [{CASES[index].patient for index in indices} for indices in splits.by_name().values()]
        assert sum(map(len, patients)) == len(set.union(*patients))


def test_folds_are_of_one_size_depend_on_the_seed_and_keep_joined_patients():
    folds = make_all()
    sizes = [len(splits.test) for splits in folds]
    assert max(sizes) - min(sizes) <= 4  # images of the largest patient
    for label in (0, 1):
        counts = [sum(CASES[index].answers[-1] == label for index in splits.test) for splits in folds]
        assert max(counts) - min(counts) <= 6
    order = np.random.default_rng(1).permutation(len(CASES))
    shuffled = [CASES[index] for index in order]

    def images(cases, folds):
        return [[{cases[i].image for i in own} for own in each.by_name().values()] for each in folds]

    assert images(shuffled, make_all(shuffled)) == images(CASES, make_all())
    assert images(CASES, make_all(seed=1)) != images(CASES, make_all())
    first = {case.patient: index for index, case in reversed(list(enumerate(CASES)))}
    pair = (first["P1"], first["P2"])
    for splits in make_all(joined=[pair]):
        split_of = {index: name for name, indices in splits.by_name().items() for index in indices}
        assert split_of[pair[0]] == split_of[pair[1]]
