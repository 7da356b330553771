"""The workdir of a finished run, without training: random weights, and predictions drawn around the truth."""

import json
import math
import pathlib

import msgspec
import numpy as np
from evaluation.small_splits import of_arrays
from oracles.operating_points import operating_points
from trained_workdir import make_trained_workdir

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.evaluation.calibration import read_calibration
from stepcot_jax.evaluation.consistency import count_pairs, write_pairs
from stepcot_jax.evaluation.linear_heads import Rival
from stepcot_jax.evaluation.operating_points import OperatingPoints, Rule
from stepcot_jax.evaluation.predictions import write_predictions
from stepcot_jax.host.own_folder import save
from stepcot_jax.host.ranges import Interval

_FIGURES = {
    "<heads>": (Interval(0.5, 0.4, 0.6), Interval(0.25)),
    "teacher": (Interval(0.1, -0.01, 0.2), Interval(math.nan)),
}
RIVAL = Rival("<heads>", 9000, {"Diagnosis": 0.01}, "Diagnosis", _FIGURES, "are weaker; train <plain>")


def make_split(cases, *, seed, skill=2.0, models=("teacher", "student")):
    """Random predictions with `skill` added to the true answer's logit."""
    rng = np.random.default_rng(seed)
    labels = np.array([case.answers for case in cases], np.int32)
    logits = {}
    for model in models:
        drawn = rng.normal(0, 1, (*labels.shape, 9)).astype(np.float32)
        for place, step in enumerate(DEFAULT_CHAIN.steps):
            known = labels[:, place] >= 0
            drawn[known, place, labels[known, place]] += skill
            drawn[:, place, step.num_answers :] = -1e9
        logits[model] = drawn
    paths = [case.image for case in cases]
    facts = {"patient_id": [case.patient for case in cases], "origin": [case.origin for case in cases]}
    return of_arrays(labels, logits, case_id=paths, image_path=paths, **facts)


def make_finished_workdir(folder: pathlib.Path, *, num_test=12, **changes):
    """Write the workdir and return its settings; the cases are the first of the phantom."""
    settings, _ = make_trained_workdir(folder, calibrated=True, **changes)
    phantom = settings.phantom
    cases = [
        draw_case(index, seed=phantom.seed, size=phantom.image_size, prevalence=phantom.prevalence).case
        for index in range(2 * num_test)
    ]
    write_run_files(folder, val=make_split(cases[num_test:], seed=1), test=make_split(cases[:num_test], seed=0))
    return settings


def write_run_files(folder, *, val, test):
    (folder / "predictions").mkdir(exist_ok=True)
    write_predictions(folder / "predictions" / "val.npz", val, DEFAULT_CHAIN)
    write_predictions(folder / "predictions" / "test.npz", test, DEFAULT_CHAIN)
    calibration = read_calibration(folder / "calibration.json", DEFAULT_CHAIN)
    rule = Rule("sensitivity", target=0.8)
    points = operating_points(val, test, DEFAULT_CHAIN, calibration=calibration, rule=rule, num_resamples=20)
    save(folder / "points.json", OperatingPoints.of_findings(rule, points))
    write_pairs(folder / "pairs.json", count_pairs(val.predictions.labels, DEFAULT_CHAIN))
    (folder / "statistics.json").write_text("{}")
    entries = [
        {"kind": "train", "step": 1, "epoch": 0, "teacher/total": 3.0},
        {"kind": "train", "step": 2, "epoch": 1, "teacher/total": 2.0, "student/total": 4.0},
        {"kind": "val", "step": 2, "epoch": 1, "teacher/mean_accuracy": 0.4, "student/mean_accuracy": 0.3},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    counts = {"train": 40, "val": len(val.predictions.index), "test": len(test.predictions.index)}
    report = {"num_cases": counts, "wall_seconds": 12.5, "best": {"teacher": {"step": 3}, "student": {"step": 5}}}
    save(folder / "report.json", {**report, "heads": msgspec.to_builtins(RIVAL)})
