"""Dumb rivals on the folds of table `folds`: `python -m benchmarks.small_rivals FILE.npz [FEATURES.npz RUN ...]`.

FEATURES.npz holds the frozen features that the table's runs read, --root the data, RUN the table's runs (all of them or
those of one seed), whose teacher and student are compared in pairs. The rivals are logistic regressions on an 8 x 8
thumbnail of the picture and on the same frozen features. They are trained on a fold's training cases, with the penalty
that is best on its validation cases. Labels, logits of the runs and answers of the rivals are kept in FILE.npz. Prints
accuracies of test cases with intervals by patient, which FILE.npz alone gives again.
"""

import argparse
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.splits.making import list_folds
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.evaluation.chains import most_frequent
from stepcot_jax.evaluation.predictions import read_predictions
from stepcot_jax.evaluation.statistics import Weights, bootstrap, weighted_mean
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import writing_whole
from stepcot_jax.host.ranges import Interval
from stepcot_jax.run.inputs import load_cases

CONSTANT, THUMBNAIL, HEADS = "most frequent answer", "8 x 8 thumbnail", "heads on the same features"
NETWORKS = ("teacher", "student")
STRENGTHS = 10.0 ** np.arange(-5, 2)  # inverse penalties


def shrink(picture: np.ndarray, side: int = 8) -> np.ndarray:
    """Return the means of `side` x `side` equal parts of a square picture, flat."""
    grey = np.asarray(picture, np.float64).reshape(*picture.shape[:2], -1).mean(axis=-1)
    parts = [np.array_split(rows, side, axis=1) for rows in np.array_split(grey, side)]
    return np.array([part.mean() for rows in parts for part in rows])


def classify(columns: np.ndarray, labels: np.ndarray, splits: Splits) -> np.ndarray:
    """Return the answers to the test cases of the regression best on validation; labels below 0 do not train."""
    train, val = (np.array([row for row in split if labels[row] >= 0]) for split in (splits.train, splits.val))
    tried = [
        make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=3000)).fit(columns[train], labels[train])
        for c in STRENGTHS
    ]
    return max(tried, key=lambda each: each.score(columns[val], labels[val])).predict(columns[list(splits.test)])


def answer(folds: Sequence[Dataset], features: Mapping[str, np.ndarray], steps: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the rivals' answers [case, step], each case as a test case of its fold."""
    dataset, labels = folds[0], folds[0].labels
    inputs = {
        THUMBNAIL: np.stack([shrink(dataset.pixels[index]) for index in range(len(labels))]),
        HEADS: np.stack([features[path] for path in dataset.cases.image_paths]),
    }
    answers = {name: np.zeros((len(labels), len(steps)), np.int8) for name in (CONSTANT, *inputs)}
    for splits in (fold.splits for fold in folds):
        test = list(splits.test)
        answers[CONSTANT][test] = most_frequent(labels[[*splits.train, *splits.val]])[list(steps)]
        for name, columns in inputs.items():
            for column, step in enumerate(steps):
                answers[name][test, column] = classify(columns, labels[:, step], splits)
    return answers


def read_runs(runs: Sequence[pathlib.Path], dataset: Dataset, steps: Sequence[int]) -> dict[str, np.ndarray]:
    """Return each network's logits [training, case, step, answer], of the runs that tested a case."""
    place = {path: index for index, path in enumerate(dataset.cases.image_paths)}
    logits: dict[str, list[list[np.ndarray]]] = {name: [[] for _ in place] for name in NETWORKS}
    for run in runs:
        split = read_predictions(run / "predictions" / "test.npz", dataset.chain)
        for row, case in enumerate(split.facts["case_id"].tolist()):
            for name in NETWORKS:
                logits[name][place[case]].append(split.predictions.logits[name][row, list(steps)])
    number = {len(rows) for rows in logits[NETWORKS[0]]}
    if len(number) != 1:
        raise BadInput(f"RUN: a case is tested by {min(number)} to {max(number)} runs; expected the runs of every fold")
    with np.errstate(over="ignore"):  # padding of the shorter step
        return {name: np.array(rows, np.float16).swapaxes(0, 1) for name, rows in logits.items()} if runs else {}


def show(path: pathlib.Path) -> str:
    """Return the table of a kept file as Markdown."""
    with np.load(path, allow_pickle=False) as file:
        kept = {name: file[name] for name in file.files}
    labels, patients, names = (kept.pop(name) for name in ("labels", "patients", "names"))
    answers = {name: array.argmax(axis=-1) if array.ndim > labels.ndim else array[None] for name, array in kept.items()}
    right = {name: (array == labels).mean(axis=0) for name, array in answers.items()}
    if "teacher" in right:
        right |= {f"teacher less {name}": right["teacher"] - right[name] for name in (THUMBNAIL, HEADS)}

    def compute(weights: Weights) -> dict[str, np.ndarray]:
        return {name: weighted_mean(weights, values=each, counted=labels >= 0) for name, each in right.items()}

    found = bootstrap(compute, patients)
    lines = [f"| | {' | '.join(names.tolist())} |", f"|---|{'---|' * len(names)}"]
    return "\n".join(lines + [f"| {name} | {' | '.join(map(_say, row))} |" for name, row in found.items()])


def _say(figure: Interval) -> str:
    return f"{100 * figure.value:.1f} [{100 * figure.low:.1f}, {100 * figure.high:.1f}]"


def keep(options: argparse.Namespace) -> None:
    """Write the kept file of runs."""
    given = {"data.root": options.root, "image_encoder.name": "resnet_small", "image_encoder.image_size": 64}
    folds = [load_cases("small_data", **given, **{"data.fold": fold}) for fold in list_folds()]
    dataset, labels = folds[0], folds[0].labels
    steps = [step for step in range(labels.shape[1]) if len(np.unique(labels[labels[:, step] >= 0, step])) > 1]
    with np.load(options.features, allow_pickle=False) as stored:
        features = dict(zip(stored["ids"].tolist(), stored["features"], strict=True))
    arrays = answer(folds, features, steps) | read_runs(options.runs, dataset, steps)
    _, patients = np.unique([case.patient for case in dataset.cases], return_inverse=True)
    names = np.array([dataset.chain.steps[step].name for step in steps])
    with writing_whole(options.file) as file:
        facts = {"labels": labels[:, steps].astype(np.int8), "patients": patients.astype(np.int16), "names": names}
        np.savez_compressed(file, allow_pickle=False, **facts, **arrays)


def main(arguments: list[str] | None = None) -> int:
    """Print the table as Markdown."""
    about = (__doc__ or "").partition(":")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_rivals", description=about)
    parser.add_argument("file", type=pathlib.Path, metavar="FILE.npz")
    parser.add_argument("features", nargs="?", type=pathlib.Path, metavar="FEATURES.npz")
    parser.add_argument("runs", nargs="*", type=pathlib.Path, metavar="RUN")
    parser.add_argument("--root", metavar="FOLDER")
    options = parser.parse_args(arguments)
    if (options.features is None) != (options.root is None):
        parser.error("FEATURES.npz and --root FOLDER come together, without either FILE.npz is shown")
    if options.root:
        keep(options)
    print(show(options.file))
    return 0


if __name__ == "__main__":
    run_tool(main)
