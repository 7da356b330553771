"""Structured reports: by hand, against scikit-learn, and closed branches that neither ask nor score."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuse
from sklearn.metrics import classification_report
from structured_folder import make_tree

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.statistics import count_once
from stepcot_jax.evaluation.structured_reports import (
    FIGURES,
    NO_ON_TEST,
    NO_TO_EVERYTHING,
    PUBLISHED,
    Form,
    answer_no,
    answer_tree,
    choose_threshold,
    compute_figures,
    format_scores,
    measure_f1,
    score_reports,
)

N = NOT_ANNOTATED
TREE = make_tree()
FORM = Form.of(TREE)
# signs, opacity/1, where (apex, base, unspecified), side, opacity/2, abdomen
NORMAL = [1, N, N, N, N, N, N, 1]
OPACITY = [0, 0, 0, 1, 1, 2, 1, 1]
NAMES = ["yes", "no", "yes", "no", "apex", "base", "unspecified", "left", "right", "both", "yes", "no", "yes", "no"]


def as_logits(answers, chain=TREE, *, scale=5.0):
    """Logits whose most probable answers are the given labels, 0 where there is none."""
    answers = np.asarray(answers)
    return scale * (answers[..., None] == np.arange(max(chain.answers_per_step)))


def read_cells(answers):
    return [
        [f"{NAMES[cell]}@{FORM.step[cell]}" for cell in np.flatnonzero(row)] for row in FORM.fill(np.array(answers))
    ]


def test_cells_are_filled_by_answers_and_closed_questions_say_no_or_nothing():
    assert len(FORM.step) == 14
    assert read_cells([NORMAL]) == [["no@0", "no@1", "no@6", "no@7"]]
    assert read_cells([OPACITY]) == [["yes@0", "yes@1", "apex@2", "both@5", "no@6", "no@7"]]
    assert {name: int(mask.sum()) for name, mask in FORM.parts.items()} == {
        "all": 14, "level 1": 2, "level 2": 6, "level 2/body_regions": 2, "level 2/signs": 4, "level 3": 6
    }  # fmt: skip
    np.testing.assert_array_equal(answer_no(TREE, 2), [NORMAL, NORMAL])
    always = Chain(tuple(Step(name, "?", ("yes", "no"), choice=name, part=part) for name, part in
                         (("apex", "level 1"), ("no selection", "level 10"))))  # fmt: skip
    np.testing.assert_array_equal(answer_no(always, 1), [[1, 0]])
    assert Form.of(always).parts["level 1"].tolist() == [True, False]


def test_a_network_answers_with_its_own_history():
    def answer(*labels, **options):
        return answer_tree(as_logits([labels]), TREE, **options)[0].tolist()

    assert answer(1, 0, 0, 0, 1, 0, 0, 0) == [1, N, N, N, N, N, N, 0]
    assert answer(0, 1, 0, 0, 1, 0, 0, 1) == [0, 1, N, N, N, N, N, 1]
    assert answer(0, 0, 0, 0, 1, 2, 0, 1) == [0, 0, 0, 0, 1, 2, 0, 1]
    assert answer(0, 0, 1, 1, 1, 2, 0, 1)[2:5] == [1, 1, 0], "nothing chosen is 'unspecified'"
    assert answer(0, 0, 0, 1, 0, 2, 0, 1)[2:5] == [0, 1, 1], "'unspecified' is chosen alone"
    assert answer(0, 0, 1, 1, 0, 2, 0, 1)[2:5] == [1, 1, 0]
    unsure = np.zeros((1, 8, 3))
    unsure[:, :, 1] = 1  # yes has 27 % against no, so every "no" turns at a threshold below
    assert answer_tree(unsure, TREE)[0].tolist() == NORMAL
    assert answer_tree(unsure, TREE, threshold=0.2)[0].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]


def test_figures_are_those_of_scikit_learn_and_repeated_cases_are_weights():
    rng = np.random.default_rng(0)
    for _ in range(3):
        truth, said = rng.random((2, 7, 14)) < rng.random((2, 1, 14)) * 0.7
        counts = rng.integers(1, 3, 7)
        rows = np.repeat(np.arange(7), counts)
        found = compute_figures(FORM, truth, said, counts[None].astype(float))
        for part, mask in FORM.parts.items():
            report = classification_report(truth[rows][:, mask], said[rows][:, mask], output_dict=True, zero_division=1)
            counted = [row for row in report.values() if row["support"] > 0]
            for name, column in (("precision", "precision"), ("recall", "recall"), ("f1", "f1-score")):
                assert found[part, name][0] == pytest.approx(np.mean([row[column] for row in counted]), abs=1e-12)
            cells = [row["f1-score"] for name, row in report.items() if name.isdigit() and row["support"] > 0]
            assert found[part, "f1_of_cells"][0] == pytest.approx(np.mean(cells), abs=1e-12)
            right = (truth == said)[rows][:, mask].all(axis=1).mean()
            assert found[part, "report_accuracy"][0] == pytest.approx(right)


@st.composite
def trees(draw):
    steps = []
    for position in range(draw(st.integers(2, 9))):
        parent = draw(st.none() | st.integers(0, position - 1)) if position else None
        opens = None if parent is None else (parent, draw(st.integers(0, len(steps[parent].options) - 1)))
        kind = draw(st.sampled_from(["whole", "three", "choice"]))
        options = ("a", "b", "c") if kind == "three" else ("yes", "no")
        choice = draw(st.sampled_from(["apex", "no selection"])) if kind == "choice" else ""
        steps.append(Step(f"s{position}", draw(st.sampled_from("?!")), options, opens, choice=choice, part="level 1"))
    return Chain(tuple(steps))


@settings(deadline=None, max_examples=60)
@given(chain=trees(), seed=st.integers(0, 1000))
def test_a_closed_branch_neither_asks_nor_scores_its_children(chain, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(5, chain.num_steps, 3))
    answers, form = answer_tree(logits, chain), Form.of(chain)
    for row in range(5):
        for position, step in enumerate(chain.steps):
            opened = step.asked_if is None or answers[row, step.asked_if[0]] == step.asked_if[1]
            assert (answers[row, position] != N) == opened
    closed = answers == N
    others = np.where(closed[..., None], rng.normal(size=logits.shape) * 9, logits)
    # A question is closed as a whole, so what a network would have said in it changes no open answer.
    np.testing.assert_array_equal(answer_tree(others, chain), answers)
    labels = chain.close(rng.integers(0, 2, (5, chain.num_steps)))
    truth = form.fill(labels)
    found = (
        compute_figures(form, truth, form.fill(given), count_once(5)) for given in (answers, answer_tree(others, chain))
    )
    for mine, theirs in zip(*(figures.values() for figures in found), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert not form.fill(answers)[:, ~form.says_no][closed[:, form.step[~form.says_no]]].any()


def test_the_constant_comes_first_and_differences_are_paired():
    labels = np.array([NORMAL] * 6 + [OPACITY] * 4)
    patients = np.array([f"p{case}" for case in range(10)])
    perfect = answer_tree(as_logits(labels), TREE)
    scores, differences = score_reports({"all right": perfect}, labels, TREE, patients=patients, num_resamples=200)
    assert list(scores) == [NO_TO_EVERYTHING, "all right"]
    assert scores[NO_TO_EVERYTHING]["all"]["report_accuracy"].value == 0.6
    assert all(scores["all right"]["all"][name].value == 1 for name in FIGURES)
    for part, figures in differences["all right"].items():
        for name, figure in figures.items():
            assert figure.value == pytest.approx(1 - scores[NO_TO_EVERYTHING][part][name].value)
    constant = scores[NO_TO_EVERYTHING]["all"]
    assert all(constant[name].low - 1e-9 <= constant[name].value <= constant[name].high + 1e-9 for name in FIGURES)
    assert constant["report_accuracy"].low < 0.6 < constant["report_accuracy"].high
    table = format_scores(scores, differences)
    assert "| all | no to everything | 60.0 [" in table
    assert "| all | published: hi-VQA (test part, pictures) | 30.2 | 64.6 | 33.3 | 32.0 |  |" in table
    assert "| all | no to everything on that test part | 39.6 | 99.7 | 28.8 | 28.7 |  |" in table
    alone, _ = score_reports({}, labels[:1], TREE, patients=patients[:1])
    assert math.isnan(alone[NO_TO_EVERYTHING]["all"]["f1"].low)
    assert set(PUBLISHED) == set(NO_ON_TEST) == {"level 2/diseases", "level 2/objects", *FORM.parts}


def test_intervals_are_those_of_patients_however_many_pictures_each_has():
    found = []
    for number in (1, 7):
        labels, patients = np.repeat([NORMAL, NORMAL, OPACITY], number, axis=0), np.repeat(["a", "b", "c"], number)
        scores, _ = score_reports({}, labels, TREE, patients=patients, num_resamples=50)
        found.append(scores[NO_TO_EVERYTHING]["all"]["report_accuracy"])
    assert (found[0].low, found[0].high) == pytest.approx((found[1].low, found[1].high))


def test_the_threshold_is_chosen_by_f1():
    labels = np.array([NORMAL] * 6 + [OPACITY] * 4)
    timid = as_logits(labels)
    timid[..., 1] += 5 + np.log(0.75 / 0.25)  # the right yes has 25 %, a wrong one far less
    assert measure_f1(timid, labels, TREE) < measure_f1(as_logits(labels), labels, TREE) == 1.0
    threshold = choose_threshold(timid, labels, TREE)
    assert 0 < threshold < 0.3
    assert choose_threshold(as_logits(labels), labels, TREE) == 0.5


def test_trees_that_cannot_be_asked_are_refused():
    yes_no = ("yes", "no")
    for steps, problem in (
        ([Step("a", "?", yes_no, (0, 0))], "an earlier one"),
        ([Step("a", "?", yes_no), Step("b", "?", yes_no, (2, 0))], "an earlier one"),
        ([Step("a", "?", yes_no), Step("b", "?", yes_no, (0, 2))], "0 to 1"),
    ):
        refuse(problem, Chain, tuple(steps))
    refuse("are required", Step, "a", "?", ("left", "right"), choice="apex")
    assert [list(question) for question in TREE.questions] == [[0], [1], [2, 3, 4], [5], [6], [7]]
    assert TREE.is_tree
    assert not Chain.published().is_tree
