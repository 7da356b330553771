"""Ablations of the paper's Tables 6 and 9 on chests that no run drew: `python -m benchmarks.ablations`.

A *set* is that of `benchmarks.does_it_help`, whose kept file has the plain network. `train` makes the full teacher and
student of a set, their ablations and a student without any teacher, which has as many updates as the plain network, and
keeps which answers are right; `show` makes the table from the kept files alone.
"""

import argparse
import io
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.does_it_help import FEWER, WORKDIR, of_set
from benchmarks.help_figures import KEPT, mean_over_sets, name_set, read_kept, to_cell, to_rows
from stepcot_jax.evaluation.statistics import correct
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import writing_whole
from stepcot_jax.run.plain_network import name_rival
from stepcot_jax.run.settings import load_settings
from stepcot_jax.run.training_run import Run
from stepcot_jax.tools.tables.plan import ABLATIONS, NETWORKS, OF_STUDENT
from stepcot_jax.tools.tables.supervision_table import answer_unseen

CONFIG, FULL, ALONE = "quickstart", "full", "student without a teacher"
FIGURES = ("steps", "diagnosis", "whole chains")


def name_file(number: int) -> str:
    """Return the file name of a set's ablations."""
    return f"ablations_{number:02}.npz"


def list_runs() -> dict[str, tuple[dict[str, Any], dict[str, str]]]:
    """Return each run's changes of the quickstart, and its networks by the table's names."""
    runs: dict[str, tuple[dict[str, Any], dict[str, str]]] = {FULL: ({}, {name: name for name in NETWORKS})}
    for ablation, changes in ABLATIONS.items():
        networks = ("student",) if ablation in OF_STUDENT else NETWORKS
        runs[ablation] = changes, {f"{network} {ablation}": network for network in networks}
    alone = {**name_rival(load_settings(CONFIG)), "baseline.form": "student", "student.dropout": 0.0}
    return {**runs, ALONE: (alone, {ALONE: "student"})}


def train(number: int, workdir: pathlib.Path, keep: pathlib.Path, num_unseen: int) -> None:
    """Train the runs of a set that are not finished, and keep which answers are right."""
    right: dict[str, npt.NDArray] = {}
    for run, (changes, names) in list_runs().items():
        folder = workdir / f"{CONFIG}_{number}" / run.replace(" ", "_")
        if not (folder / "report.json").is_file():
            Run(CONFIG, workdir=folder, **{**changes, **of_set(number), **FEWER}).execute()
        with np.load(io.BytesIO(answer_unseen(folder, tuple(names.values()), num_unseen))) as answers:
            right |= {name: np.packbits(answers[network] == answers["labels"]) for name, network in names.items()}
            labels = answers["labels"]
    keep.mkdir(parents=True, exist_ok=True)
    with writing_whole(keep / name_file(number)) as file:
        np.savez_compressed(file, allow_pickle=False, labels=labels, **right)


def measure(keep: pathlib.Path, number: int) -> dict[str, dict[str, float]]:
    """Return the figures of a set's networks, ablations and plain network, in per cent."""
    full = read_kept(keep / name_set(CONFIG, number))
    right = {"plain": full.answers["plain"] == full.labels}
    with np.load(keep / name_file(number), allow_pickle=False) as file:
        if not np.array_equal(file["labels"], full.labels):
            raise BadInput(f"{keep / name_file(number)}: other chests than {name_set(CONFIG, number)}")
        for name in file.files:
            if name != "labels":
                bits = np.unpackbits(file[name], count=full.labels.size)
                right[name] = bits.reshape(full.labels.shape).astype(bool)
    of = {name: (array.mean(), array[:, -1].mean(), array.all(axis=1).mean()) for name, array in right.items()}
    return {name: {f: 100 * float(v) for f, v in zip(FIGURES, values, strict=True)} for name, values in of.items()}


def show(keep: pathlib.Path) -> str:
    """Return the table of the kept sets as Markdown."""
    numbers = [int(path.stem.rpartition("_")[2]) for path in sorted(keep.glob("ablations_[0-9]*.npz"))]
    if not numbers:
        raise BadInput(f"{keep}: no {name_file(1)}; python -m benchmarks.ablations train makes it")
    sets = [measure(keep, number) for number in numbers]
    base = {name: name.partition(" ")[0] for name in sets[0] if " " in name}
    less = {
        (name, figure): mean_over_sets(of[name][figure] - of[full][figure] for of in sets)
        for name, full in base.items()
        for figure in FIGURES
    }
    p_values = dict(zip(less, correct([mean.p for mean in less.values()]), strict=True))
    rows = []
    for name in sorted(sets[0], key=lambda name: (base.get(name, name), name in base)):
        cells = [to_cell(mean_over_sets(of[name][figure] for of in sets)) for figure in FIGURES]
        gains = [
            f"{to_cell(less[name, figure])} ({p_values[name, figure]:.3f})" if name in base else "-"
            for figure in FIGURES
        ]
        rows.append([name, *cells, *gains])
    header = ["network", *FIGURES, *(f"{figure}, less full (p, Holm)" for figure in FIGURES)]
    listed = ", ".join(map(str, numbers))
    about = f"{len(sets)} sets of `{CONFIG}` ({listed}); per cent; mean over the sets, 95 % t interval"
    return "\n".join([about, "", *to_rows(header, rows)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and keep sets, or print what is kept."""
    about = (__doc__ or "").partition(":")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablations", description=about)
    parser.add_argument("what", choices=("train", "show"))
    parser.add_argument("--sets", type=int, nargs="+", default=[*range(1, 6)], help="(default: 1 to 5)")
    parser.add_argument("--num-cases", type=int, default=4000, help="unseen chests of a set (default: %(default)s)")
    parser.add_argument("--workdir", type=pathlib.Path, default=WORKDIR, help="(default: %(default)s)")
    parser.add_argument("--keep", type=pathlib.Path, default=KEPT, help="folder of kept files (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.what == "show":
        print(show(options.keep))
        return 0
    for number in options.sets:
        if not (options.keep / name_file(number)).is_file():
            train(number, options.workdir, options.keep, options.num_cases)
    return 0


if __name__ == "__main__":
    run_tool(main)
