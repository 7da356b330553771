"""Collecting a split from padded batches, and each model's figures on it."""

import collections
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.chains import evaluate, majority_chain_accuracy, step_metrics
from stepcot_jax.evaluation.predictions import Predictions, collect

CHAIN = Chain(
    (
        Step("Detection", "Anything?", ("No", "Yes")),
        Step("Distribution", "How?", ("Focal", "Diffuse", "N/A")),
        Step("Diagnosis", "What?", ("Normal", "Mass", "Effusion", "Nodule")),
    )
)
ABSENT = -1e9
NUM_CASES = 11


def draw_logits(seed: int, num_cases: int = NUM_CASES) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(0, 2, (num_cases, 3, 4)).astype(np.float32)
    for position, step in enumerate(CHAIN.steps):
        logits[:, position, step.num_answers :] = ABSENT
    return logits


def draw_labels(seed: int, num_cases: int = NUM_CASES) -> np.ndarray:
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.integers(0, step.num_answers, num_cases) for step in CHAIN.steps], axis=1)
    labels[rng.random(labels.shape) < 0.25] = NOT_ANNOTATED
    return labels.astype(np.int32)


TEACHER, STUDENT, LABELS = draw_logits(1), draw_logits(2), draw_labels(3)


def make_batches(order: np.ndarray, size: int) -> list[dict[str, np.ndarray]]:
    """Batches of the cases in `order`; the last is padded with rows that look valid."""
    batches = []
    for start in range(0, len(order), size):
        index = order[start : start + size]
        padded = np.concatenate([index, np.zeros(size - len(index), int)]).astype(np.int32)
        batches.append({"index": padded, "labels": LABELS[padded], "present": np.arange(size) < len(index)})
    return batches


def look_up(batch):
    return {"teacher": TEACHER[batch["index"]], "student": STUDENT[batch["index"]]}


def in_order(size: int = 4) -> list[dict[str, np.ndarray]]:
    return make_batches(np.arange(NUM_CASES), size)


@pytest.mark.parametrize("size", [1, 4, 11, 32])
@pytest.mark.parametrize("shuffled", [False, True])
def test_every_case_comes_once_in_the_order_of_the_split(size, shuffled):
    order = np.random.default_rng(0).permutation(NUM_CASES) if shuffled else np.arange(NUM_CASES)
    predictions = collect(look_up, make_batches(order, size))
    np.testing.assert_array_equal(predictions.index, np.arange(NUM_CASES))
    np.testing.assert_array_equal(predictions.labels, LABELS)
    np.testing.assert_array_equal(predictions.logits["teacher"], TEACHER)
    np.testing.assert_array_equal(predictions.logits["student"], STUDENT)
    assert predictions.logits["teacher"].dtype == np.float32


def test_the_content_of_padding_rows_never_counts():
    def spoil_padding(batch):
        logits = {name: found.copy() for name, found in look_up(batch).items()}
        for found in logits.values():
            found[~batch["present"]] = math.nan
        return logits

    spoilt = in_order(size=8)
    spoilt[-1]["labels"][~spoilt[-1]["present"]] = 77
    assert evaluate(collect(spoil_padding, spoilt), CHAIN) == evaluate(collect(look_up, in_order()), CHAIN)


def test_padding_rows_are_dropped_wherever_they_stand():
    def pad_in_front(batch):
        return {
            "index": np.concatenate([[0, 7], batch["index"]]).astype(np.int32),
            "labels": np.concatenate([LABELS[[1, 2]], batch["labels"]]),
            "present": np.concatenate([[False, False], batch["present"]]),
        }

    batches = [pad_in_front(batch) for batch in in_order()]
    batches.insert(1, {**batches[0], "present": np.zeros(len(batches[0]["index"]), bool)})
    predictions = collect(look_up, batches)
    np.testing.assert_array_equal(predictions.index, np.arange(NUM_CASES))
    np.testing.assert_array_equal(predictions.labels, LABELS)
    np.testing.assert_array_equal(predictions.logits["teacher"], TEACHER)


def test_predictions_on_the_device_and_in_bfloat16_arrive_as_float32():
    @jax.jit
    def predict(index):
        return {"teacher": jnp.asarray(TEACHER, jnp.bfloat16)[index], "student": jnp.asarray(STUDENT)[index]}

    batches = [{name: jnp.asarray(array) for name, array in batch.items()} for batch in in_order()]
    with jax.transfer_guard_device_to_host("disallow"):
        predictions = collect(lambda batch: predict(batch["index"]), batches)
    assert predictions.logits["teacher"].dtype == np.float32
    np.testing.assert_allclose(predictions.logits["teacher"], TEACHER, rtol=2**-8)
    np.testing.assert_array_equal(predictions.logits["student"], STUDENT)


def test_each_batch_is_fetched_from_the_device_once(monkeypatch):
    fetched = []
    device_get = jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda tree: fetched.append(tree) or device_get(tree))
    collect(look_up, iter(in_order(size=4)))
    assert len(fetched) == 3


def test_the_models_keep_the_order_in_which_they_were_given():
    assert list(collect(look_up, in_order()).logits) == ["teacher", "student"]
    assert list(evaluate(collect(look_up, in_order()), CHAIN)) == ["teacher", "student"]


def test_a_case_that_comes_twice_is_refused():
    with pytest.raises(ValueError, match=r"2 cases come more than once, the first at index \[3, 5\]"):
        collect(look_up, make_batches(np.array([0, 3, 5, 1, 3, 5, 5]), 4))


def test_no_batch_is_refused():
    with pytest.raises(ValueError, match="no batch"):
        collect(look_up, [])


def test_models_that_change_between_batches_are_refused():
    def forget_student(batch):
        logits = look_up(batch)
        return logits if batch["index"][0] == 0 else {"teacher": logits["teacher"]}

    with pytest.raises(ValueError, match=r"has models \['teacher'\]"):
        collect(forget_student, in_order())


def test_logits_that_do_not_fit_the_labels_are_refused():
    with pytest.raises(ValueError, match=r"teacher: logits \(4, 2, 4\)"):
        collect(lambda batch: {"teacher": TEACHER[batch["index"], :2]}, in_order())


def test_figures_are_those_of_each_steps_own_answers():
    found = evaluate(collect(look_up, in_order()), CHAIN)["student"]
    accuracies, majorities = [], []
    for position, step in enumerate(CHAIN.steps):
        weights = np.exp(STUDENT[:, position, : step.num_answers].astype(np.float64))
        expected = step_metrics(
            step=step, probabilities=weights / weights.sum(axis=1, keepdims=True), labels=LABELS[:, position]
        )
        assert found.steps[position].confusion == expected.confusion
        assert found.steps[position].auc == pytest.approx(expected.auc)
        annotated = LABELS[:, position] != NOT_ANNOTATED
        truth = LABELS[annotated, position]
        accuracies.append((STUDENT[annotated, position].argmax(axis=1) == truth).mean())
        majorities.append(np.bincount(truth).max() / len(truth))
    assert found.mean_accuracy == pytest.approx(np.mean(accuracies))
    assert found.mean_majority_accuracy == pytest.approx(np.mean(majorities))
    right = (STUDENT.argmax(axis=2) == LABELS) | (LABELS == NOT_ANNOTATED)
    counted = (LABELS != NOT_ANNOTATED).any(axis=1)
    assert found.chain_accuracy == pytest.approx(right[counted].all(axis=1).mean())


def test_huge_logits_are_read_without_overflow():
    logits = TEACHER * np.where(TEACHER == ABSENT, 1, 1e30).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = evaluate(Predictions(np.arange(NUM_CASES), LABELS, {"teacher": logits}), CHAIN)
    expected = evaluate(Predictions(np.arange(NUM_CASES), LABELS, {"teacher": TEACHER}), CHAIN)
    assert found["teacher"].mean_accuracy == expected["teacher"].mean_accuracy


def test_a_step_without_annotated_cases_is_left_out_of_the_means():
    labels = LABELS.copy()
    labels[:, 1] = NOT_ANNOTATED
    found = evaluate(Predictions(np.arange(NUM_CASES), labels, {"teacher": TEACHER}), CHAIN)["teacher"]
    assert found.steps[1].num_cases == 0
    assert found.mean_accuracy == pytest.approx((found.steps[0].accuracy + found.steps[2].accuracy) / 2)
    majorities = (found.steps[0].majority_accuracy, found.steps[2].majority_accuracy)
    assert found.mean_majority_accuracy == pytest.approx(sum(majorities) / 2)


def test_steps_with_one_answer_are_left_out_of_the_means_and_keep_their_figures():
    labels = LABELS.copy()
    labels[:, 1] = np.where(labels[:, 1] == NOT_ANNOTATED, NOT_ANNOTATED, 1)
    labels[:, 2] = NOT_ANNOTATED
    labels[0, 2] = 0  # a single case is one answer too
    found = evaluate(Predictions(np.arange(NUM_CASES), labels, {"teacher": TEACHER}), CHAIN)["teacher"]
    assert found.mean_accuracy == found.steps[0].accuracy
    assert found.mean_majority_accuracy == found.steps[0].majority_accuracy < 1
    assert [step.has_one_answer for step in found.steps] == [False, True, True]
    assert found.steps[1].majority_accuracy == 1
    assert not math.isnan(found.steps[1].accuracy)


def test_there_is_no_mean_where_every_step_has_one_answer():
    found = evaluate(Predictions(np.arange(NUM_CASES), np.zeros_like(LABELS), {"teacher": TEACHER}), CHAIN)["teacher"]
    assert math.isnan(found.mean_accuracy)
    assert math.isnan(found.mean_majority_accuracy)
    assert found.majority_chain_accuracy == 1


def test_the_majority_of_whole_chains_is_the_better_of_two_constant_chains():
    rng = np.random.default_rng(4)
    for _ in range(50):
        labels = rng.integers(-1, 2, (rng.integers(1, 9), 3))
        labels[labels < 0] = NOT_ANNOTATED
        known = labels[(labels >= 0).any(axis=1)]
        frequent = [max((0, 1), key=[*own[own >= 0]].count) for own in known.T]
        counts = collections.Counter(map(tuple, known.tolist()))
        most = max(counts.values(), default=0)
        shares = [
            np.mean([all(is_open or one == other for one, other, is_open in zip(row, chain, row < 0, strict=True))
                     for row in known])
            for chain in [frequent, *([own if own >= 0 else frequent[k] for k, own in enumerate(chain)]
                                      for chain, count in counts.items() if count == most)]
        ] if len(known) else []  # fmt: skip
        found = majority_chain_accuracy(labels)
        # Of several most frequent chains any may be taken.
        assert (math.isnan(found) and not shares) or shares[0] <= found <= max(shares) + 1e-12


def test_a_split_without_annotations_is_undefined_without_a_warning():
    labels = np.full_like(LABELS, NOT_ANNOTATED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = evaluate(Predictions(np.arange(NUM_CASES), labels, {"teacher": TEACHER}), CHAIN)["teacher"]
    assert math.isnan(found.mean_accuracy)
    assert math.isnan(found.mean_majority_accuracy)
    assert math.isnan(found.chain_accuracy)


def test_a_case_without_labels_equals_a_dropped_case():
    labels = LABELS.copy()
    labels[::3] = NOT_ANNOTATED
    kept = np.arange(NUM_CASES) % 3 != 0
    masked = Predictions(np.arange(NUM_CASES), labels, {"teacher": TEACHER})
    dropped = Predictions(np.arange(NUM_CASES)[kept], labels[kept], {"teacher": TEACHER[kept]})
    assert evaluate(masked, CHAIN) == evaluate(dropped, CHAIN)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_refused_with_model_and_step(bad):
    logits = STUDENT.copy()
    logits[[2, 5], 1, 0] = bad
    predictions = Predictions(np.arange(NUM_CASES), LABELS, {"teacher": TEACHER, "student": logits})
    with pytest.raises(FloatingPointError, match="student, step 'Distribution': logits of 2 cases are not finite"):
        evaluate(predictions, CHAIN)


@pytest.mark.parametrize("logits", [TEACHER[:, :2], TEACHER[:, :, :3]])
def test_logits_that_do_not_fit_the_chain_are_refused(logits):
    with pytest.raises(ValueError, match=r"\[case, 3, 4 or more\]"):
        evaluate(Predictions(np.arange(NUM_CASES), LABELS, {"teacher": logits}), CHAIN)
