"""Baselines without a picture: naive Bayes by hand, and the choice between them on validation cases."""

import numpy as np
import pytest

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.calibration import fit_mixture
from stepcot_jax.evaluation.counting import (
    Counting,
    NaiveBayes,
    PriorReader,
    choose_counting,
    correction_curve,
    describe_corrections,
    fit_joints,
    measure_corrections,
)
from stepcot_jax.evaluation.interventions import as_distributions, look_ahead
from stepcot_jax.evaluation.joint import learn_tree
from stepcot_jax.evaluation.joint_fit import read_written_back
from stepcot_jax.evaluation.predictions import Predictions, softmax

CHAIN = Chain((Step("A", "A?", ("one", "two")), Step("B", "B?", ("up", "down", "off")), Step("C", "C?", ("yes", "no"))))
SIZES = CHAIN.answers_per_step
RNG = np.random.default_rng(0)


def draw(num_cases, follow=0.9):
    """C is decided by A in most cases, and by B in none."""
    first, second = RNG.integers(0, 2, num_cases), RNG.integers(0, 3, num_cases)
    third = np.where(RNG.random(num_cases) < follow, first, 1 - first)
    return np.stack([first, second, third], axis=1).astype(np.int32)


def draw_parity(num_cases):
    """C is A, or not A where B is up: neither alone says anything of it."""
    labels = draw(num_cases)
    labels[:, 1] = RNG.integers(0, 2, num_cases)
    labels[:, 2] = labels[:, 0] ^ labels[:, 1]
    return labels


def share(labels, asked, of, step):
    """P(answer of a step | answer `of` to the asked one), smoothed as the module says."""
    known = labels[(labels[:, asked] == of) & (labels[:, step] >= 0), step]
    shares = np.bincount(labels[labels[:, step] >= 0, step], minlength=SIZES[step]) + 1
    return (np.bincount(known, minlength=SIZES[step]) + 2 * shares / shares.sum()) / (len(known) + 2)


def test_naive_bayes_is_the_product_by_hand():
    labels = draw(300)
    labels[:20, 1] = NOT_ANNOTATED
    given = np.zeros((1, 4, 3, 3), np.float32)
    given[0, 1:, 0, 1], given[0, 2:, 1, 2], given[0, 3, 0] = 1, 1, (0.7, 0.3, 0)
    read = NaiveBayes(labels, CHAIN)(given)[0, :, 2]
    prior = (np.bincount(labels[:, 2]) + 1) / (len(labels) + 2)
    of_first, of_second = (np.stack([share(labels, 2, of, step) for of in range(2)]) for step in (0, 1))
    likelihoods = [
        np.ones(2), of_first[:, 1], of_first[:, 1] * of_second[:, 2], (of_first @ [0.7, 0.3]) * of_second[:, 2]
    ]  # fmt: skip
    for found, likelihood in zip(read, likelihoods, strict=True):
        np.testing.assert_allclose(found[:2], prior * likelihood / (prior * likelihood).sum())
        assert found[2] == 0
    assert read[1, 1] == pytest.approx(0.9, abs=0.05)
    pairs = look_ahead(NaiveBayes(labels, CHAIN), given[0, :1], CHAIN)
    np.testing.assert_allclose(pairs[0][0], of_first.T * prior)
    own = RNG.dirichlet((1, 1), 4)
    both = NaiveBayes(labels, CHAIN).beside(own)
    for case, (found, likelihood) in enumerate(zip(both(given)[0, :, 2, :2], likelihoods, strict=True)):
        np.testing.assert_allclose(found, own[case] * likelihood / (own[case] * likelihood).sum())
    np.testing.assert_array_equal(both(given)[0, :, :2], NaiveBayes(labels, CHAIN)(given)[0, :, :2])
    ahead = look_ahead(NaiveBayes(labels, CHAIN).beside(own[:1]), given[0, :1], CHAIN)
    np.testing.assert_allclose(ahead[0][0], of_first.T * own[0])


def test_the_baseline_is_the_one_that_is_right_more_often_on_validation():
    simple, parity = draw(3000), draw_parity(3000)
    for training, validation, expected in (
        (parity, draw_parity(400), "joint model"),
        (simple, draw(400), "naive Bayes"),
    ):
        tree = learn_tree(training, SIZES)
        found = choose_counting(tree, training, validation, CHAIN)
        assert found.name == expected
    curve = correction_curve(PriorReader(learn_tree(parity, SIZES)), draw_parity(400), CHAIN)
    assert curve[2] == 1
    assert curve[0] < 0.6
    assert np.isnan(correction_curve(PriorReader(tree), np.full((3, 3), NOT_ANNOTATED), CHAIN)).all()


def test_joint_readings_and_the_baseline_are_measured_on_the_same_cases():
    training, labels = draw(2000, follow=0.7), draw(500, follow=0.7)
    logits = np.where(np.arange(3) < np.array(SIZES)[:, None], 0.0, -1e9) + np.zeros((500, 3, 3))
    told = np.where(RNG.random(500) < 0.8, labels[:, 2], 1 - labels[:, 2])
    logits[:, 2] += 1.4 * as_distributions(told[:, None], CHAIN)[:, 0]
    predictions = Predictions(np.arange(500), labels, {"student": logits.astype(np.float32)})
    tree = learn_tree(training, SIZES)
    written = read_written_back(lambda given: logits + np.zeros(given.shape), labels, SIZES)
    joint = fit_joints(tree, predictions, {"student": written}, CHAIN)["student"]
    assert joint.conflict_limit is not None
    assert len(joint.exponents) == 3
    read = joint.join(logits, lambda given: logits + np.zeros(given.shape))
    counting = Counting("naive Bayes", *[NaiveBayes(training, CHAIN)] * 2)
    found = measure_corrections({"student": (read, softmax(logits[:, 2, :2]))}, labels, counting, CHAIN)
    own, random, bayes, without = found["curves"].values()
    assert own[0] == pytest.approx((told == labels[:, 2]).mean())
    assert own[1] > without[1] > without[0]
    assert (random[0], random[-1], bayes[0]) == (own[0], own[-1], own[0])
    first, *lines = describe_corrections(found, CHAIN)
    assert first == "C right after 0, 1, ... true answers (%):"
    for line, curve in zip(lines, (own, random, bayes, without), strict=True):
        assert line.endswith(f"  {' '.join(f'{100 * share:.1f}' for share in curve)}")
    names = ["student, joint reading", "student, joint reading, random questions", "student, own C x naive Bayes"]
    assert list(found["curves"]) == [*names, "naive Bayes without the picture"]
    assert describe_corrections(measure_corrections({}, labels, counting, CHAIN), CHAIN) == []


def test_readings_that_are_sure_and_wrong_get_two_temperatures_beside_nothing_given_alone():
    labels = draw(1000)
    logits = np.where(np.arange(3) < np.array(SIZES)[:, None], 0.0, -1e9) + np.zeros((1000, 3, 3))
    sure = RNG.random(1000) < 0.5
    wrong = RNG.random(1000) < np.where(sure, 0.1, 0.15)
    told = np.where(wrong, 1 - labels[:, 2], labels[:, 2])
    logits[:, 2] += np.where(sure, 9.0, 2.0)[:, None] * as_distributions(told[:, None], CHAIN)[:, 0]
    logits = logits.astype(np.float32)
    predictions = Predictions(np.arange(1000), labels, {"student": logits})
    written = read_written_back(lambda given: logits + given, labels, SIZES)
    joint = fit_joints(learn_tree(draw(500), SIZES), predictions, {"student": written}, CHAIN)["student"]
    assert joint.mixtures[2] == fit_mixture(logits[:, 2, :2].astype(np.float64), labels[:, 2])
    assert joint.mixtures[2][2] > 0
    one = [np.log(softmax(logits[:, step, :size] / joint.temperatures[step])) for step, size in enumerate(SIZES)]
    for found, expected in zip(joint.scale(logits), one, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    calibrated = np.exp(joint.calibrate(logits)[2]).max(axis=1)
    right = labels[:, 2] == told
    for group in (sure, ~sure):
        assert calibrated[group].mean() == pytest.approx(right[group].mean(), abs=0.03)
    assert np.exp(one[2]).max(axis=1)[sure].mean() > right[sure].mean() + 0.04
