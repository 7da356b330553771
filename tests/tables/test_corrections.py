"""The table of corrections: figures over seeds, and what wrong answers do, on a network known in closed form."""

import dataclasses

import numpy as np
import pytest

from configs import quickstart
from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.interventions import POLICIES, give_logits
from stepcot_jax.settings.run_settings import make_settings
from stepcot_jax.tables import corrections_table
from stepcot_jax.tables.cells import Cells
from stepcot_jax.tables.plan import Plan
from stepcot_jax.tables.writing import Figure

CHAIN = Chain((Step("A", "A?", ("one", "two")), Step("B", "B?", ("up", "down")), Step("C", "C?", ("yes", "no"))))
LABELS = np.random.default_rng(0).integers(0, 2, (200, 3)).astype(np.int32)
LABELS[:, 2] = LABELS[:, 0]  # A decides C
PATIENTS = np.array([f"p{case // 2}" for case in range(200)])


def follow(given):
    """Logits of a network that says the first answer everywhere, and C as A is given."""
    logits = np.zeros(given.shape)
    logits[..., 0] = 0.1
    logits[..., 2, :] += 3 * given[..., 0, :]
    return logits


def test_misleading_is_measured_with_the_answers_it_names():
    none, true, noisy, foreign, right, wrong = corrections_table.mislead(give_logits(follow), LABELS, CHAIN, seed=0)
    assert none == (LABELS[:, 2] == 0).mean()
    assert true == 1
    assert abs(noisy - (1 - corrections_table.NOISE)) < 0.1
    assert foreign < 0.65
    # The network itself always says the first answer: it contradicts every given second one.
    assert right == (LABELS[:, :2] == 1).mean()
    assert 0.3 < wrong < 0.7


def test_figures_are_means_over_seeds_with_the_mean_over_counts_last():
    rng = np.random.default_rng(1)
    right = [(rng.random((3, 200)) < share).astype(float) for share in (0.5, 0.7)]
    counted = np.arange(200) < 150
    found = corrections_table._figures(right, counted, PATIENTS, 100)
    assert len(found) == 4
    for count in range(3):
        values = [own[count, counted].mean() for own in right]
        assert found[count].value == pytest.approx(np.mean(values))
        assert found[count].deviation == pytest.approx(np.std(values, ddof=1))
        assert found[count].low < found[count].value < found[count].high
    assert found[3].value == pytest.approx(np.mean([figure.value for figure in found[:3]]))


@pytest.mark.parametrize(("config", "given"), [("none", "random"), ("prefix", "prefix")])
def test_both_trainings_are_compared_for_each_seed(tmp_path, config, given):
    settings = make_settings(quickstart.get_config())
    training = dataclasses.replace(settings.training, given_answers=config)
    plan = Plan(dataclasses.replace(settings, training=training), (0, 1), Cells(tmp_path, None))
    cells = corrections_table.list_cells(plan)
    assert [(cell.settings.seed, cell.settings.training.given_answers) for cell in cells] == [
        (0, "none"), (0, given), (1, "none"), (1, given),
    ]  # fmt: skip


def test_curves_are_drawn_for_every_panel():
    figures = {
        (training, network, policy): [Figure(0.5, 0.4, 0.6)] * 4
        for training in ("x", "y")
        for network in ("t", "s")
        for policy in POLICIES
    }
    content = corrections_table.draw_curves(figures, 3, CHAIN)
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000
