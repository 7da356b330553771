"""What tables count, weigh and choose does not depend on test labels."""

import dataclasses

import numpy as np
from tables.finished_cells import LABELS, make_split
from tables.test_folds import folds_of, with_labels

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.calibration import Calibration
from stepcot_jax.run.inputs import load_cases
from stepcot_jax.tools.tables.correction_tables import NETWORKS, weigh_pairs
from stepcot_jax.tools.tables.effect_table import EarlierAnswers
from stepcot_jax.tools.tables.folds_table import CONSTANT, pool_folds


def with_noise(dataset, split):
    """The dataset with random answers to the cases of a split."""
    labels, rng = dataset.labels.copy(), np.random.default_rng(1)
    members = list(getattr(dataset.splits, split))
    labels[members] = np.stack([rng.integers(0, n, len(members)) for n in dataset.chain.answers_per_step], axis=1)
    return dataclasses.replace(dataset, cases=dataset.cases.with_labels(labels))


def load():
    return load_cases("quickstart", **{"phantom.num_cases": 80, "phantom.image_size": 32})


def test_earlier_answers_are_counted_among_training_cases():
    dataset = load()
    counted = EarlierAnswers.count(dataset)
    assert counted == EarlierAnswers.count(with_noise(with_noise(dataset, "test"), "val"))
    assert counted == EarlierAnswers.count(dataset.hold_out()[0])
    assert counted != EarlierAnswers.count(with_noise(dataset, "train"))


def test_pairs_are_counted_among_training_cases_and_weighed_on_validation_cases():
    dataset, rng = load(), np.random.default_rng(2)
    chain = dataset.chain
    exists = np.arange(max(chain.answers_per_step)) < np.array(chain.answers_per_step)[:, None]
    weights = rng.normal(size=exists.shape)
    of_each = [dict.fromkeys(NETWORKS, (number,) * chain.num_steps) for number in (1.0, 0.5)]
    calibration = Calibration(0.9, *of_each)

    def read(given):
        return np.where(exists, weights + given.sum(axis=-2, keepdims=True), -1e9)

    def weigh(data, labels=None):
        labels = data.labels[list(data.splits.val)] if labels is None else labels
        return weigh_pairs(data, dict.fromkeys(NETWORKS, (read, labels)), calibration, chain)

    given = np.zeros((3, *exists.shape), np.float32)
    given[:, 0, 1] = 1
    found = weigh(dataset)
    for other in (weigh(with_noise(dataset, "test")), weigh(dataset.hold_out()[0])):
        assert all(found.pairs[name].weights == other.pairs[name].weights for name in NETWORKS)
        np.testing.assert_array_equal(found.counted(given), other.counted(given))
        assert found.rules.notes == other.rules.notes
    assert not np.array_equal(found.counted(given), weigh(with_noise(dataset, "train")).counted(given))
    of_noise = weigh(dataset, rng.permutation(dataset.labels)[:12])
    assert found.pairs["student"].weights != of_noise.pairs["student"].weights


def test_the_constant_of_a_fold_does_not_depend_on_its_test_cases():
    folds = folds_of(with_labels(make_split({"teacher": 0.6}), LABELS))
    pooled, first = pool_folds(folds, ["teacher"]), next(iter(folds))
    noisy = np.random.default_rng(3).permutation(folds[first].predictions.labels)
    noisy[: len(noisy) // 2] = NOT_ANNOTATED
    changed = pool_folds({**folds, first: with_labels(folds[first], noisy)}, ["teacher"])
    before, after = (each.predictions.logits[CONSTANT][: len(noisy)] for each in (pooled, changed))
    np.testing.assert_array_equal(before, after)
