"""Make the table `supervision` again from kept answers, without training: `python -m benchmarks.supervision FILES`.

Several files, each with sets of its own, become one table. Sets of `benchmarks.does_it_help --config=phantom`, whose
runs have more cases and other updates, are marks in the figure.
"""

import argparse
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.help_figures import read_kept
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.evaluation.statistics import interval_over_sets
from stepcot_jax.host.array_files import read_arrays
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import write_whole
from stepcot_jax.pages.sheets import Row, to_markdown
from stepcot_jax.run.settings import load_settings
from stepcot_jax.tools.tables.supervision_table import KEPT_FILE, tabulate

NOTES = ("notes", "about")


def join(files: Mapping[str, Mapping[str, npt.NDArray]]) -> dict[str, npt.NDArray]:
    """Return what one file would keep of all sets; no two files may have the same set."""
    owner = dict[int, str]()
    for name, kept in files.items():
        for number in kept["sets"].tolist():
            if number in owner:
                raise BadInput(f"{name}: set {number} is in {owner[number]} too; expected files of different sets")
            owner[number] = name
    first = next(iter(files.values()))
    joined = {key: np.concatenate([kept[key] for kept in files.values()]) for key in first if key not in NOTES}
    notes = dict.fromkeys(note for kept in files.values() for note in kept["notes"].tolist())
    return {**joined, "notes": np.array([*notes]), "about": first["about"]}


def read_beside(folder: pathlib.Path) -> list[Row]:
    """Return the last step's figures of the kept sets of `phantom`, for `supervision_table.draw`."""
    sets = [read_kept(path) for path in sorted(folder.glob("phantom_[0-9]*.npz"))]
    if not sets:
        raise BadInput(f"{folder}: no kept set of phantom; expected phantom_01.npz and others")
    settings = load_settings("phantom")
    size = round(settings.phantom.num_cases * settings.data.split_fractions[0])
    rows, last = list[Row](), DEFAULT_CHAIN.steps[-1].name
    for shown, name in {"plain, seven labels": "plain", "teacher": "teacher", "student": "student"}.items():
        shares = [float((kept.answers[name] == kept.labels)[:, -1].mean()) for kept in sets]
        paid = size * sets[0].labels.shape[1]
        rows.append(
            {"network": shown, "training cases": size, "answers paid for": paid, last: interval_over_sets(shares)}
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every figure of the page as Markdown."""
    about = (__doc__ or "").partition(":")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.supervision", description=about)
    files = f"{KEPT_FILE} of `stepcot tables supervision`, of different sets"
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE", help=files)
    parser.add_argument("--join", type=pathlib.Path, metavar="FILE.npz", help="also keep all sets in this file")
    parser.add_argument("--figure", type=pathlib.Path, metavar="FILE.png", help="also draw the figure")
    parser.add_argument(
        "--beside", type=pathlib.Path, metavar="FOLDER", help="also mark the kept sets of phantom there"
    )
    options = parser.parse_args(arguments)
    expected = f"expected a {KEPT_FILE} of stepcot tables supervision"
    kept = join(
        {
            str(path): read_arrays(path, accepted="kept answers", expected=expected, most_unpacked=2**28)
            for path in options.files
        }
    )
    table = tabulate(kept, beside=read_beside(options.beside) if options.beside else ())
    if options.join:
        np.savez_compressed(options.join, **kept)  # type: ignore[arg-type]
    if options.figure:
        write_whole(options.figure, table.pictures["supervision.png"])
    print(to_markdown(table))
    return 0


if __name__ == "__main__":
    run_tool(main)
