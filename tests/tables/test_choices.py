import dataclasses

import numpy as np
import pytest

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.dataset import TestSplitClosed
from stepcot_jax.run.inputs import Inputs, load_cases
from stepcot_jax.tools.tables.correction_tables import NETWORKS, fit_readers


def with_noise(dataset, split):
    labels, rng = dataset.labels.copy(), np.random.default_rng(1)
    members = list(getattr(dataset.splits, split))
    labels[members] = np.stack([rng.integers(0, n, len(members)) for n in dataset.chain.answers_per_step], axis=1)
    return dataclasses.replace(dataset, cases=dataset.cases.with_labels(labels, dataset.cases.uncertain))


def load():
    return load_cases("tables_phantom", **{"phantom.num_cases": 80, "phantom.image_size": 32})


def test_what_chooses_sees_no_test_labels():
    inputs = Inputs(load(), None, None, lambda batch: batch)
    labels = inputs.dataset.labels
    test = list(inputs.dataset.splits.test)
    seen, opened = inputs.choose_then_open(lambda view: view.dataset)
    with pytest.raises(TestSplitClosed):
        seen.pixels[test[0]]
    assert (seen.labels[test] == NOT_ANNOTATED).all()
    np.testing.assert_array_equal(opened.dataset.labels, labels)


def test_joint_models_are_learned_from_training_labels_and_fitted_on_validation_cases():
    dataset, rng = load(), np.random.default_rng(2)
    chain = dataset.chain
    exists = np.arange(max(chain.answers_per_step)) < np.array(chain.answers_per_step)[:, None]
    cases = rng.normal(size=(len(dataset.splits.val), *exists.shape))

    def read(given):
        return np.where(exists, cases + given.sum(axis=-2, keepdims=True), -1e9)

    def fit(data, labels=None):
        labels = data.labels[list(data.splits.val)] if labels is None else labels
        return fit_readers(data, dict.fromkeys(NETWORKS, (read, labels)), chain)

    given = np.zeros((1, 3, *exists.shape), np.float32)
    given[:, :, 0, 1] = 1
    found = fit(dataset)
    for other in (fit(with_noise(dataset, "test")), fit(dataset.hold_out()[0])):
        assert all(found.joints[name].weights == other.joints[name].weights for name in NETWORKS)
        np.testing.assert_array_equal(found.joints["student"].tree.last, other.joints["student"].tree.last)
        np.testing.assert_array_equal(found.counting.read(given), other.counting.read(given))
    of_noise = fit(with_noise(dataset, "train"))
    assert not np.array_equal(found.joints["student"].tree.last, of_noise.joints["student"].tree.last)
    assert (
        found.joints["student"].weights
        != fit(dataset, rng.permutation(dataset.labels)[: len(cases)]).joints["student"].weights
    )
