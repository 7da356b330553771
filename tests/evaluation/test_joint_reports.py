"""The joint model of structured reports against sums over all reports."""

import dataclasses
import json

import numpy as np
import pytest
from oracles.report_sums import condition, report_probabilities, step_shares
from scipy.special import softmax
from structured_folder import make_tree

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.joint import as_evidence
from stepcot_jax.evaluation.joint_reports import (
    COUNTING,
    ReportModel,
    draw_told,
    find_askable,
    fit_report_model,
    learn_report_tree,
    read_report_models,
    score_given,
    write_report_models,
)
from stepcot_jax.evaluation.structured_reports import answer_tree
from stepcot_jax.host.errors import BadInput

N, CHAIN = NOT_ANNOTATED, make_tree()
SIZES, PARTS = CHAIN.answers_per_step, sorted({step.part for step in CHAIN.steps})
# signs, opacity/1, where (apex, base, unspecified), side, opacity/2, abdomen


def draw_labels(num_cases, seed=0):
    """Abdomen follows signs, base follows apex, and a second opacity follows its side."""
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.integers(size, size=num_cases) for size in SIZES], axis=1)
    for step, value in ((7, labels[:, 0]), (3, 1 - labels[:, 2]), (6, labels[:, 5] // 2)):
        labels[:, step] = np.where(rng.random(num_cases) < 0.8, value, labels[:, step])
    return CHAIN.close(labels)


TREE = learn_report_tree(draw_labels(1000), CHAIN)
MODEL = ReportModel(TREE, dict(zip(PARTS, (1.0, 0.6, 0.8, 0.5), strict=True)), 0.7)
LOGITS = np.random.default_rng(3).normal(size=(6, 8, 3)) * 2


def some_given():
    told = np.full((6, 8), N)
    told[1, 7], told[2, [0, 3]], told[3, 0], told[4, 5] = 0, (0, 1), 1, 2
    given = as_evidence(told, SIZES)
    given[5, 1, :2], given[5, 5] = (0.8, 0.2), (0.2, 0.7, 0.1)
    return given


def states(read):
    return np.concatenate([read, 1 - read.sum(axis=-1, keepdims=True)], axis=-1)


def test_partners_are_asked_together_and_tables_are_smoothed_counts():
    pairs = {frozenset((step, partner)) for step, (partner, _) in TREE.pairs.items()}
    assert pairs == {frozenset(pair) for pair in ((0, 7), (2, 3), (5, 6))}
    labels = np.array([[0, 0, 1, 1, 1, 2, 1, 1], [0, 1, N, N, N, N, N, N], [N, N, N, N, N, N, N, 0]])
    tree = learn_report_tree(labels, CHAIN)
    assert not tree.pairs  # too few reports for any
    np.testing.assert_allclose(tree.shares[0, :2], (np.array([2, 0]) + 2 * np.array([3, 1]) / 4) / 4)
    np.testing.assert_allclose(tree.shares[5], (np.array([0, 0, 1]) + 2 * np.array([1, 1, 2]) / 4) / 3)
    pooled = np.array([1, 4]) / 5  # the three options of one question, no each time
    np.testing.assert_allclose(tree.shares[2, :2], (np.array([0, 1]) + 2 * pooled) / 3)
    with_pairs, step = draw_labels(1000), max(TREE.pairs.keys() & {0, 7})
    rows = with_pairs[with_pairs[:, TREE.pairs[step][0]] == 1]
    counts = np.bincount(rows[:, step], minlength=2) + 2 * TREE.shares[step, :2]
    np.testing.assert_allclose(TREE.pairs[step][1][1], counts / counts.sum())


def test_readings_are_sums_over_all_reports():
    given, own = some_given(), MODEL.calibrate(LOGITS)
    read = states(MODEL.join(LOGITS)(given[None])[0])
    for case in range(6):
        weights = report_probabilities(TREE, own[case], MODEL.coupling)
        assert weights.sum() == pytest.approx(1)
        expected = step_shares(CHAIN, condition(CHAIN, weights, given[case]))
        np.testing.assert_allclose(read[case], expected, atol=1e-5)
    assert abs(read[1, 0] - read[0, 0]).max() > 0.05  # the abdomen moves another topic


def test_without_given_answers_each_asked_step_has_its_own_distribution():
    read = MODEL.join(LOGITS)(np.zeros((1, 6, 8, 3)))[0]
    np.testing.assert_allclose(read / read.sum(axis=-1, keepdims=True), MODEL.calibrate(LOGITS), atol=1e-5)
    plain = dataclasses.replace(MODEL, weights=dict.fromkeys(PARTS, 1.0)).calibrate(LOGITS)
    for step, size in enumerate(SIZES):
        np.testing.assert_allclose(plain[:, step, :size], softmax(LOGITS[:, step, :size], axis=1), atol=1e-8)
    model = dataclasses.replace(MODEL, threshold=0.2)
    np.testing.assert_array_equal(model.answer(read, LOGITS), answer_tree(LOGITS, CHAIN, threshold=0.2))
    given = some_given()
    answers, told = model.answer(model.join(LOGITS)(given[None])[0], LOGITS), given.max(axis=-1) == 1
    np.testing.assert_array_equal(answers[told], given.argmax(axis=-1)[told])
    np.testing.assert_array_equal(answers[3], [1, *[N] * 6, answers[3, 7]])


def test_a_closed_parent_closes_its_children_and_a_given_child_opens_its_parents():
    read = MODEL.join(LOGITS)(some_given()[None])[0]
    assert not read[3, 1:7].any()  # no signs
    np.testing.assert_allclose(read[4, 0, 0], 1)  # a side is given: there are signs, and an opacity
    np.testing.assert_allclose(read[4, 1, 0], 1)
    assert (read[0].sum(axis=1)[1:7] < 1).all()
    both = some_given()
    both[3, 5] = (1, 0, 0)
    with pytest.raises(BadInput, match="closes a question"):
        MODEL.join(LOGITS)(both[None])


def test_an_answer_of_reliability_one_over_n_changes_nothing():
    reader, given = MODEL.join(LOGITS), some_given()
    plain = reader(given[None])
    for step in (1, 5, 7):
        told = ~given[:, step].any(axis=1)
        given[told, step, : SIZES[step]] = 1 / SIZES[step]
    np.testing.assert_allclose(reader(given[None]), plain, atol=1e-12)


def test_a_reading_does_not_depend_on_the_other_cases_or_variants():
    given, order = some_given(), np.array([4, 0, 5, 2, 1, 3])
    together = MODEL.join(LOGITS)(np.stack([given, np.zeros_like(given)]))[0]
    shuffled = MODEL.join(LOGITS[order])(given[None, order])[0]
    np.testing.assert_allclose(shuffled, together[order], atol=1e-12)
    for case in range(6):
        alone = MODEL.join(LOGITS[case : case + 1])(given[None, case : case + 1])[0, 0]
        np.testing.assert_allclose(alone, together[case], atol=1e-12)


def test_told_answers_are_those_of_askable_questions():
    told = np.full((2, 8), N)
    told[1, :2] = 0
    assert [np.flatnonzero(find_askable(row, CHAIN)).tolist() for row in told] == [[0, 5], [2, 3, 4, 5]]
    labels = draw_labels(50, seed=5)
    drawn = draw_told(labels, CHAIN, rng=np.random.default_rng(0))
    assert ((drawn == labels) | (drawn == N)).all()
    assert (CHAIN.find_asked(drawn) | (drawn == N)).all()
    assert (drawn != N).any(axis=1).all()


def test_what_counts_is_fitted_on_validation():
    """A network that knows nothing loses to counting; one that is right counts; pairs that hold have their power."""
    labels, noise = draw_labels(200, seed=1), np.random.default_rng(2).normal(size=(200, 8, 3)) * 2
    fitted = fit_report_model(TREE, noise, labels)
    assert max(fitted.weights.values()) <= 0.1
    knows = noise + 6 * (labels[:, :, None] == np.arange(3))
    assert min(fit_report_model(TREE, knows, labels).weights.values()) >= 0.5
    counting = fit_report_model(TREE, None, labels)
    assert set(counting.weights.values()) == {0.0}
    assert counting.coupling >= 0.5
    told = draw_told(labels, CHAIN, rng=np.random.default_rng(3))[None]
    apart = dataclasses.replace(counting, coupling=0.0)
    assert score_given(counting, noise, labels, told) > score_given(apart, noise, labels, told) + 0.02


def test_models_on_disk_come_back_and_a_file_that_cannot_be_used_is_named(tmp_path):
    path = tmp_path / "joint.json"
    write_report_models(path, {"form": MODEL, COUNTING: dataclasses.replace(MODEL, threshold=0.2)})
    found = read_report_models(path, CHAIN)
    assert (found["form"].coupling, found[COUNTING].threshold) == (MODEL.coupling, 0.2)
    given = some_given()[None]
    np.testing.assert_array_equal(found["form"].join(LOGITS)(given), MODEL.join(LOGITS)(given))
    paired = max(TREE.pairs.keys() & {0, 7})
    for edit, message in (
        (lambda file: file.update(layout="other"), "'layout': 'other' is not"),
        (lambda file: file["steps"].pop(), "another chain: it has 7 steps, not 8"),
        (lambda file: file["steps"][paired].update(partner=3), "'partner': 3 is no step that is asked together"),
        (lambda file: file["steps"][paired].update(partner=paired), "in a circle"),
        (lambda file: file["steps"][paired]["table"].pop(), "'table': expected 2 times 2 shares"),
        (lambda file: file["steps"][1]["shares"].__setitem__(0, 0.9999), "'shares': expected 1 times 2 shares"),
        (lambda file: file["models"]["form"]["weights"].pop("level 3"), "'weights': none for 'level 3'"),
    ):
        write_report_models(path, {"form": MODEL})
        file = json.loads(path.read_text())
        edit(file)
        path.write_text(json.dumps(file))
        with pytest.raises(BadInput, match=message):
            read_report_models(path, CHAIN)
