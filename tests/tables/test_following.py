"""Following given answers, on networks that are known in closed form."""

import numpy as np
import pytest

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.consistency import count_pairs, make_rules
from stepcot_jax.evaluation.interventions import as_probabilities
from stepcot_jax.tools.tables import following

CHAIN = Chain((Step("A", "A?", ("one", "two")), Step("B", "B?", ("up", "down", "off")), Step("C", "C?", ("yes", "no"))))
LABELS = np.random.default_rng(0).integers(0, 2, (400, 3)).astype(np.int32)
LABELS[:, 2] = LABELS[:, 0]  # A decides C
RULES = make_rules(CHAIN, counts=count_pairs(LABELS, CHAIN))


def logits_of(given):
    """Logits of a network that says the first answer everywhere, and C as A is given."""
    logits = np.where(np.arange(3) < np.array([[2], [3], [2]]), 0.0, -1e9) + np.zeros(given.shape)
    logits[..., 0] += 0.1
    logits[..., 2, :] += 3 * given[..., 0, :]
    return logits


def test_following_is_measured_with_the_answers_it_names():
    found = following.follow(as_probabilities(logits_of), LABELS, CHAIN, RULES, seed=0)
    none, true, hesitant, noisy, noisier, foreign = found.right.mean(axis=1)
    assert none == (LABELS[:, 2] == 0).mean()
    assert true == hesitant == 1
    assert abs(noisy - (1 - following.NOISE[0])) < 0.06
    assert abs(noisier - (1 - following.NOISE[1])) < 0.07
    assert foreign < 0.65
    # The network itself always says the first answer: it contradicts every given second one.
    assert found.shares["contradicts true answers"] == (LABELS[:, :2] == 1).mean()
    assert 0.3 < found.shares["contradicts wrong answers"] < 0.7
    # Given A, the network is right with probability sigmoid(3 +- 0.1), always.
    sure = 1 / (1 + np.exp(-3 + 0.1 * np.array([-1, 1])))
    expected = 1 - sure[LABELS[:, 0]].mean()
    assert found.shares["calibration error, all true"] == pytest.approx(expected, abs=0.005)


def test_rules_are_read_on_chains_with_the_given_answers_in_place():
    assert not RULES.allowed[0, 2][0, 1]  # no training chain has it
    stubborn = as_probabilities(lambda given: logits_of(np.zeros_like(given)))
    found = following.follow(stubborn, LABELS, CHAIN, RULES, seed=0)
    assert found.shares["breaks rules, none given"] == 0  # all answers are the first
    assert found.shares["breaks rules, all true"] == (LABELS[:, 0] == 1).mean()
    assert found.shares["breaks rules, true chains"] == 0


def test_an_unannotated_answer_is_neither_given_nor_counted():
    labels = LABELS.copy()
    labels[:100, 0] = NOT_ANNOTATED
    labels[300:, 2] = NOT_ANNOTATED
    seen = []

    def read(given):
        seen.append(given)
        return as_probabilities(logits_of)(given)

    found = following.follow(read, labels, CHAIN, RULES, seed=0)
    assert not seen[0][1:4, :100, 0].any()
    assert (seen[0][:, :, 2] == 0).all()
    np.testing.assert_allclose(seen[0][2, 100:, 0].sum(axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(seen[0][2, 100:, 0, 2], 0)
    assert np.isnan(found.right[:, 300:]).all()
    assert not np.isnan(found.right[:, :300]).any()
