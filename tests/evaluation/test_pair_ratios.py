"""Log-ratios of pairs of answers against counts by hand, and weights that the likelihood chooses."""

import numpy as np
import pytest
from scipy.special import log_softmax

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation import consistency as tested
from stepcot_jax.evaluation.interventions import as_distributions

CHAIN = Chain((Step("A", "A?", ("one", "two")), Step("B", "B?", ("up", "down", "off")), Step("C", "C?", ("yes", "no"))))
RNG = np.random.default_rng(0)


def draw(num_cases, follow=0.9):
    """Labels in which C is decided by A, and B by nothing."""
    first, second = RNG.integers(0, 2, num_cases), RNG.integers(0, 3, num_cases)
    third = np.where(RNG.random(num_cases) < follow, first, 1 - first)
    return np.stack([first, second, third], axis=1).astype(np.int32)


def count(labels):
    return tested.count_pairs(labels, CHAIN)


def fit(read, train, labels, temperatures=(1.0, 1.0, 1.0)):
    logits = read(tested.true_prefixes(labels, CHAIN))
    return tested.fit_pair_ratios(logits, counts=count(train), labels=labels, temperatures=temperatures, chain=CHAIN)


def test_ratios_are_those_of_counted_answers():
    labels = np.array([[0, 0, 0], [0, 1, 0], [1, 1, 1], [1, NOT_ANNOTATED, 1], [NOT_ANNOTATED, 2, 0]], np.int32)
    ratios = tested.make_ratios(count(labels), CHAIN)
    # A and C: four cases, two with each pair of equal answers; shares with one case more for each answer of C.
    shares = np.array([3, 3]) / 6
    given = (np.array([[2, 0], [0, 2]]) + 2 * shares) / (2 + 2)
    np.testing.assert_allclose(ratios[0, :2, 2, :2], np.log(given / shares))
    assert (ratios[2] == 0).all()
    assert (ratios[1, :, 0] == 0).all()
    assert (ratios[0, 2] == 0).all()


def network(given):
    """A network that knows nothing and ignores what is given."""
    return np.zeros(given.shape, np.float32) + np.where(np.arange(3) < np.array([[2], [3], [2]]), 0.0, -1e9)


def test_weights_make_an_ignorant_network_follow_what_was_counted():
    labels = draw(4000)
    found = fit(network, draw(20_000), labels)
    assert found.weights[2] == pytest.approx(1.0, abs=0.1)  # one informative answer is counted once
    read = found.follow(network)
    given = as_distributions(np.where(np.arange(3) < 2, labels, -1), CHAIN)
    answers = read(given)[:, 2].argmax(axis=1)
    assert (answers == labels[:, 0]).all()
    np.testing.assert_array_equal(read(np.zeros_like(given)), network(given))


def test_double_counting_is_mended_by_the_weight():
    # B repeats A: both say the same of C, which naive Bayes would count twice.
    labels, train = draw(6000), draw(20_000)
    labels[:, 1], train[:, 1] = labels[:, 0], train[:, 0]
    found = fit(network, train, labels)
    assert 0.5 < found.weights[2] < 0.85
    given = as_distributions(np.where(np.arange(3) < 2, labels, -1), CHAIN)

    def loss(weight):
        read = tested.PairRatios(found.ratios, (0.0, 0.0, weight)).follow(network)
        return -log_softmax(read(given)[:, 2], axis=-1)[np.arange(len(labels)), labels[:, 2]].mean()

    assert loss(found.weights[2]) < loss(1.0)


def test_a_temperature_scales_the_weight_and_soft_answers_give_mean_ratios():
    labels, train = draw(4000), draw(20_000)
    plain, scaled = fit(network, train, labels), fit(network, train, labels, (1.0, 1.0, 3.0))
    assert scaled.weights[2] == pytest.approx(3 * plain.weights[2], rel=0.01)
    certain = as_distributions(np.array([[0, -1, -1], [1, -1, -1]]), CHAIN)
    soft = 0.7 * certain[:1] + 0.3 * certain[1:]
    np.testing.assert_allclose(plain.of(soft)[0], 0.7 * plain.of(certain)[0] + 0.3 * plain.of(certain)[1], rtol=1e-6)


def test_counting_without_a_picture_is_naive_bayes():
    """The posterior by hand: prior times the likelihood of each given answer, smoothed as the ratios are."""
    labels = draw(300)
    labels[:20, 1] = NOT_ANNOTATED
    given = np.zeros((1, 4, 3, 3), np.float32)
    given[0, 1:, 0, 1], given[0, 2:, 1, 2], given[0, 3, 0] = 1, 1, (0.5, 0.5, 0)
    logits = tested.count_answers(labels, CHAIN)(given)
    prior = (np.bincount(labels[:, 2]) + 1) / (len(labels) + 2)
    ratios = tested.make_ratios(count(labels), CHAIN)
    expected = [np.log(prior)]
    expected.append(expected[0] + ratios[0, 1, 2, :2])
    expected.append(expected[1] + ratios[1, 2, 2, :2])
    expected.append(expected[0] + ratios[1, 2, 2, :2] + ratios[0, :2, 2, :2].mean(axis=0))
    np.testing.assert_allclose(logits[0, :, 2, :2], expected)
    assert (np.exp(log_softmax(logits, axis=-1))[0, :, 2, 2] == 0).all()
    # A's answer, which decides C in 90 of 100 cases, decides here too.
    assert np.exp(log_softmax(logits[0, 1, 2]))[1] == pytest.approx(0.9, abs=0.05)
