"""Corrections: accuracy of the last step as steps are corrected, by policy, network and training; and what misleads."""

import dataclasses
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.calibration_files import read_calibration
from stepcot_jax.evaluation.intervals import percentiles
from stepcot_jax.evaluation.interventions import POLICIES, ReadGiven, as_distributions, correct_in_turn, give_logits
from stepcot_jax.evaluation.pair_ratios import fit_pair_ratios
from stepcot_jax.evaluation.resamples import count_once, resample, weighted_mean
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.tables.cells import Cell, vary
from stepcot_jax.tables.comparing import INTERVALS, Comparison, join, summarise
from stepcot_jax.tables.plan import Plan
from stepcot_jax.tables.writing import Column, Figure, Table

_PUBLISHED, _GIVEN = "as published", "with answers given"
_LEVEL, _SEED = 0.95, 0
NOISE = 0.2
"""Share of wrong answers among those that a careless reader gives."""
_PAIRS = " and pairs"
"""Suffix of a network whose logits get the log-ratios of pairs of answers."""


@dataclasses.dataclass(frozen=True)
class Readers:
    """The networks of a finished cell as functions from given answers, on the test split.

    Attributes:
      read: by network; those with the suffix " and pairs" add log-ratios.
      labels: [case, step].
      patients: [case].
    """

    read: Mapping[str, ReadGiven]
    labels: npt.NDArray[np.int32]
    patients: npt.NDArray[np.str_]


def trainings(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the trainings that are compared, as changes of the settings; the config's own schedule if it has one."""
    chosen = plan.settings.training.given_answers
    own = {"training.given_answers": "random" if chosen == "none" else chosen}
    return {_PUBLISHED: {"training.given_answers": "none"}, _GIVEN: own}


def list_cells(plan: Plan) -> list[Cell]:
    """Return teacher and student trained as published and with answers given."""
    return [_cell(plan, training, seed) for seed in plan.seeds for training in trainings(plan)]


def _cell(plan: Plan, training: str, seed: int) -> Cell:
    return Cell(f"trained {training}", vary(plan.main(seed).settings, trainings(plan)[training]))


def read_networks(plan: Plan, cell: Cell, chain: Chain) -> Readers:
    """Return the networks of a finished cell, with and without the log-ratios of pairs."""
    from stepcot_jax.features.inputs import load_inputs
    from stepcot_jax.systems.networks import make_read_given
    from stepcot_jax.tables.cell_networks import load_weights, read_features

    folder = plan.cells.folder(cell)
    settings = vary(cell.settings, {"features.folder": cell.settings.features.folder or str(plan.workdir / "features")})
    inputs = load_inputs(settings, folder, Terminal())
    names = ("teacher", "student")
    weights = load_weights(folder, names)
    calibration = read_calibration(folder / "calibration.json", chain)
    train = inputs.dataset.labels[np.asarray(inputs.dataset.splits.train, int)]
    read: dict[str, ReadGiven] = {}
    for name in names:
        of_split: dict[str, Callable[[Any], Any]] = {}
        for split in ("val", "test"):
            features, labels, patients = read_features(weights, name, inputs, split)
            of_split[split] = make_read_given(
                weights.networks, name, weights.params[name], features, weights.text_features
            )
            if split == "val":
                val_labels = labels
        temperatures = calibration.temperatures[name]
        pairs = fit_pair_ratios(
            of_split["val"], train_labels=train, labels=val_labels, temperatures=temperatures, chain=chain
        )
        read[name] = give_logits(of_split["test"], temperatures)
        read[f"{name}{_PAIRS}"] = give_logits(pairs.follow(of_split["test"]))
    return Readers(read, labels, patients)


def make_tables(plan: Plan) -> list[Table]:
    """Make the table of corrections with its curve, and that of what the training costs and how far it misleads."""
    chain = plan.cells.chain(_cell(plan, _PUBLISHED, plan.seeds[0]))
    right: dict[tuple[str, str, str], list[npt.NDArray[np.float64]]] = {}
    followed: dict[tuple[str, str], list[list[float]]] = {}
    for seed in plan.seeds:
        for training in trainings(plan):
            found = read_networks(plan, _cell(plan, training, seed), chain)
            for network, read in found.read.items():
                followed.setdefault((training, network), []).append(mislead(read, found.labels, chain, seed=seed))
                for policy in POLICIES:
                    probabilities, _ = correct_in_turn(policy, read, found.labels, chain, seed=seed)
                    own = probabilities[:, :, -1].argmax(axis=-1) == found.labels[:, -1]
                    right.setdefault((training, network, policy), []).append(own.astype(np.float64))
    counted = found.labels[:, -1] >= 0
    figures = {key: _figures(values, counted, found.patients, plan.num_resamples) for key, values in right.items()}
    return [_tabulate_curves(figures, chain, plan), _tabulate_cost(followed, chain, plan)]


def _tabulate_curves(figures: Mapping[Any, Sequence[Figure]], chain: Chain, plan: Plan) -> Table:
    last, num_counts = chain.steps[-1].name, chain.num_steps
    columns = (
        Column("training"),
        Column("network"),
        Column("steps chosen by"),
        *(Column(f"{count} corrected", "percent") for count in range(num_counts)),
        Column("area under the curve", "percent"),
    )
    notes = (
        f"Accuracy of {last} on the test split as earlier steps are corrected to their true answers, seeds "
        f"{list(plan.seeds)}.",
        INTERVALS,
        "Area under the curve: mean over the numbers of corrections.",
        f"Expected gain: mutual information of the step and {last}; uncertainty: entropy of the step itself.",
        "And pairs: log-ratios of pairs of answers, counted in the training labels and weighted on the validation "
        "split, are added to the network's logits.",
    )
    rows = tuple((*key, *own) for key, own in figures.items())
    pictures = {"corrections.png": draw_curves(figures, num_counts, chain)}
    return Table("corrections", "Accuracy as steps are corrected", columns, rows, notes, pictures)


def _tabulate_cost(followed: Mapping[tuple[str, str], list[list[float]]], chain: Chain, plan: Plan) -> Table:
    """The accuracy without help, compared in pairs, and what wrong answers do."""
    splits = []
    for seed in plan.seeds:
        cells = {training: plan.cells.predictions(_cell(plan, training, seed)) for training in trainings(plan)}
        parts = {f"{name} {training}": (cells[training], name) for training in cells for name in ("teacher", "student")}
        splits.append(join(parts))
    comparison, rows = Comparison(splits, chain, plan.num_resamples), []
    for (training, network), found in followed.items():
        name = network.removesuffix(_PAIRS)
        model, base = f"{name} {training}", f"{name} {_PUBLISHED}"
        plain = network == name
        rows.append(
            (
                training,
                network,
                comparison.figure(model, "mean_accuracy") if plain else None,
                comparison.difference(model, base, "mean_accuracy") if plain and model != base else None,
                *(_mean_of_seeds(values) for values in zip(*found, strict=True)),
            )
        )
    last = chain.steps[-1].name
    columns = (
        Column("training"),
        Column("network"),
        Column("mean step accuracy, own answers", "percent"),
        Column("difference from the published training", "points"),
        Column(f"{last}, none given", "percent"),
        Column(f"{last}, all true", "percent"),
        Column(f"{last}, one in five wrong", "percent"),
        Column(f"{last}, another case's", "percent"),
        Column("contradicts true answers", "percent"),
        Column("contradicts wrong answers", "percent"),
    )
    notes = (
        f"Test split, seeds {list(plan.seeds)}. What training with given answers costs without help, and how far wrong "
        "answers to the earlier steps mislead.",
        INTERVALS,
        "Contradicts: share of the given answers that are not the network's own most probable answer to that step, "
        "which it still reports.",
    )
    return Table("corrections_cost", "The price of following corrections", columns, tuple(rows), notes)


def mislead(read: ReadGiven, labels: npt.NDArray[np.int32], chain: Chain, *, seed: int) -> list[float]:
    """Return accuracies of the last step and shares of contradicted answers, in the order of the table's columns."""
    rng = np.random.default_rng(seed)
    others = (labels + rng.integers(1, np.maximum(chain.answers_per_step, 2), labels.shape)) % chain.answers_per_step
    noisy = np.where((rng.random(labels.shape) < NOISE) & (labels >= 0), others, labels)
    foreign = labels[rng.permutation(len(labels))]
    before_last = np.arange(chain.num_steps) < chain.num_steps - 1
    given = [np.full_like(labels, -1), labels, noisy, foreign]
    found = read(np.stack([as_distributions(np.where(before_last, each, -1), chain) for each in given]))
    answers, counted = found.argmax(axis=-1), labels[:, -1] >= 0
    accuracies = [float((own == labels[:, -1])[counted].mean()) for own in answers[:, :, -1]]
    annotated = (labels >= 0) & (foreign >= 0) & before_last
    wrong = annotated & (foreign != labels)
    contradicted = [(answers[1] != labels)[annotated], (answers[3] != foreign)[wrong]]
    return accuracies + [float(own.mean()) if own.size else float("nan") for own in contradicted]


def _mean_of_seeds(values: Sequence[float]) -> Figure:
    return Figure(statistics.fmean(values), deviation=statistics.stdev(values) if len(values) > 1 else None)


def _figures(
    right: Sequence[npt.NDArray[np.float64]], counted: npt.NDArray[np.bool_], patients: npt.NDArray, num_resamples: int
) -> list[Figure]:
    """Shares of right answers [seed][count, case] for each count, then their mean over the counts, with intervals."""
    found = []
    for own in right:
        values = np.concatenate([own, own.mean(axis=0, keepdims=True)]).T
        mask = np.broadcast_to(counted[:, None], values.shape)

        def compute(weights: npt.NDArray, values: Any = values, mask: Any = mask) -> dict[str, npt.NDArray]:
            return {"": weighted_mean(weights, values=values, counted=mask)}

        whole = compute(count_once(len(values)))[""][0]
        resampled = resample(compute, patients, num_resamples=num_resamples, seed=_SEED)[""]
        found.append(
            [percentiles(float(value), part, level=_LEVEL) for value, part in zip(whole, resampled.T, strict=True)]
        )
    return [summarise(of_seeds) for of_seeds in zip(*found, strict=True)]


def draw_curves(figures: Mapping[tuple[str, str, str], Sequence[Figure]], num_counts: int, chain: Chain) -> bytes:
    """Draw the accuracy against the number of corrections, one panel for each training and network, as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    panels = list(dict.fromkeys(key[:2] for key in figures))
    picture = Picture(figsize=(12, 6), layout="constrained")
    axes = picture.subplots(2, (len(panels) + 1) // 2, sharex=True, sharey=True).flat
    for panel, place in zip(panels, axes, strict=False):
        for policy in POLICIES:
            own = figures[*panel, policy][:num_counts]
            values = 100 * np.array([figure.value for figure in own])
            (line,) = place.plot(range(num_counts), values, marker="o", markersize=3, label=policy)
            ends = [100 * np.array([getattr(figure, end) for figure in own], float) for end in ("low", "high")]
            place.fill_between(range(num_counts), *ends, color=line.get_color(), alpha=0.1, linewidth=0)
        place.set_title(f"{panel[1]},\ntrained {panel[0]}", fontsize=9)
        place.grid(alpha=0.3)
    picture.supxlabel("corrected steps")
    picture.supylabel(f"accuracy of {chain.steps[-1].name} (%)")
    picture.legend(*place.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    content = io.BytesIO()
    FigureCanvasAgg(picture).print_png(content)
    return content.getvalue()
