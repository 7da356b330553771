"""Table `corrections`: accuracy of the last step as steps are corrected, by policy, network and training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.comparison import INTERVALS
from stepcot_jax.evaluation.interventions import POLICIES, correct_in_turn
from stepcot_jax.pages.sheets import Entry, Interval, Table, columns
from stepcot_jax.tools.tables.cells import Cell, vary
from stepcot_jax.tools.tables.following import (
    COUNTED,
    DESCRIBE_COUNTED,
    Following,
    describe_following,
    follow,
    read_networks,
    share_figures,
    tabulate_following,
)
from stepcot_jax.tools.tables.plan import Plan

_PUBLISHED, _GIVEN = "as published", "with answers given"


def trainings(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the trainings that are compared, as changes of the settings; the config's own schedule if it has one."""
    chosen = plan.settings.training.given_answers
    given = {"training.given_answers": "random" if chosen == "none" else chosen}
    return {_PUBLISHED: {"training.given_answers": "none"}, _GIVEN: given}


def list_cells(plan: Plan) -> list[Cell]:
    """Return teacher and student trained as published and with answers given."""
    return [_cell(plan, training, seed) for seed in plan.seeds for training in trainings(plan)]


def _cell(plan: Plan, training: str, seed: int) -> Cell:
    return Cell(f"trained {training}", vary(plan.main(seed).settings, trainings(plan)[training]))


def make_tables(plan: Plan) -> list[Table]:
    """Make the tables of corrections with their curves, of differences, of steps, and of the cost of the training."""
    chain = plan.cells.chain(_cell(plan, _PUBLISHED, plan.seeds[0]))
    right: dict[tuple[str, str, str], list[npt.NDArray[np.float64]]] = {}
    by_step: dict[tuple[str, str], list[npt.NDArray[np.float64]]] = {}
    followed: dict[tuple[str, str], list[Following]] = {}
    for seed in plan.seeds:
        for training in trainings(plan):
            networks = read_networks(plan, _cell(plan, training, seed), chain)
            readers = {(training, network): read for network, read in networks.read.items()}
            if training == _PUBLISHED:  # the labels of a seed are the same for all trainings
                readers = {COUNTED: networks.counted, **readers}
            for key, read in readers.items():
                following = follow(read, networks.labels, chain, networks.rules, seed=seed)
                followed.setdefault(key, []).append(following)
                for policy in POLICIES:
                    probabilities, _ = correct_in_turn(
                        policy, read, networks.labels, chain, costs=plan.settings.evaluation.step_costs, seed=seed
                    )
                    hits = np.where(networks.labels >= 0, probabilities.argmax(axis=-1) == networks.labels, np.nan)
                    curve = np.concatenate([hits[..., -1], hits[..., -1].mean(axis=0, keepdims=True)])
                    right.setdefault((*key, policy), []).append(curve)
                    if policy == "chain order":
                        by_step.setdefault(key, []).append(np.moveaxis(hits, 2, 1))
    figures = {key: share_figures(values, networks.patients, plan.num_resamples) for key, values in right.items()}
    cells = {training: [_cell(plan, training, seed) for seed in plan.seeds] for training in trainings(plan)}
    heads, rows = tabulate_following(plan, chain, cells, followed, networks.patients)
    title = "The price of following corrections"
    cost = Table("corrections_cost", title, heads, rows, describe_following(plan))
    curves = _tabulate_curves(figures, chain, plan)
    differences = _tabulate_differences(right, networks.patients, chain, plan)
    return [curves, differences, _tabulate_steps(by_step, networks.patients, chain, plan), cost]


def _tabulate_differences(
    right: Mapping[tuple[str, str, str], Sequence[npt.NDArray[np.float64]]],
    patients: npt.NDArray[np.str_],
    chain: Chain,
    plan: Plan,
) -> Table:
    """Return the paired gains from corrections and from the choice of steps; `right`: [count, case] of each seed."""
    gain, *others = POLICIES
    few, most, last = min(3, chain.num_steps - 1), chain.num_steps - 1, chain.steps[-1].name
    rows: list[tuple[Entry, ...]] = []
    for training, network in dict.fromkeys(key[:2] for key in right):
        by_gain = right[training, network, gain]
        published, counted = right.get((_PUBLISHED, network, gain), by_gain), right[*COUNTED, gain]
        # Heading, number of corrections, and what it is compared with after how many of them.
        compared = [(f"own answers, from {_PUBLISHED!r}", 0, published, 0)]
        compared += [(f"{count} corrected, from none", count, by_gain, 0) for count in (few, most)]
        compared += [
            (f"{count} corrected, from counting without the picture", count, counted, count) for count in (1, few, most)
        ]
        compared += [
            (f"{count} corrected, {gain} from {policy}", count, right[training, network, policy], count)
            for count in (1, few)
            for policy in others
        ]
        by_seed = [
            np.stack([one[count] - base[seed][of_base] for _, count, base, of_base in compared])
            for seed, one in enumerate(by_gain)
        ]
        rows.append((training, network, *share_figures(by_seed, patients, plan.num_resamples)))
    notes = (
        f"Differences in the accuracy of {last} on the same test cases, seeds {list(plan.seeds)}; where no policy "
        f"is named, steps are chosen by {gain}.",
        INTERVALS,
        DESCRIBE_COUNTED,
    )
    heads = (*columns("text", "training", "network"), *columns("points", *(heading for heading, *_ in compared)))
    return Table("corrections_differences", "What corrections are worth", heads, tuple(rows), notes)


def _tabulate_steps(
    right: Mapping[tuple[str, str], Sequence[npt.NDArray[np.float64]]],
    patients: npt.NDArray[np.str_],
    chain: Chain,
    plan: Plan,
) -> Table:
    """Return the accuracy of each step, given the first true answers; `right`: [count, step, case] of each seed."""
    heads = (
        *columns("text", "training", "network", "corrected"),
        *columns("percent", *(step.name for step in chain.steps)),
    )
    rows = [
        (
            *key,
            str(count),
            *([None] * count),
            *share_figures([of_seed[count, count:] for of_seed in values], patients, plan.num_resamples),
        )
        for key, values in right.items()
        for count in range(chain.num_steps)
    ]
    notes = (
        f"Test split, seeds {list(plan.seeds)}; the first steps corrected to their true answers.",
        INTERVALS,
        DESCRIBE_COUNTED,
    )
    title = "Accuracy of each step after corrections of earlier ones"
    return Table("corrections_steps", title, heads, tuple(rows), notes)


def _tabulate_curves(figures: Mapping[Any, Sequence[Interval]], chain: Chain, plan: Plan) -> Table:
    last, num_counts = chain.steps[-1].name, chain.num_steps
    heads = (
        *columns("text", "training", "network", "steps chosen by"),
        *columns("percent", *(f"{count} corrected" for count in range(num_counts)), "area under the curve"),
    )
    notes = (
        f"Accuracy of {last} on the test split as earlier steps are corrected to their true answers, seeds "
        f"{list(plan.seeds)}.",
        INTERVALS,
        "Area under the curve: mean over the numbers of corrections.",
        f"Expected gain: mutual information of the step and {last}; uncertainty: entropy of the step itself.",
        "And pairs: log-ratios of pairs of answers, counted in the training labels and weighted on the validation "
        "split, are added to the network's logits.",
        DESCRIBE_COUNTED,
    )
    rows = tuple((*key, *intervals) for key, intervals in figures.items())
    pictures = {"corrections.png": draw_curves(figures, num_counts, chain)}
    return Table("corrections", "Accuracy as steps are corrected", heads, rows, notes, pictures)


def draw_curves(figures: Mapping[tuple[str, str, str], Sequence[Interval]], num_counts: int, chain: Chain) -> bytes:
    """Draw the accuracy against the number of corrections, one panel for each training and network, as PNG.

    The dashed line of every panel is the baseline that counts and sees no picture.
    """
    from matplotlib.figure import Figure as Picture

    from stepcot_jax.pages.figures import draw_band, to_png

    panels = [key for key in dict.fromkeys(key[:2] for key in figures) if key != COUNTED]
    counted = [100 * figure.value for figure in figures[*COUNTED, POLICIES[0]][:num_counts]]
    picture = Picture(figsize=(12, 6), layout="constrained")
    panel_axes = picture.subplots(2, (len(panels) + 1) // 2, sharex=True, sharey=True).flat
    for panel, axes in zip(panels, panel_axes, strict=False):
        for policy in POLICIES:
            draw_band(axes, figures[*panel, policy][:num_counts], label=policy, size=3, alpha=0.1)
        axes.plot(range(num_counts), counted, "--", color="black", linewidth=1, label=f"counting, {POLICIES[0]}")
        axes.set_title(f"{panel[1]},\ntrained {panel[0]}", fontsize=9)
        axes.grid(alpha=0.3)
    picture.supxlabel("corrected steps")
    picture.supylabel(f"accuracy of {chain.steps[-1].name} (%)")
    picture.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
    return to_png(picture)
