"""Subgroups: membership, no scores for small groups, and the figures of the group's cases only."""

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, make_split

from stepcot_jax.evaluation.chains import evaluate
from stepcot_jax.evaluation.summary import GROUPINGS, UNKNOWN, age_band, score_subgroups

SPLIT = make_split(0, num_cases=120, num_patients=60)
GROUPS = score_subgroups(SPLIT, CHAIN, num_resamples=30)


def test_every_case_is_in_one_group_of_each_grouping():
    for grouping in GROUPINGS:
        assert sum(group.num_cases for group in GROUPS if group.grouping == grouping) == 120
    assert {group.models is None for group in GROUPS} == {True, False}
    assert all((group.models is None) == (group.num_patients < 10) for group in GROUPS)
    names = {grouping: [group.name for group in GROUPS if group.grouping == grouping] for grouping in GROUPINGS}
    assert names == {
        "origin": ["Ward A", "Ward B"],
        "view": ["AP", "PA", UNKNOWN],
        "sex": ["F", "M", UNKNOWN],
        "age": ["0-17", "18-39", "40-64", "65+", UNKNOWN],
    }


def test_a_group_has_the_figures_of_its_cases_alone():
    group = next(group for group in GROUPS if group.name == "F")
    alone = SPLIT.take(SPLIT.facts["sex"] == "F")
    assert group.num_cases == len(alone.predictions.index)
    assert group.num_patients == len(set(alone.facts["patient_id"]))
    for model, expected in evaluate(alone.predictions, CHAIN).items():
        found = group.models[model]
        assert found.mean_accuracy.value == expected.mean_accuracy
        assert found.steps[2].auc.value == expected.steps[2].auc
        assert found.mean_accuracy.low < found.mean_accuracy.value < found.mean_accuracy.high


def test_bands_of_age():
    ages = ("", "0", "17.99", "18", "39.9", "40", "64", "65.0", "150")
    bands = [UNKNOWN, "0-17", "0-17", "18-39", "18-39", "40-64", "40-64", "65+", "65+"]
    assert list(map(age_band, ages)) == bands


def test_means_of_all_groups_are_over_the_steps_of_the_whole_split():
    labels = SPLIT.predictions.labels.copy()
    of_women = SPLIT.facts["sex"] == "F"
    labels[of_women, 0] = 0  # one answer among women, two or more among men
    labels[:, 1] = np.where(labels[:, 1] < 0, labels[:, 1], 1)  # one answer in the whole split
    groups = score_subgroups(SPLIT.change(labels=labels), CHAIN, num_resamples=2)
    for group in (group for group in groups if group.grouping == "sex"):
        for found in group.models.values():
            counted = [step.accuracy.value for place, step in enumerate(found.steps) if place != 1]
            assert found.mean_accuracy.value == pytest.approx(np.mean(counted))
