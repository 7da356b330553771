"""Table `schedules`: schedules of given answers by accuracy without given answers, with true and with wrong ones."""

from typing import Any

from stepcot_jax.pages.sheets import Table
from stepcot_jax.tools.tables.cells import Cell, vary
from stepcot_jax.tools.tables.encoders import OF_TEACHER
from stepcot_jax.tools.tables.following import (
    COUNTED,
    Following,
    describe_following,
    follow,
    read_networks,
    tabulate_following,
)
from stepcot_jax.tools.tables.plan import Plan

PUBLISHED = "none (as published)"


def _make_changes(schedule: str, rate: float, **more: Any) -> dict[str, Any]:
    changes = {"given_answers": schedule, "given_rate": rate, "given_noise": 0.0, "given_to": "both"} | more
    return {f"training.{name}": value for name, value in changes.items()}


TRAININGS: dict[str, dict[str, Any]] = {
    PUBLISHED: _make_changes("none", 0.75),
    **{f"random, {rate:.0%}": _make_changes("random", rate) for rate in (0.25, 0.5, 0.75, 1.0)},
    "prefix, 75%": _make_changes("prefix", 0.75),
    **{f"annealed to {rate:.0%}": _make_changes("annealed", rate) for rate in (0.0, 0.5)},
    **{
        f"random, 75%, of them {noise:.0%} wrong": _make_changes("random", 0.75, given_noise=noise)
        for noise in (0.1, 0.2)
    },
    "random, 75%, teacher alone": _make_changes("random", 0.75, given_to="teacher"),
}
"""Trainings with their changes of the settings; the first is the base of all differences."""


def list_cells(plan: Plan) -> list[Cell]:
    """Return each seed's full networks, whose image features the trainings share, and the trainings."""
    mains = [plan.main(seed) for seed in plan.seeds]
    return mains + [_cell(plan, training, seed) for seed in plan.seeds for training in TRAININGS]


def _cell(plan: Plan, training: str, seed: int) -> Cell:
    """Return a cell that trains on the frozen features of the seed's own teacher, or of the config's frozen encoder."""
    encoders = plan.encoders(seed)
    encoder = next((encoder for encoder in encoders if encoder.name.endswith(OF_TEACHER)), encoders[0])
    settings = vary(plan.main(seed).settings, {**encoder.changes, **TRAININGS[training]})
    return Cell(f"given answers: {training}", settings, prepare=encoder.prepare)


def make_tables(plan: Plan) -> list[Table]:
    """Make the table of schedules."""
    chain = plan.cells.chain(_cell(plan, PUBLISHED, plan.seeds[0]))
    followed: dict[tuple[str, str], list[Following]] = {}
    for training in TRAININGS:
        for seed in plan.seeds:
            networks = read_networks(plan, _cell(plan, training, seed), chain)
            for network, read in networks.read.items():
                following = follow(read, networks.labels, chain, networks.rules, seed=seed)
                followed.setdefault((training, network), []).append(following)
            if training == PUBLISHED:  # the labels of a seed are the same for all trainings
                following = follow(networks.counted, networks.labels, chain, networks.rules, seed=seed)
                followed.setdefault(COUNTED, []).append(following)
    cells = {training: [_cell(plan, training, seed) for seed in plan.seeds] for training in TRAININGS}
    columns, rows = tabulate_following(plan, chain, cells, followed, networks.patients)
    notes = (
        "All trainings of a seed read the same image features, of the encoder that the config's own training left, and "
        "differ in nothing but the answers given in training.",
        "Random: each earlier true answer with this probability, by case and step. Prefix: the first answers, one to "
        "all but the last, in this share of the cases. Annealed: as random, from 100 % down to this rate.",
        *describe_following(plan),
    )
    return [Table("schedules", "Schedules of answers given in training", columns, rows, notes)]
