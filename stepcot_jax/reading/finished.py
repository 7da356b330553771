"""Load the files of a finished run that its report page needs."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Bool, Float, Int

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.calibration import Calibration, answer_sets, calibrated_probabilities, read_calibration
from stepcot_jax.evaluation.linear_heads import Rival
from stepcot_jax.evaluation.operating_points import FIGURES, OperatingPoints, read_points
from stepcot_jax.evaluation.predictions import SplitPredictions, logits_by_step, read_predictions
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.own_folder import load
from stepcot_jax.host.untrusted import iterate_lines, open_untrusted
from stepcot_jax.pages import sheets
from stepcot_jax.pages.sheets import Table, columns
from stepcot_jax.run.stored import (
    CALIBRATION_FILE,
    POINTS_FILE,
    StoredSettings,
    check_sealed,
    read_reading,
    read_stored,
)
from stepcot_jax.run.task import REPORT
from stepcot_jax.training.log import METRICS_FILE

_MOST_LOG_BYTES = 2**28
_MOST_LINE_BYTES = 2**20

Entry = Mapping[str, Any]  # Numbers that a run logged at one update


class _Best(msgspec.Struct, frozen=True):
    step: int


class Report(msgspec.Struct, frozen=True):
    """What pages tell of the `report.json` of a finished run."""

    num_cases: Mapping[str, int] = {}  # by split
    best: Mapping[str, _Best] = {}  # by network or phase
    heads: Rival | None = None
    wall_seconds: float | None = None
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """Settings, log and predictions of a run."""

    workdir: pathlib.Path
    settings: StoredSettings
    chain: Chain
    entries: Sequence[Entry]
    report: Report
    split: SplitPredictions  # each network's predictions for the test split
    calibration: Calibration  # fitted on the validation split
    operating_points: OperatingPoints  # thresholds of the answers

    def check_model(self, model: str) -> None:
        """Refuse a network without predictions."""
        names = list(self.split.predictions.logits)
        if model not in names:
            raise BadInput(f"{self.workdir} has no predictions of {model!r}; it has {', '.join(names)}")

    def probabilities(self, model: str) -> Float[np.ndarray, "case step answer"]:
        """Return distributions over the answers at the fitted temperatures; 0 beyond a step's own answers."""
        return calibrated_probabilities(self.split.predictions.logits[model], model, self.calibration, self.chain)

    def answers(self, model: str) -> Int[np.ndarray, "case step"]:
        """Return the most probable answers."""
        of_steps = logits_by_step(self.split.predictions.logits[model], chain=self.chain, model=model)
        return np.stack([of_step.argmax(axis=1) for of_step in of_steps], axis=1).astype(np.int32)

    def answer_sets(self, model: str) -> Bool[np.ndarray, "case step answer"]:
        """Return the conformal answer sets."""
        return answer_sets(self.probabilities(model), model, self.calibration, self.chain)


def read_run(workdir: pathlib.Path) -> FinishedRun:
    """Load a workdir that `stepcot_jax.main` wrote."""
    if not workdir.is_dir():
        raise BadInput(f"{workdir} is not the workdir of a finished run (no such folder)")
    report = load(workdir / REPORT, Report)
    settings = read_stored(workdir).settings
    check_sealed(workdir)
    chain = read_reading(workdir).chain
    chain.refuse_tree("the report page")
    split = read_predictions(workdir / "predictions" / "test.npz", chain)
    if not len(split.predictions.index):
        raise BadInput(f"{workdir}: the test split has no cases; a report needs at least one")
    return FinishedRun(
        workdir=workdir,
        settings=settings,
        chain=chain,
        entries=read_metrics(workdir / METRICS_FILE),
        report=report,
        split=split,
        calibration=read_calibration(workdir / CALIBRATION_FILE, chain),
        operating_points=read_points(workdir / POINTS_FILE, chain),
    )


_OF_A_POINT = (
    *columns("text", "step", "answer"),
    *columns("number", "cases"),
    *columns("percent", "threshold", "sensitivity", "specificity", "PPV", "NPV"),
)


def tabulate_points(points: OperatingPoints, model: str) -> Table:
    """Return a network's operating points as a table; cases are those of the test split that have the answer."""
    rows: list[tuple[sheets.Entry, ...]] = []
    for step, answers in points.models.get(model, {}).items():
        for answer, point in answers.items():
            threshold = "never" if math.isinf(point.threshold.value) else point.threshold
            rows.append((step, answer, point.test[0], threshold, *(getattr(point, figure) for figure in FIGURES)))
    return Table("operating", f"Operating points ({model})", _OF_A_POINT, tuple(rows))


def read_metrics(path: pathlib.Path) -> list[Entry]:
    """Load the entries of a `metrics.jsonl`, in order."""
    try:
        with open_untrusted(path, accepted="a log", max_bytes=_MOST_LOG_BYTES) as file:
            lines = iterate_lines(file, path, most_bytes=_MOST_LINE_BYTES)
            return [_read_entry(path, number, line) for number, line in lines]
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error}); expected the log that a run wrote") from None


def _read_entry(path: pathlib.Path, number: int, line: bytes) -> Entry:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("kind"), str)
        or not isinstance(entry.get("epoch"), int)
        or not all(value is None or isinstance(value, int | float | str) for value in entry.values())
    ):
        shown = line[:60].decode(errors="replace")
        raise BadInput(f"{path}, line {number}: {shown!r} is not an object with kind, step and epoch")
    return entry
