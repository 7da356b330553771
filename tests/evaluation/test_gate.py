import dataclasses

import numpy as np
import pytest
from refusals import refuse
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import LedoitWolf

from stepcot_jax.evaluation.gate import Gate, fit_gate, shrink_covariance
from stepcot_jax.host.own_folder import load_arrays, save_arrays


def draw(num_cases, *, seed, shift=0.0):
    generator = np.random.default_rng(seed)
    mixed = generator.standard_normal((num_cases, 5)) @ np.random.default_rng(9).standard_normal((5, 5))
    spread = np.array([1e-3, 1.0, 50.0, 1.0, 2.0])
    return np.column_stack([(mixed + shift) * spread, np.zeros(num_cases)]).astype(np.float32)


@pytest.fixture(scope="module")
def gate():
    return fit_gate(draw(400, seed=0), draw(199, seed=1), false_alarms=0.05)


def test_the_score_is_the_shrunk_mahalanobis_distance_over_the_limit(gate):
    training, others = draw(400, seed=0).astype(float)[:, :5], draw(7, seed=2, shift=1.0)
    scaled = training.std(axis=0)
    fitted = LedoitWolf().fit(np.column_stack([training / scaled, np.zeros(400)]))
    rows = others[:, :5].astype(float) / scaled
    expected = [mahalanobis(row, fitted.location_[:5], fitted.precision_[:5, :5]) for row in rows]
    np.testing.assert_allclose(gate.scores(others) * gate.limit, expected, rtol=1e-4)


def test_the_limit_leaves_the_wanted_share_outside_and_a_still_channel_counts_once_it_moves(gate):
    scores = gate.scores(draw(199, seed=1))
    assert (scores > 1).sum() == 9  # the 190th of 199 is the limit
    assert np.sort(scores)[189] == pytest.approx(1)
    fresh = gate.scores(draw(20_000, seed=3))
    assert 0.02 < (fresh > 1).mean() < 0.09
    assert (gate.scores(draw(200, seed=4, shift=8.0)) > 1).mean() > 0.95
    still = draw(3, seed=5)
    moved = still.copy()
    moved[:, 5] = 500.0
    assert (gate.scores(moved) > gate.scores(still)).all()


@pytest.mark.parametrize("shape", [(400, 5), (30, 64), (50, 1)])
def test_the_covariance_is_that_of_scikit_learn(shape):
    for seed in range(20):
        generator = np.random.default_rng(seed)
        rows = generator.standard_normal(shape) @ generator.standard_normal((shape[1], shape[1]))
        rows /= rows.std(axis=0)
        # 3e-16 where this was written; another processor may add up in another order.
        np.testing.assert_allclose(shrink_covariance(rows), LedoitWolf().fit(rows).covariance_, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("num_training", "num_validation", "is_fitted"), [(50, 18, 0), (50, 19, 1), (1, 19, 0)])
def test_too_few_images_give_no_gate(num_training, num_validation, is_fitted):
    gate = fit_gate(draw(num_training, seed=0), draw(num_validation, seed=1), false_alarms=0.05)
    assert (gate is not None) == is_fitted
    assert fit_gate(np.ones((30, 4)), np.ones((30, 4)), false_alarms=0.05) is None


def test_files(gate, tmp_path):
    path = tmp_path / "gate.npz"
    assert load_arrays(path, "student", Gate) is None
    save_arrays(path, {"student": gate})
    found = load_arrays(path, "student", Gate)
    for field in dataclasses.fields(gate):
        np.testing.assert_array_equal(getattr(found, field.name), getattr(gate, field.name))
    assert load_arrays(path, "teacher", Gate) is None


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("mean", np.full(5, np.nan, np.float32), "are not finite"),
        ("whitening", np.zeros((3, 3), np.float32), "do not fit each other"),
        ("limit", np.array(0.0), r"> 0\.0"),
        ("limit", np.array([object()]), "cannot be read"),
    ],
)
def test_a_damaged_file_is_refused(gate, tmp_path, part, value, words):
    path = tmp_path / "gate.npz"
    save_arrays(path, {"student": gate})
    with np.load(path) as found:
        arrays = dict(found)
    arrays[f"student/{part}"] = value
    np.savez(path, **arrays)
    refuse(words, load_arrays, path, "student", Gate)
