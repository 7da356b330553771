import numpy as np
import pytest
from scipy.special import softmax

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.interventions import (
    POLICIES,
    Gains,
    as_distributions,
    as_probabilities,
    correct_in_turn,
    describe_reliance,
    exchange,
    expected_gains,
    look_ahead,
    measure_reliance,
)

CHAIN = Chain(
    (
        Step("A", "A?", ("a", "b")),
        Step("B", "B?", ("a", "b", "c")),
        Step("C", "C?", ("a", "b", "c")),
        Step("D", "D?", ("a", "b")),
    )
)
NUM_CASES, MOST = 40, 3
RNG = np.random.default_rng(0)
OWN = RNG.normal(size=(NUM_CASES, 4, MOST)) * 1.5
OWN[:, [0, 3], 2] = -1e9
PULL = RNG.normal(size=(4, MOST, 4, MOST)) * 2  # of an answer of one step on those of a later one
PULL[:, :, [0, 3], 2] = 0


def chain_network(given):
    """Logits of the case plus what each given earlier answer adds; step C pulls nothing."""
    pulled = PULL.copy()
    pulled[2] = 0
    logits = np.broadcast_to(OWN, given.shape).copy()
    for later in range(4):
        for earlier in range(later):
            logits[..., later, :] += given[..., earlier, :] @ pulled[earlier, :, later]
    return logits


READ = as_probabilities(chain_network)
NONE = np.zeros((NUM_CASES, 4, MOST), np.float32)
LABELS = np.stack([RNG.integers(0, len(step.options), NUM_CASES) for step in CHAIN.steps], axis=1)
ALL = np.ones(LABELS.shape, bool)


def gains_of(given, can_ask=None):
    asked = given.any(axis=-1)
    return expected_gains(look_ahead(READ, given, CHAIN), ~asked if can_ask is None else can_ask)


def test_gains_are_those_of_the_joint_distribution_of_both_answers():
    gains, before = gains_of(NONE), softmax(OWN, axis=-1)
    for position, step in enumerate(CHAIN.steps[:-1]):
        pulls = [PULL[position, answer, 3] * (position != 2) for answer in range(step.num_answers)]
        shares = before[:, position, : step.num_answers]
        joint = shares[:, :, None] * np.stack([softmax(OWN[:, 3] + pull, axis=-1) for pull in pulls], axis=1)
        alone = shares[:, :, None] * joint.sum(axis=1, keepdims=True)
        terms = np.where(joint > 0, joint * np.log(np.where(joint > 0, joint / np.where(joint > 0, alone, 1), 1)), 0)
        np.testing.assert_allclose(gains.information[:, position], terms.sum(axis=(1, 2)), atol=1e-9)
        rise = joint.max(axis=2).sum(axis=1) - joint.sum(axis=1).max(axis=1)
        np.testing.assert_allclose(gains.accuracy[:, position], rise, atol=1e-9)
    np.testing.assert_allclose(gains.information[:, 2], 0, atol=1e-9)
    assert (gains.accuracy[:, 3] == -np.inf).all()


def test_equal_accuracies_are_decided_by_information():
    accuracy = np.array([[0.1, 0.1 + 1e-12, 0.05, -np.inf], [0.0, 0.0, 0.0, -np.inf], [-np.inf] * 4])
    information = np.array([[0.2, 0.1, 0.9, -np.inf], [0.1, 0.2, 0.3, -np.inf], [-np.inf] * 4])
    gains = Gains(accuracy, information)
    assert gains.choose().tolist() == [0, 2, -1]
    assert gains.choose(costs=(4.0, 1.0, 4.0, 1.0)).tolist() == [1, 1, -1]


@pytest.mark.parametrize("policy", POLICIES)
def test_steps_are_corrected_one_by_one(policy):
    labels = LABELS.copy()
    labels[3, :2] = -1
    found, corrected = correct_in_turn(policy, READ, labels, CHAIN)
    assert found.shape == (4, NUM_CASES, 4, MOST)
    counts = corrected.sum(axis=-1)
    np.testing.assert_array_equal(np.delete(counts, 3, axis=1), np.arange(4)[:, None] * np.ones((1, NUM_CASES - 1)))
    np.testing.assert_array_equal(counts[:, 3], [0, 1, 1, 1])  # two of its steps nobody can answer
    np.testing.assert_allclose(
        found[-1], READ((as_distributions(labels, CHAIN) * (np.arange(4) < 3)[:, None])[None])[0]
    )
    if policy == "chain order":  # whatever the costs
        _, corrected = correct_in_turn(policy, READ, LABELS, CHAIN, costs=(1, 10, 1, 1))
        for count in range(4):
            np.testing.assert_array_equal(corrected[count], np.broadcast_to(np.arange(4) < count, LABELS.shape))


def test_reliance_is_the_distance_that_an_answer_moves_a_later_step():
    labels = LABELS.copy()
    labels[:5, 0] = -1
    found = measure_reliance(READ, labels, CHAIN)
    after = softmax(OWN[5:, 3] + PULL[0, labels[5:, 0], 3], axis=-1)
    expected = (np.abs(after - softmax(OWN[5:, 3], axis=-1)).sum(axis=-1) / 2).mean()
    assert found["true"]["A"]["D"] == pytest.approx(expected)
    for kind in ("own", "true", "another case's", "uniform"):
        assert found[kind]["C"]["D"] == pytest.approx(0, abs=1e-12)
        assert set(found[kind]["B"]) == {"C", "D"}
    moved = [value for own in found["true"].values() for value in own.values()]
    assert found["mean_movement"] == pytest.approx(np.mean(moved))
    (line,) = describe_reliance({"teacher": found})
    assert f"{100 * found['mean_movement']:.1f} points" in line


def test_network_that_ignores_answers_has_no_reliance_and_no_gain():
    still = as_probabilities(lambda given: np.broadcast_to(OWN, given.shape), temperatures=(1.0, 2.0, 1.0, 3.0))
    assert measure_reliance(still, LABELS, CHAIN)["mean_movement"] == 0
    gains = expected_gains(look_ahead(still, NONE, CHAIN), ALL)
    np.testing.assert_allclose((gains.accuracy[:, :3], gains.information[:, :3]), 0, atol=1e-12)
    unanswered = measure_reliance(still, np.full_like(LABELS, -1), CHAIN)
    assert (unanswered["mean_movement"], unanswered["true"]["A"]["D"]) == (None, None)
    one_step = measure_reliance(
        as_probabilities(lambda given: np.zeros(given.shape)), np.zeros((3, 1), int), Chain(CHAIN.steps[:1])
    )
    assert one_step == {"own": {}, "true": {}, "another case's": {}, "uniform": {}, "mean_movement": None}
    assert describe_reliance({"teacher": unanswered, "student": one_step}) == []


@pytest.mark.parametrize("num_cases", [2, 3, 50])
def test_exchanged_answers_are_another_cases_and_each_is_used_once(num_cases):
    labels = np.arange(num_cases)[:, None]
    for seed in range(20):
        found = exchange(labels, np.random.default_rng(seed))
        assert sorted(found[:, 0]) == list(range(num_cases))
        assert (found != labels).all()
