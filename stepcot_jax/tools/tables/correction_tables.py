"""Table `corrections`: accuracy as steps are corrected, by training."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.evaluation.calibration import read_calibration
from stepcot_jax.evaluation.comparison import INTERVALS
from stepcot_jax.evaluation.counting import Counting, choose_counting, fit_joints
from stepcot_jax.evaluation.interventions import POLICIES, ReadGiven, as_probabilities, correct_in_turn
from stepcot_jax.evaluation.joint import JointModel, ReadLogits, learn_tree, name_joined
from stepcot_jax.evaluation.joint_fit import read_written_back
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.evaluation.statistics import bootstrap, summarise, weighted_mean
from stepcot_jax.host.ranges import Interval
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.pages.sheets import Entry, Table, columns, heads
from stepcot_jax.run.inputs import Inputs
from stepcot_jax.run.stored import CALIBRATION_FILE
from stepcot_jax.tools.tables.cells import Cell, vary
from stepcot_jax.tools.tables.plan import NETWORKS, Plan, Recipe

_JOINED_NOTE = (
    "Joined: the network's own answers, times how often answers go together in the training labels, weighed on the "
    "validation split (stepcot_jax/evaluation/joint.py)."
)
_COUNTED_NOTE = (
    "Counting: naive Bayes on the training labels, or the joint model without its picture, whichever is more accurate "
    "on validation; where a network's figure is no higher, its picture adds nothing to the given answers."
)

COUNTED = ("no picture", "counting")
"""Training and network of the baseline, which sees no picture (`counting.choose_counting`)."""


@dataclasses.dataclass(frozen=True)
class Readers:
    """The networks of a finished cell as functions from given answers, on the test split."""

    read: Mapping[str, ReadGiven]  # by network; those with the suffix ", joined" are joint readings
    counted: ReadGiven  # the baseline that sees no picture
    labels: npt.NDArray[np.int32]
    patients: npt.NDArray[np.str_]


class Fitted(NamedTuple):
    """What is counted in training labels and fitted on validation cases."""

    joints: Mapping[str, JointModel]  # by network
    counting: Counting


def fit_readers(
    dataset: Dataset, validation: Mapping[str, tuple[ReadLogits, npt.NDArray[np.int32]]], chain: Chain
) -> Fitted:
    """Learn which answers go together from training labels, and fit each network's weights on validation cases."""
    training = dataset.labels[np.asarray(dataset.splits.train, int)]
    sizes = chain.answers_per_step
    tree = learn_tree(training, sizes)
    written = {name: read_written_back(read, labels, sizes) for name, (read, labels) in validation.items()}
    labels = next(iter(written.values())).labels
    logits = {name: cases.alone for name, cases in written.items()}
    predictions = Predictions(np.arange(len(labels), dtype=np.int32), labels, logits)
    return Fitted(fit_joints(tree, predictions, written, chain), choose_counting(tree, training, labels, chain))


def read_networks(plan: Plan, cell: Cell, chain: Chain) -> Readers:
    """Return the networks of a finished cell, as they answer themselves and joined."""
    from stepcot_jax.run.inputs import load_inputs
    from stepcot_jax.systems.networks import make_read_given
    from stepcot_jax.tools.tables.cell_networks import load_weights, read_features

    folder = plan.cells.folder(cell)
    weights, calibration = load_weights(folder, NETWORKS), read_calibration(folder / CALIBRATION_FILE, chain)

    def read_split(name: str, inputs: Inputs, split: str) -> tuple[ReadLogits, npt.NDArray, npt.NDArray]:
        features, labels, patients = read_features(weights, name, inputs, split)
        of_network = weights.networks, name, weights.params[name]
        return make_read_given(*of_network, features, weights.text_features), labels, patients

    def fit(view: Inputs) -> Fitted:
        return fit_readers(view.dataset, {name: read_split(name, view, "val")[:2] for name in NETWORKS}, chain)

    (joints, counting), opened = load_inputs(
        plan.cells.share_features(cell.settings), folder, Terminal()
    ).choose_then_open(fit)
    read = dict[str, ReadGiven]()
    for name in NETWORKS:
        alone, labels, patients = read_split(name, opened, "test")
        read[name] = as_probabilities(alone, calibration.temperatures[name])
        nothing = np.zeros((1, *labels.shape, max(chain.answers_per_step)), np.float32)
        logits: npt.NDArray[np.float32] = np.asarray(alone(nothing))[0]
        read[name_joined(name)] = joints[name].join(logits, alone)
        own = np.exp(joints[name].calibrate(logits)[-1])
        read[f"{name}, own {chain.steps[-1].name} x naive Bayes"] = counting.bayes.beside(own)
    return Readers(read, counting.read, labels, patients)


OfSeeds = Sequence[npt.NDArray[np.float64]]
"""Whether answers are right, an array for each seed; NaN without a true answer."""


def share_figures(right: OfSeeds, patients: npt.NDArray, num_resamples: int) -> list[Interval]:
    """Return the means over cases of values [seed][row, case] by row, with intervals by patient; NaN is left out."""
    by_seed = [
        bootstrap(
            lambda weights, values=of_seed.T: {"": weighted_mean(weights, values=values, counted=~np.isnan(values))},
            patients,
            num_resamples=num_resamples,
        )[""]
        for of_seed in right
    ]
    return [summarise(of_seeds) for of_seeds in zip(*by_seed, strict=True)]


_PUBLISHED, _GIVEN = "without answers given", "with answers given"


def trainings(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the trainings that are compared, as changes of the settings; the config's own schedule if it has one."""
    chosen = plan.settings.training.given_answers
    given = {"training.given_answers": "random" if chosen == "none" else chosen}
    return {_PUBLISHED: {"training.given_answers": "none"}, _GIVEN: given}


def _cell(plan: Plan, training: str, seed: int) -> Cell:
    return Cell(f"trained {training}", vary(plan.main(seed).settings, trainings(plan)[training]))


def _read_all(plan: Plan, chain: Chain) -> Iterator[tuple[tuple[str, str], ReadGiven, Readers, int]]:
    """Yield training and network, the network, its readers and the seed; the baseline comes first."""
    for seed in plan.seeds:
        for training in trainings(plan):
            readers = read_networks(plan, _cell(plan, training, seed), chain)
            if training == _PUBLISHED:  # the labels of a seed are the same for all trainings
                yield COUNTED, readers.counted, readers, seed
            for network, read in readers.read.items():
                yield (training, network), read, readers, seed


def make_tables(plan: Plan) -> list[Table]:
    """Make the tables of corrections with their curves, of differences, and of steps."""
    chain = plan.cells.chain(_cell(plan, _PUBLISHED, plan.seeds[0]))
    right: dict[tuple[str, str, str], list[npt.NDArray[np.float64]]] = {}
    by_step: dict[tuple[str, str], list[npt.NDArray[np.float64]]] = {}
    costs = plan.settings.evaluation.step_costs
    for key, read, readers, seed in _read_all(plan, chain):
        for policy in POLICIES:
            probabilities, _ = correct_in_turn(policy, read, readers.labels, chain, costs=costs, seed=seed)
            hits = np.where(readers.labels >= 0, probabilities.argmax(axis=-1) == readers.labels, np.nan)
            curve = np.concatenate([hits[..., -1], hits[..., -1].mean(axis=0, keepdims=True)])
            right.setdefault((*key, policy), []).append(curve)
            if policy == "chain order":
                by_step.setdefault(key, []).append(np.moveaxis(hits, 2, 1))
    patients = readers.patients
    figures = {key: share_figures(values, patients, plan.num_resamples) for key, values in right.items()}
    tables = _tabulate_differences(right, patients, chain, plan), _tabulate_steps(by_step, patients, chain, plan)
    return [_tabulate_curves(figures, chain, plan), *tables]


def _tabulate_differences(
    right: Mapping[tuple[str, str, str], OfSeeds], patients: npt.NDArray[np.str_], chain: Chain, plan: Plan
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
        for count in (1, few, most):
            compared.append((f"{count} corrected, from counting without the picture", count, counted, count))
        for count, policy in itertools.product((1, few), others):
            base = right[training, network, policy]
            compared.append((f"{count} corrected, {gain} from {policy}", count, base, count))
        by_seed = [
            np.stack([one[count] - base[seed][of_base] for _, count, base, of_base in compared])
            for seed, one in enumerate(by_gain)
        ]
        rows.append((training, network, *share_figures(by_seed, patients, plan.num_resamples)))
    notes = (
        f"Differences in the accuracy of {last} on the same test cases, seeds {list(plan.seeds)}; where no policy "
        f"is named, steps are chosen by {gain}.",
        INTERVALS,
        _COUNTED_NOTE,
    )
    head = heads("training", "network", *(f"+{heading}" for heading, *_ in compared))
    return Table("corrections_differences", "What corrections are worth", head, tuple(rows), notes)


def _tabulate_steps(
    right: Mapping[tuple[str, str], OfSeeds], patients: npt.NDArray[np.str_], chain: Chain, plan: Plan
) -> Table:
    """Return the accuracy of each step, given the first true answers; `right`: [count, step, case] of each seed."""
    head = (*heads("training", "network", "corrected"), *columns("percent", *(step.name for step in chain.steps)))
    rows: list[tuple[Entry, ...]] = []
    for key, values in right.items():
        for count in range(chain.num_steps):
            later = share_figures([of_seed[count, count:] for of_seed in values], patients, plan.num_resamples)
            rows.append((*key, str(count), *[None] * count, *later))
    notes = (
        f"Test split, seeds {list(plan.seeds)}; the first steps corrected to their true answers.",
        INTERVALS,
        _COUNTED_NOTE,
    )
    title = "Accuracy of each step after corrections of earlier ones"
    return Table("corrections_steps", title, head, tuple(rows), notes)


def _tabulate_curves(figures: Mapping[Any, Sequence[Interval]], chain: Chain, plan: Plan) -> Table:
    last, num_counts = chain.steps[-1].name, chain.num_steps
    counts = (f"%{count} corrected" for count in range(num_counts))
    head = heads("training", "network", "steps chosen by", *counts, "%area under the curve")
    notes = (
        f"Accuracy of {last} on the test split as earlier steps are corrected to their true answers, seeds "
        f"{list(plan.seeds)}.",
        INTERVALS,
        "Area under the curve: mean over the numbers of corrections.",
        f"Expected gain: rise of the expected accuracy of {last}, of equal ones the most informative step; "
        "uncertainty: entropy of the step itself.",
        _JOINED_NOTE,
        _COUNTED_NOTE,
    )
    rows = tuple((*key, *intervals) for key, intervals in figures.items())
    pictures = {"corrections.png": draw_curves(figures, num_counts, chain)}
    return Table("corrections", "Accuracy as steps are corrected", head, rows, notes, pictures)


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
            draw_band(axes, figures[*panel, policy][:num_counts], label=policy)
        axes.plot(range(num_counts), counted, "--", color="black", linewidth=1, label=f"counting, {POLICIES[0]}")
        axes.set_title(f"{panel[1]},\ntrained {panel[0]}", fontsize=9)
        axes.grid(alpha=0.3)
    picture.supxlabel("corrected steps")
    picture.supylabel(f"accuracy of {chain.steps[-1].name} (%)")
    picture.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
    return to_png(picture)


RECIPES = {
    "corrections": Recipe(lambda plan, seed: [_cell(plan, training, seed) for training in trainings(plan)], make_tables)
}
