"""Dumb rivals on the folds of table `folds`: `python -m benchmarks.small_rivals FEATURES.npz --root FOLDER [RUN ...]`.

FEATURES.npz holds the frozen features that the table's runs read, FOLDER the data, RUN the table's runs (all of them or
those of one seed), whose teacher and student are compared in pairs. The rivals are logistic regressions on an 8 x 8
thumbnail of the picture and on the same frozen features. They are trained on a fold's training cases, with the penalty
that is best on its validation cases. Prints accuracies of test cases with intervals by patient.
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
from stepcot_jax.host.ranges import Interval
from stepcot_jax.run.inputs import load_cases

CONSTANT, THUMBNAIL, HEADS = "most frequent answer", "8 x 8 thumbnail", "heads on the same features"
NETWORKS = ("teacher", "student")
STRENGTHS = 10.0 ** np.arange(-5, 2)  # inverse penalties

Right = dict[str, np.ndarray]  # shares of right answers [case, step], by reader


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


def score_rivals(folds: Sequence[Dataset], features: Mapping[str, np.ndarray], steps: Sequence[int]) -> Right:
    """Return whether the rivals are right, each case as a test case of its fold."""
    dataset, labels = folds[0], folds[0].labels
    inputs = {
        THUMBNAIL: np.stack([shrink(dataset.pixels[index]) for index in range(len(labels))]),
        HEADS: np.stack([features[path] for path in dataset.cases.image_paths]),
    }
    right = {name: np.zeros(labels.shape) for name in (CONSTANT, *inputs)}
    for splits in (fold.splits for fold in folds):
        test = list(splits.test)
        right[CONSTANT][test] = most_frequent(labels[[*splits.train, *splits.val]]) == labels[test]
        for name, columns in inputs.items():
            for step in steps:
                right[name][test, step] = classify(columns, labels[:, step], splits) == labels[test, step]
    return right


def score_runs(runs: Sequence[pathlib.Path], dataset: Dataset) -> Right:
    """Return the share of the runs that tested a case in which it is right."""
    place = {path: index for index, path in enumerate(dataset.cases.image_paths)}
    right, number = {name: np.zeros(dataset.labels.shape) for name in NETWORKS}, np.zeros((len(place), 1))
    for run in runs:
        split = read_predictions(run / "predictions" / "test.npz", dataset.chain)
        rows = [place[case] for case in split.facts["case_id"].tolist()]
        number[rows] += 1
        for name in NETWORKS:
            right[name][rows] += split.predictions.logits[name].argmax(axis=-1) == split.predictions.labels
    if runs and (untested := [path for path, index in place.items() if not number[index]]):
        raise BadInput(
            f"RUN: {len(untested)} of {len(place)} cases are in the test split of none of the {len(runs)} runs, the "
            f"first of them {untested[0]}; expected the runs of every fold"
        )
    return {name: values / number for name, values in right.items()} if runs else {}


def show(figure: Interval) -> str:
    """Return a figure in per cent with its interval."""
    return f"{100 * figure.value:.1f} [{100 * figure.low:.1f}, {100 * figure.high:.1f}]"


def main(arguments: list[str] | None = None) -> int:
    """Print the table as Markdown."""
    about = (__doc__ or "").partition(":")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_rivals", description=about)
    parser.add_argument("features", type=pathlib.Path)
    parser.add_argument("runs", nargs="*", type=pathlib.Path, metavar="RUN")
    parser.add_argument("--root", required=True, metavar="FOLDER")
    options = parser.parse_args(arguments)
    given = {"data.root": options.root, "image_encoder.name": "resnet_small", "image_encoder.image_size": 64}
    folds = [load_cases("small_data", **given, **{"data.fold": fold}) for fold in list_folds()]
    stored, labels = np.load(options.features), folds[0].labels
    steps = [step for step in range(labels.shape[1]) if len(np.unique(labels[labels[:, step] >= 0, step])) > 1]
    right = score_rivals(folds, dict(zip(stored["ids"].tolist(), stored["features"], strict=True)), steps)
    right |= score_runs(options.runs, folds[0])
    for name in (THUMBNAIL, HEADS) if options.runs else ():
        right[f"teacher less {name}"] = right["teacher"] - right[name]

    def compute(weights: Weights) -> dict[str, np.ndarray]:
        return {name: weighted_mean(weights, values=each, counted=labels >= 0) for name, each in right.items()}

    found = bootstrap(compute, np.array([case.patient for case in folds[0].cases]))
    names = [folds[0].chain.steps[step].name for step in steps]
    print(f"| accuracy of test cases, points | {' | '.join(names)} |\n|---|{'---|' * len(steps)}")
    for name, row in found.items():
        print(f"| {name} | {' | '.join(show(row[step]) for step in steps)} |")
    return 0


if __name__ == "__main__":
    run_tool(main)
