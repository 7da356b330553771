"""Consistency rules against written-out chains, and counts of pairs."""

import dataclasses
import math

import numpy as np
import pytest
from evaluation.small_splits import CHAIN
from refusals import refuse_edited

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.phantom.answers import draw_answers
from stepcot_jax.evaluation.consistency import (
    count_broken,
    count_pairs,
    find_clear_chest,
    inconsistent,
    list_broken,
    make_rules,
    pairs_of,
    read_pairs,
    share_inconsistent,
    write_pairs,
)

NORMAL = [0, 3, 5, 6, 4, 6, 0]
NODULE = [1, 0, 2, 0, 0, 6, 1]
CLEAR_NODULE = [*NORMAL[:-1], 1]


def learn(labels, chain=DEFAULT_CHAIN, **options):
    return make_rules(chain, counts=count_pairs(labels, chain), **options)


def test_the_given_rule_by_hand():
    rules = make_rules(DEFAULT_CHAIN)
    chains = np.array(
        [
            NORMAL,
            NODULE,
            CLEAR_NODULE,
            [0, 3, 5, 0, 4, 6, 0],  # "No abnormality", but a location
            [1, 3, 5, 6, 4, 6, 0],  # the given rule covers normal cases only
            [NOT_ANNOTATED, 3, 5, 0, 4, 6, 1],
            [0, NOT_ANNOTATED, 5, 6, 4, 6, 0],
        ]
    )
    assert inconsistent(chains, rules).tolist() == [False, False, True, True, False, False, False]
    assert share_inconsistent(chains, rules) == pytest.approx(2 / 7)
    assert math.isnan(share_inconsistent(chains[:0], rules))
    listed = list_broken(chains[[2, 2, 3]], rules, DEFAULT_CHAIN)
    assert listed == [tuple(count_broken(chains[[case]], rules, DEFAULT_CHAIN)) for case in (2, 2, 3)]
    assert count_broken(chains[[2, 2, 3]], rules, DEFAULT_CHAIN) == {
        "Detection 'No abnormality' with Diagnosis 'Nodule'": 2,
        "Detection 'No abnormality' with Anatomical location 'Upper lung zone'": 1,
    }


def test_the_given_rule_is_found_by_texts_and_absent_elsewhere():
    assert find_clear_chest(CHAIN) is None
    assert all(own.all() for own in make_rules(CHAIN).allowed.values())
    texts = ("Something", "no  Abnormality"), ("Small", "Large"), ("Left", "Right", "n/a"), ("Mass", "NORMAL")
    turned = Chain(tuple(Step(f"Step {number}", "?", options) for number, options in enumerate(texts)))
    assert dataclasses.astuple(find_clear_chest(turned)) == (1, {2: 2, 3: 1})
    broken = inconsistent(np.array([[1, 0, 2, 1], [1, 0, 0, 1], [1, 1, 2, 0]]), make_rules(turned))
    assert broken.tolist() == [False, True, True]


def test_pairs_are_counted_and_unannotated_steps_passed_over():
    labels = np.array([[0, 1, 2], [0, 1, 3], [1, NOT_ANNOTATED, 0], [NOT_ANNOTATED, 2, 0], [0, 1, 2]])
    counts = count_pairs(labels, CHAIN)
    assert set(counts) == {(0, 1), (0, 2), (1, 2)} == set(pairs_of(3))
    assert counts[0, 1].tolist() == [[0, 3, 0], [0, 0, 0]]
    assert counts[0, 2].tolist() == [[0, 0, 2, 1], [1, 0, 0, 0]]
    assert counts[1, 2].tolist() == [[0, 0, 0, 0], [0, 0, 2, 1], [1, 0, 0, 0]]


def test_a_pair_is_forbidden_where_chance_would_have_shown_it():
    # 200 chains: "No" is never followed by "Focal"; independence would give 100 * 40 / 200 = 20.
    labels = np.array([[0, 1, 0]] * 100 + [[1, 0, 0]] * 40 + [[1, 1, 0]] * 60)
    # "N/A" never occurs, so no rule can be learned for it.
    assert learn(labels, CHAIN).allowed[0, 1].tolist() == [[False, True, True], [True, True, True]]
    assert learn(labels, CHAIN, min_expected=20.1).allowed[0, 1].all()
    assert learn(labels[:0], CHAIN).allowed[0, 1].all()


def test_a_given_rule_gives_way_to_chains_that_contradict_it():
    """All of 500 clear chests have a nodule: evidence, not 500 errors. Every other step is settled as before."""
    labels = np.array([CLEAR_NODULE] * 500 + [NODULE] * 100)
    rules = learn(labels)
    assert not inconsistent(labels, rules).any()
    assert rules.notes == (
        "'No abnormality' does not settle Diagnosis as 'Normal': 500 of 500 training chains have another answer",
    )
    assert rules.allowed[0, 6][0].all()
    assert [rules.allowed[0, later][0].sum() for later in range(1, 6)] == [1] * 5


@pytest.mark.parametrize(("num_wrong", "is_applied"), [(0, True), (5, True), (6, False)])
def test_a_few_errors_of_annotation_leave_the_given_rule(num_wrong, is_applied):
    rules = learn(np.array([NORMAL] * (100 - num_wrong) + [CLEAR_NODULE] * num_wrong))
    assert (not rules.allowed[0, 6][0, 1], not rules.notes) == (is_applied, is_applied)


@pytest.fixture(scope="module")
def phantom():
    return np.array([draw_answers(index, seed=0) for index in range(3000)])


def test_what_the_phantom_never_does_is_learned(phantom):
    train, test = phantom[:2000], phantom[2000:]
    rules = learn(train)
    abnormal_but_normal = [1, 0, 2, 0, 0, 6, 0]
    assert inconsistent(np.array([NORMAL, abnormal_but_normal]), rules).tolist() == [False, True]
    assert share_inconsistent(train, rules) == 0
    assert share_inconsistent(test, rules) < 0.01
    rng = np.random.default_rng(0)
    assert share_inconsistent(np.stack([rng.permutation(own) for own in test.T], axis=1), rules) > 0.8


def test_pairs_on_disk_come_back(tmp_path, phantom):
    path, counts = tmp_path / "pairs.json", count_pairs(phantom, DEFAULT_CHAIN)
    write_pairs(path, counts)
    found = read_pairs(path, DEFAULT_CHAIN)
    assert list(found) == list(counts)
    assert all((found[pair] == own).all() for pair, own in counts.items())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda file: file["pairs"][0].__setitem__(0, [0, 9]), "pairs of another chain"),
        (lambda file: file["pairs"][0][1][0].__setitem__(0, -1), "a count is below 0"),
    ],
)
def test_a_file_of_pairs_that_cannot_be_used_is_named(tmp_path, edit, message):
    path = tmp_path / "pairs.json"
    write_pairs(path, count_pairs(np.array([NORMAL, NODULE]), DEFAULT_CHAIN))
    refuse_edited(message, path, edit, read_pairs, DEFAULT_CHAIN)
