"""Rivals that benchmarks print, by hand."""

import types

import numpy as np
import pytest
from structured_folder import make_tree

from benchmarks.small_rivals import classify, read_runs, shrink
from benchmarks.structured_reports import vote
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.evaluation.predictions import FACTS, Predictions, SplitPredictions, write_predictions
from stepcot_jax.evaluation.structured_reports import answer_tree
from stepcot_jax.host.errors import BadInput


def test_a_thumbnail_has_the_means_of_equal_parts():
    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3))
    np.testing.assert_allclose(shrink(picture), picture.reshape(8, 8, 8, 8, 3).mean(axis=(1, 3, 4)).ravel())


def test_a_regression_learns_from_labelled_training_cases_alone():
    generator = np.random.default_rng(0)
    labels = np.arange(60) % 2
    columns = generator.normal(0, 0.1, (60, 3)) + labels[:, None]
    labels[:10], columns[:10] = -100, 1e3
    splits = Splits(tuple(range(30)), tuple(range(30, 40)), tuple(range(40, 60)))
    assert classify(columns, labels, splits).tolist() == labels[40:].tolist()


def test_a_vote_counts_the_answers_of_the_nearest_training_reports():
    n = -100
    # signs, opacity/1, where (apex, base, unspecified), side, opacity/2, abdomen
    labels = np.array(
        [[1, n, n, n, n, n, n, 1], [0, 0, 0, 1, 1, 2, 1, 1], [0, 0, 1, 0, 1, 0, 1, 1], [1, n, n, n, n, n, n, 0]]
    )
    features = np.array([[-1.0, 0.0], [1.0, 0.1], [3.0, 0.9], [2.0, 0.0]])  # by cosine: 1, 2, 0 from the last
    data = types.SimpleNamespace(
        chain=make_tree(), splits=types.SimpleNamespace(train=(0, 1, 2)), features=features, labels=labels
    )
    rows = np.array([3])
    assert answer_tree(vote(data, rows, number=1), data.chain)[0].tolist() == labels[1].tolist()
    both = vote(data, rows, number=2)
    np.testing.assert_allclose(np.exp(both[0, [0, 2, 5]]), [[2, 0, 0], [1, 1, 0], [1, 0, 1]], atol=1e-5)
    assert answer_tree(vote(data, rows, number=3), data.chain)[0, 0] == 0  # two of three say yes


def test_runs_that_leave_cases_untested_are_refused(tmp_path):
    labels = np.zeros((3, DEFAULT_CHAIN.num_steps), int)
    names = tuple(f"{index}.png" for index in range(3))
    dataset = types.SimpleNamespace(chain=DEFAULT_CHAIN, labels=labels, cases=types.SimpleNamespace(image_paths=names))
    runs = [tmp_path / str(fold) for fold in range(3)]
    for case, run in enumerate(runs):
        (run / "predictions").mkdir(parents=True)
        logits = {name: np.eye(9)[np.full((1, 7), case % 2)].astype(np.float32) for name in ("teacher", "student")}
        facts = {**dict.fromkeys(FACTS, np.array([""])), "case_id": np.array([names[case]])}
        split = SplitPredictions(Predictions(np.array([0]), labels[:1], logits), facts)
        write_predictions(run / "predictions" / "test.npz", split, DEFAULT_CHAIN)
    assert read_runs(runs, dataset, [0, 6])["teacher"].argmax(axis=-1).tolist() == [[[0, 0], [1, 1], [0, 0]]]
    with pytest.raises(BadInput, match="a case is tested by 0 to 1 runs"):
        read_runs(runs[::2], dataset, [0, 6])
