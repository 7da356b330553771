"""Finished cells without training: reports and predictions of models of a known quality."""

import csv

import numpy as np
from evaluation.small_splits import of_arrays
from run.small_run import small_settings

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.predictions import write_predictions
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.stored import write_reading
from stepcot_jax.tools.tables.cells import Cells
from stepcot_jax.tools.tables.plan import ABLATIONS, Plan

NUM_CASES = 120
TINY = {
    "training__teacher_epochs": 0,  # one program less to compile
    "training__joint_epochs": 1,
    "baseline__epochs": 1,
    "baseline__hidden": 8,
    "baseline__learning_rate": 1e-2,
}
"""Changes of the settings for cells that train."""

CHAIN = Chain((DEFAULT_CHAIN.steps[0], *DEFAULT_CHAIN.steps[-2:]))  # fewer steps, less to resample
_RNG = np.random.default_rng(0)
LABELS = np.stack([_RNG.integers(0, count, NUM_CASES) for count in CHAIN.answers_per_step], axis=1).astype(np.int32)


def make_split(qualities, *, seed=0, labels=LABELS):
    """Predictions of models that are right in about a share of the cases."""
    logits = {}
    for place, (name, quality) in enumerate(qualities.items()):
        rng = np.random.default_rng((seed, place))
        noise = rng.standard_normal((NUM_CASES, CHAIN.num_steps, 9)).astype(np.float32)
        knows = rng.random(LABELS.shape) < quality
        logits[name] = noise + 8 * (np.arange(9) == LABELS[..., None]) * knows[..., None].astype(np.float32)
    names = [f"images/{case}.png" for case in range(NUM_CASES)]
    return of_arrays(labels, logits, case_id=names, patient_id=[f"P{case // 2}" for case in range(NUM_CASES)])


def finish(cells, cell, qualities, *, labels=LABELS):
    split = make_split(qualities, seed=cell.settings.seed, labels=labels)
    write_finished(cells.folder(cell), val=split, test=split)


def write_finished(folder, **splits):
    (folder / "predictions").mkdir(parents=True)
    for name, split in splits.items():
        write_predictions(folder / "predictions" / f"{name}.npz", split, CHAIN)
    (folder / "report.json").write_text("{}")
    write_reading(folder, CHAIN, None)


def last_step_labels():
    labels = np.full_like(LABELS, NOT_ANNOTATED)
    labels[:, -1] = LABELS[:, -1]
    return labels


def make_plan(workdir, seeds=(0, 1), **arguments):
    return Plan(small_settings(), seeds, Cells(workdir, Terminal()), num_resamples=40, **arguments)


def finish_all(plan):
    for seed in plan.seeds:
        finish(plan.cells, plan.main(seed), {"teacher": 0.6, "student": 0.55})
        for name in ABLATIONS:
            quality = 0.3 if name == "without memory" else 0.6
            finish(plan.cells, plan.ablation(name, seed), {"teacher": quality, "student": quality})
        for cell in plan.baselines(seed):
            with_steps = cell.settings.baseline.steps == "all"
            labels = LABELS if with_steps else last_step_labels()
            finish(plan.cells, cell, {"baseline": 0.5 if with_steps else 0.2}, labels=labels)


def read_rows(folder, name):
    with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
