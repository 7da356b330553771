import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import random_labels

from stepcot_jax.run.build import make_system
from stepcot_jax.run.inputs import load_cases
from stepcot_jax.run.settings import load_settings
from stepcot_jax.systems.updates import AnswerSchedule

COUNTS = (3, 2, 4, 5)
LABELS = random_labels(0, 4000, COUNTS, missing=0.3)
KEY = jax.random.key(3)


def draw(schedule, labels=LABELS, key=KEY, first_case=0):
    return np.asarray(schedule.draw(key, labels=jnp.asarray(labels), answers_per_step=COUNTS, first_case=first_case))


def test_a_config_says_how_often_wrong_and_to_whom_answers_are_given():
    small = {"phantom.num_cases": 30, "phantom.image_size": 32, "image_encoder.image_size": 32}
    dataset = load_cases("quickstart", **small)
    for given_to, kind in (("both", "random"), ("teacher", "varied")):
        chosen = {"given_answers": kind, "given_rate": 0.6, "given_noise": 0.1, "given_to": given_to}
        settings = load_settings("quickstart", **small, **{f"training.{name}": value for name, value in chosen.items()})
        system = make_system(settings, dataset, None, batches_per_epoch=3)
        assert system.given == AnswerSchedule(0.6, noise=0.1, student=given_to == "both", varied=kind == "varied")


def test_random_gives_each_true_answer_at_its_rate_independently():
    answers = draw(AnswerSchedule(0.6))
    given = answers >= 0
    assert (answers[given] == LABELS[given]).all()
    assert (answers[LABELS < 0] == -1).all()
    both = (LABELS[:, 0] >= 0) & (LABELS[:, 1] >= 0)
    for step in range(len(COUNTS)):
        assert abs(given[LABELS[:, step] >= 0, step].mean() - 0.6) < 0.04
    assert abs((given[both, 0] & given[both, 1]).mean() - 0.36) < 0.04


def test_varied_gives_any_number_of_a_cases_answers_equally_often():
    full = np.zeros((20000, 4), int)
    num_given = (draw(AnswerSchedule(1.0, varied=True), full) >= 0).sum(axis=1)
    # With a uniform rate the number of successes is uniform: the beta-binomial of parameters 1 and 1.
    np.testing.assert_allclose(np.bincount(num_given) / len(full), np.full(5, 1 / 5), atol=0.01)
    assert (draw(AnswerSchedule(0.5, varied=True), full) >= 0).mean() == pytest.approx(0.25, abs=0.01)


def test_noise_gives_other_answers_of_the_step():
    given = draw(AnswerSchedule(1.0, noise=0.25))
    wrong = (given != LABELS) & (LABELS >= 0)
    assert abs(wrong[LABELS >= 0].mean() - 0.25) < 0.03
    for step, count in enumerate(COUNTS):
        found = given[wrong[:, step], step]
        assert set(found.tolist()) == set(range(count))


def test_a_devices_rows_are_given_what_they_are_given_in_the_whole_batch():
    schedule = AnswerSchedule(0.5, noise=0.2)
    whole = draw(schedule, LABELS[:32])
    np.testing.assert_array_equal(whole[8:16], draw(schedule, LABELS[8:16], first_case=8))
    np.testing.assert_array_equal(whole, draw(schedule, LABELS[:32]))
    assert (whole != draw(schedule, LABELS[:32], key=jax.random.key(4))).any()
