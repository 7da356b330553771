"""The joint model of structured reports, and what each question tells, against sums over all reports."""

import dataclasses
import itertools

import numpy as np
import pytest
from oracles.report_sums import condition, list_reports, report_probabilities, step_shares
from refusals import refuse_edited
from scipy.special import softmax
from structured_folder import make_tree

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.interventions import entropy
from stepcot_jax.evaluation.joint import as_evidence
from stepcot_jax.evaluation.joint_reports import (
    COUNTING,
    ReportModel,
    ask_in_turn,
    draw_told,
    expected_information,
    find_askable,
    fit_report_model,
    format_asking,
    learn_report_tree,
    measure_asking,
    read_report_models,
    score_given,
    write_report_models,
)
from stepcot_jax.evaluation.structured_reports import answer_tree, choose_threshold
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
    timid = knows - 4 * (np.arange(3) == 0)
    assert fit_report_model(TREE, timid, labels).threshold == choose_threshold(timid, labels, CHAIN) < 0.5
    counting = fit_report_model(TREE, None, labels)
    assert set(counting.weights.values()) == {0.0}
    assert counting.coupling >= 0.5
    told = draw_told(labels, CHAIN, rng=np.random.default_rng(3))[None]
    apart = dataclasses.replace(counting, coupling=0.0)
    assert score_given(counting, noise, labels, told) > score_given(apart, noise, labels, told) + 0.02


def information(weights, question, told):
    """Sum over steps not told of I(question's answers; step), by sums over all reports."""
    answers = list_reports(CHAIN)[:, question]
    now = entropy(step_shares(CHAIN, weights))
    for answer in np.unique(answers, axis=0):
        chosen = np.where((answers == answer).all(axis=1), weights, 0)
        now -= chosen.sum() * entropy(step_shares(CHAIN, chosen / max(chosen.sum(), 1e-300)))
    return now[told == N].sum()


@pytest.mark.parametrize("told", [{}, {0: 0}, {0: 0, 1: 0}, {0: 0, 1: 0, 5: 2}, {0: 1, 7: 0}])
def test_expected_information_is_that_of_all_reports(told):
    labels = np.array([told.get(step, N) for step in range(8)])
    given = as_evidence(labels, SIZES)
    weights = report_probabilities(TREE, MODEL.calibrate(LOGITS)[2], MODEL.coupling)
    weights = condition(CHAIN, weights, given)
    gains = expected_information(MODEL.join(LOGITS[2:3]), given)
    for question, gain in zip(CHAIN.questions, gains, strict=True):
        opened = CHAIN.steps[question[0]].asked_if
        if labels[question[0]] != N or (opened and told.get(opened[0]) != opened[1]):
            assert gain == -np.inf
        else:
            exact = information(weights, list(question), labels)
            assert gain <= exact + 1e-6
            assert gain == pytest.approx(exact, abs=1e-6 if len(question) == 1 else 0.05)


def test_questions_are_asked_as_answers_open_them():
    truth = np.array([0, 0, 0, 1, 1, 2, 1, 1])
    read, rng = MODEL.join(LOGITS[:1]), np.random.default_rng(0)
    in_order = [given for _, given in ask_in_turn("tree order", read, truth, range(9), rng=rng)]
    asked = [np.flatnonzero(after & ~before).tolist() for before, after in itertools.pairwise(in_order)]
    assert asked == [[0], [1], [2, 3, 4], [5], [6], [7], [], []]
    ((_, first),) = ask_in_turn("information", read, truth, [1], rng=rng)
    gains = expected_information(read, np.zeros((8, 3)))
    assert np.flatnonzero(first).tolist() == list(CHAIN.questions[int(gains.argmax())])


def test_figures_after_true_answers():
    labels = draw_labels(12, seed=9)
    logits = np.random.default_rng(0).normal(size=(12, 8, 3))
    patients = np.array([f"p{case}" for case in range(12)])
    rows = measure_asking({"form": (MODEL, logits)}, labels, patients, counts=(0, 8), num_resamples=20)
    assert [(row.way, row.number) for row in rows] == [
        (way, number) for way in ("information", "tree order", "random") for number in (0, 8)
    ]
    for none, every in zip(rows[::2], rows[1::2], strict=True):
        assert none.f1.value < every.f1.value == every.report_accuracy.value == 1
        assert none.unasked_accuracy < 0.9
        assert np.isnan(every.unasked_accuracy)
        assert none.f1 == rows[0].f1
    table = format_asking(rows)
    assert (len(table), table[-1]) == (8, "| form | random | 8 | 100.0 [100.0, 100.0] | 100.0 [100.0, 100.0] | - |")


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
        (lambda file: file["steps"][1].update(shares=[5e-324, 1.0]), ">= 1e-30"),
        (lambda file: file["models"]["form"]["weights"].pop("level 3"), "'weights': none for 'level 3'"),
    ):
        write_report_models(path, {"form": MODEL})
        refuse_edited(message, path, edit, read_report_models, CHAIN)
