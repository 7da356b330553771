"""Table `supervision`: accuracy of the last step against training cases, and against answers paid for.

A *set* is a collection of phantoms whose seed of drawing, split and training is one number. Smaller training sizes are
inside larger ones, all sizes have the same validation cases, and every network is scored on chests that no run draws.
`supervision.npz` keeps which answers were right; the table is made from it alone.
"""

import dataclasses
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom.phantom import PATIENT_BLOCK
from stepcot_jax.data.splits.splits import Splits, read_members
from stepcot_jax.evaluation.statistics import interval_over_sets
from stepcot_jax.host.array_files import read_arrays
from stepcot_jax.host.errors import BadInput
from stepcot_jax.pages.sheets import Row, Table, columns, heads
from stepcot_jax.run.plain_network import name_rival
from stepcot_jax.run.settings import Settings
from stepcot_jax.tools.tables.cells import Cell, vary
from stepcot_jax.tools.tables.plan import Grid, Plan, Recipe

CAPTION = "Of this generator: steps and diagnosis come from one drawn state."
ALONE = "diagnosis alone"
CURVES = {
    ALONE: ("last", "plain"),
    "plain, seven labels": ("all", "plain"),
    "plain, steps shuffled": ("shuffled", "plain"),
    "student without a teacher": ("student", "student"),
    "teacher": ("distill", "teacher"),
    "student": ("distill", "student"),
}
"""Network of the table -> its run and its name there."""

WITHHELD: dict[str, dict[str, float]] = {
    "none": {},
    "50 % of answers": {"withhold_answers": 0.5},
    "50 % of chains": {"withhold_chains": 0.5},
    "80 % of chains": {"withhold_chains": 0.8},
}
"""Training labels before the last step that a run lacks: as many single answers as those of half of the chains."""

KEPT_FILE = "supervision.npz"
NUM_VAL, NUM_EPOCHS = 500, 10  # validation cases at every size, and validations of a run
_WITH_LABELS_MISSING = ("all", "student", "distill")  # the other runs do without steps, or are a control
_SPARE = 100  # cases of the runs' own test splits; and of training beyond the largest size, since splits are stratified
_LEAST_DRAWN = 3  # sets whose interval is drawn: that of two hides every curve
_FACTS = ("size", "withheld", "network", "set", "answers")


def _run_changes(settings: Settings, run: str) -> dict[str, Any]:
    """Return the changes that make a run: the plain network, or a student without a teacher."""
    if run == "distill":
        return {}
    form = {"baseline.form": "student"} if run == "student" else {"baseline.steps": run}
    return {**name_rival(settings), "student.dropout": 0.0, **form}


def _cell(plan: Plan, size: int, withheld: str, run: str, number: int) -> Cell:
    grid, training, most = plan.grid, plan.settings.training, max(plan.grid.sizes)
    total = most + NUM_VAL + 2 * _SPARE
    teacher = round(NUM_EPOCHS * training.teacher_epochs / max(training.teacher_epochs + training.joint_epochs, 1))
    changes = {
        **_run_changes(plan.settings, run),
        **dict.fromkeys(("seed", "phantom.seed", "data.split_seed"), number),
        "phantom.num_cases": total,
        "data.split_fractions": ((most + _SPARE) / total, NUM_VAL / total, _SPARE / total),
        "data.num_train": size,
        "training.updates_per_epoch": grid.num_updates // NUM_EPOCHS,
        "training.teacher_epochs": teacher,
        "training.joint_epochs": NUM_EPOCHS - teacher,
        "baseline.epochs": NUM_EPOCHS,
        "evaluation.num_resamples": 0,
        "evaluation.gate_false_alarms": 0.0,
        **{f"data.{key}": share for key, share in WITHHELD[withheld].items()},
    }
    names = tuple(name for of_run, name in CURVES.values() if of_run == run)
    title = f"{run}, {size} cases, withheld: {withheld}"
    settings = vary(plan.settings, changes)
    unseen = _name_unseen(grid)
    return Cell(
        title, settings, None, (unseen,), lambda folder: {unseen: answer_unseen(folder, names, grid.num_unseen)}
    )


def _name_unseen(grid: Grid) -> str:
    """Return the name of a cell's file of answers; another number of chests is another file."""
    return f"unseen_{grid.num_unseen}.npz"


def _list(plan: Plan, number: int) -> dict[tuple[int, str, str], Cell]:
    """Return the cells of a set by size, withheld labels and run."""
    settings = plan.settings
    if settings.data.source != "phantom" or settings.image_encoder.is_frozen:
        raise BadInput(
            f"config.data.source: {settings.data.source!r} with config.image_encoder.name="
            f"{settings.image_encoder.name!r}; table supervision needs 'phantom' and an encoder that is trained"
        )
    if plan.grid.withhold_at not in plan.grid.sizes:
        sizes = ", ".join(map(str, plan.grid.sizes))
        raise BadInput(f"--withhold_at: {plan.grid.withhold_at} is not among --sizes; expected one of {sizes}")
    return {
        (size, withheld, run): _cell(plan, size, withheld, run, number)
        for size, num_sets in plan.grid.sizes.items()
        if number in plan.seeds[:num_sets]
        for withheld in (WITHHELD if size == plan.grid.withhold_at else ("none",))
        for run in dict.fromkeys(run for run, _ in CURVES.values())
        if withheld == "none" or run in _WITH_LABELS_MISSING
    }


def answer_unseen(folder: pathlib.Path, names: tuple[str, ...], num_unseen: int) -> bytes:
    """Return the file with the answers of a finished run's networks to chests beyond its own, and the true ones."""
    from stepcot_jax.data.dataset import Dataset
    from stepcot_jax.data.images.pixels import PhantomPixels, PixelCache
    from stepcot_jax.data.record_table import RecordTable
    from stepcot_jax.run.inputs import Inputs, select_entries
    from stepcot_jax.run.networks import trained_preprocessing
    from stepcot_jax.tools.tables.cell_networks import load_weights, read_cases

    weights = load_weights(folder, names)
    phantom, preprocessing = weights.settings.phantom, trained_preprocessing(weights.settings)
    drawing = PhantomPixels(phantom.seed, phantom.image_size, phantom.prevalence, preprocessing)
    first = -(-phantom.num_cases // PATIENT_BLOCK) * PATIENT_BLOCK
    cases = RecordTable(drawing.plan(first + index) for index in range(num_unseen))
    pixels, splits = PixelCache(lambda index: drawing(first + index), 0), Splits((), (), tuple(range(num_unseen)))
    dataset = Dataset(weights.chain, cases, splits, pixels, preprocessing)
    inputs = Inputs(dataset, None, weights.networks.image_encoder, select_entries)
    found = read_cases(weights, inputs, "test", weights.settings).predictions
    answers = {name: logits.argmax(axis=-1) for name, logits in found.logits.items()}
    content, arrays = io.BytesIO(), {"labels": found.labels, **answers}
    np.savez(content, **{name: array.astype(np.uint8) for name, array in arrays.items()})
    return content.getvalue()


def count_answers(num_cases: int, num_steps: int, withheld: str, run: str) -> int:
    """Return the number of training labels that `data.supervision.withhold` leaves."""
    if run == "last":
        return num_cases
    early, shares = num_steps - 1, WITHHELD[withheld]
    lost = early * round(shares.get("withhold_chains", 0) * num_cases)
    return num_cases * num_steps - lost - round(shares.get("withhold_answers", 0) * early * num_cases)


def gather(plan: Plan) -> dict[str, npt.NDArray]:
    """Return what `supervision.npz` keeps of the finished cells; its notes name the others."""
    rows, right = list[tuple[Any, ...]](), list[npt.NDArray]()
    labels, missing = dict[int, npt.NDArray](), dict[str, list[int]]()
    for number in plan.seeds:
        for (size, withheld, run), cell in _list(plan, number).items():
            if not plan.cells.is_finished(cell):
                missing.setdefault(cell.name, []).append(number)
                continue
            folder = plan.cells.folder(cell)
            path, expected = folder / _name_unseen(plan.grid), "expected the answers of a cell"
            arrays = read_arrays(path, accepted="arrays", expected=expected)
            truth = labels[number] = arrays["labels"]
            num_steps = truth.shape[1]
            paid = count_answers(len(read_members(folder / "splits.json")["train"]), num_steps, withheld, run)
            for network, (of_run, name) in CURVES.items():
                if of_run == run:
                    counts = (network != ALONE) | (np.arange(num_steps) == num_steps - 1)
                    rows.append((size, withheld, network, number, paid))
                    right.append(np.packbits((arrays[name] == truth) & counts))
    if not rows:
        raise BadInput(f"{plan.workdir}: no cell of the table supervision is finished; run it without --partial")
    left_out = "; ".join(f"{name} (sets {', '.join(map(str, sets))})" for name, sets in missing.items())
    notes = [
        f"Unseen chests of each set: {plan.grid.num_unseen:,}. Each network has the weights of its best validation "
        f"({NUM_VAL} cases) of {NUM_EPOCHS}, in {plan.grid.num_updates:,} updates at every size.",
        *([f"Not finished, left out: {left_out}."] if missing else []),
    ]
    about = (
        "Of each of `sets`: `labels` [case, step], true answers of its unseen chests. Of each network of a set: size "
        "(training cases), withheld labels, answers paid for, and `right`, the bits [case, step] of its right answers, "
        f"packed by numpy.packbits; of {ALONE!r} the last step alone."
    )
    return {
        **{fact: np.array(column) for fact, column in zip(_FACTS, zip(*rows, strict=True), strict=True)},
        "right": np.array(right),
        "sets": np.array([*labels]),
        "labels": np.stack([*labels.values()]),
        "notes": np.array(notes),
        "about": np.array(about),
    }


def tabulate(kept: Mapping[str, npt.NDArray], *, beside: Sequence[Mapping[str, Any]] = ()) -> Table:
    """Return the table and its figure, from what `supervision.npz` keeps; the figure has marks of rows `beside` it."""
    shape = kept["labels"].shape[1:]
    right = np.unpackbits(kept["right"], axis=1, count=shape[0] * shape[1]).reshape(-1, *shape)
    diagnosis, steps, paid = right[:, :, -1].mean(axis=1), right.mean(axis=(1, 2)), kept["answers"]
    found: dict[tuple[int, str, str], dict[int, int]] = {}  # -> set -> entry
    for entry, (*key, number) in enumerate(zip(*(kept[fact].tolist() for fact in _FACTS[:4]), strict=True)):
        found.setdefault((key[0], key[1], key[2]), {})[number] = entry
    rows: list[Row] = []
    last, gain = DEFAULT_CHAIN.steps[-1].name, f"above {ALONE}"
    order = {name: place for place, name in enumerate((*WITHHELD, *CURVES))}
    for size, withheld, network in sorted(found, key=lambda key: (key[0], order[key[1]], order[key[2]])):
        sets, alone = found[size, withheld, network], found.get((size, "none", ALONE), {})
        row: Row = {"training cases": size, "withheld": withheld, "network": network, "sets": len(sets)}
        row["answers paid for"] = round(float(np.mean(paid[[*sets.values()]])))
        row[last] = interval_over_sets([float(diagnosis[entry]) for entry in sets.values()])
        if network != ALONE:
            both = [(sets[number], alone[number]) for number in sets if number in alone]
            gains = [float(diagnosis[one] - diagnosis[other]) for one, other in both]
            row[gain] = interval_over_sets(gains) if gains else None
            row["steps"] = interval_over_sets([float(steps[entry]) for entry in sets.values()])
        rows.append(row)
    head = (
        *heads("#training cases", "withheld", "network", "#sets", "#answers paid for"),
        *columns("percent", last),
        *heads(f"+{gain}", "%steps"),
    )
    notes = (
        CAPTION,
        f"Mean ± deviation of the sets, Student's t interval. {gain.capitalize()}: of the same size, paired by set.",
        "A case with seven labels costs seven answers, one with its diagnosis alone costs one. Steps shuffled: answers "
        "before the last are those of another training case with the same diagnosis.",
        f"Answers paid for are those of training cases alone: to choose the best epoch, about {NUM_VAL} validation "
        f"cases are read besides, with all their labels, for {ALONE} with their diagnosis.",
        f"Of {ALONE} the best epoch is that of the best diagnosis; of plain with seven labels and with shuffled steps, "
        "and of the student without a teacher, that of the best mean of the steps, which works against them here.",
        "Teacher and student of a config that gives answers in training, as the quickstart does, are chosen by the "
        "mean of their accuracies without and with true earlier answers, and scored without.",
        *kept["notes"].tolist(),
    )
    table = Table.of("supervision", "When labels of the steps help", head, rows, notes)
    return dataclasses.replace(table, pictures={"supervision.png": draw(rows, last, beside=beside)})


def draw(rows: Sequence[Mapping[str, Any]], last: str, *, beside: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """Draw the accuracy against training cases, answers paid for, and labels withheld at one size, as PNG."""
    from matplotlib.figure import Figure

    from stepcot_jax.pages.figures import draw_band, to_png

    picture = Figure(figsize=(13, 5), layout="constrained")
    places = [name for name in WITHHELD if any(row["withheld"] == name for row in rows)]
    sizes = {row["training cases"] for row in rows if row["withheld"] != "none"}
    labels = ("training cases", "answers paid for", f"training labels withheld, {max(sizes, default=0):,} cases")
    for axes, label in zip(picture.subplots(1, 3, sharey=True), labels, strict=True):
        whole = [row for row in rows if row["withheld"] == "none"]
        panel = whole if label in labels[:2] else [row for row in rows if row["training cases"] in sizes]
        for network in CURVES:
            own = [row for row in panel if row["network"] == network]
            at = [row[label] if label in row else places.index(row["withheld"]) for row in own]
            if network == ALONE and panel is not whole:  # which no withheld label changes
                own, at = own * len(places), [*range(len(own) * len(places))]
            bare = {"low": None, "high": None}
            shown = [dataclasses.replace(row[last], **bare if row["sets"] < _LEAST_DRAWN else {}) for row in own]
            draw_band(axes, shown, label=network, at=at)
            for row in beside if panel is whole else ():
                if row["network"] == network:
                    figure, colour = row[last], axes.lines[-1].get_color()
                    axes.vlines(row[label], 100 * figure.low, 100 * figure.high, color=colour, alpha=0.5)
                    axes.plot(row[label], 100 * figure.value, marker="D", color=colour, markersize=4)
        axes.set(xlabel=label, xscale="log" if panel is whole else "linear")
        if panel is not whole:
            axes.set_xticks(range(len(places)), [place.replace(" of", "\nof") for place in places])
        axes.grid(alpha=0.3)
    picture.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=6, frameon=False)
    picture.supylabel(f"accuracy of {last} (%)")
    marks = " Diamonds: runs with other updates." if beside else ""
    picture.supxlabel(f"{CAPTION} Bands: 95 % intervals over at least {_LEAST_DRAWN} sets.{marks}", fontsize=9)
    return to_png(picture)


def make_tables(plan: Plan) -> list[Table]:
    """Make the table of the finished cells, and the file that it is made from."""
    kept, content = gather(plan), io.BytesIO()
    np.savez_compressed(content, **kept)  # type: ignore[arg-type]
    table = tabulate(kept)
    return [dataclasses.replace(table, pictures={**table.pictures, KEPT_FILE: content.getvalue()})]


RECIPES = {"supervision": Recipe(_list, make_tables)}
