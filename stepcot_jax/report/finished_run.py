"""What a finished run left in its workdir, as far as a report needs it."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.calibration import Calibration, answer_sets, calibrated_probabilities, read_calibration
from stepcot_jax.evaluation.distributions import own_probabilities
from stepcot_jax.evaluation.prediction_files import SplitPredictions, read_predictions
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.predict.trained_model import CALIBRATION_FILE
from stepcot_jax.report.curves import Entry, read_metrics
from stepcot_jax.run.stored_reading import read_reading
from stepcot_jax.settings.run_settings import Settings, read_settings
from stepcot_jax.training.log import METRICS_FILE

_MOST_REPORT_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """Settings, log and predictions of a run.

    Attributes:
      workdir: of the run.
      settings: of the run.
      chain: the steps.
      entries: the logged numbers.
      report: content of `report.json`.
      split: what each network said about the test split.
      calibration: fitted on the validation split; None where the run has none.
    """

    workdir: pathlib.Path
    settings: Settings
    chain: Chain
    entries: Sequence[Entry]
    report: Mapping[str, Any]
    split: SplitPredictions
    calibration: Calibration | None

    def check_model(self, model: str) -> None:
        """Refuse a network that the run has no predictions of.

        Raises:
          BadInput: there is none of that name.
        """
        names = list(self.split.predictions.logits)
        if model not in names:
            raise BadInput(f"{self.workdir}: found no {model!r}, accepted are {', '.join(names)}")

    def is_calibrated(self, model: str) -> bool:
        """Whether temperatures were fitted for a network."""
        return self.calibration is not None and model in self.calibration.temperatures

    def probabilities(self, model: str) -> Float[np.ndarray, "case step answer"]:
        """Distributions over the answers, calibrated where the run was; 0 beyond a step's own answers."""
        logits = self.split.predictions.logits[model]
        if self.calibration is not None and self.is_calibrated(model):
            return calibrated_probabilities(logits, model, self.calibration, self.chain)
        found = np.zeros(logits.shape)
        for place, own in enumerate(own_probabilities(logits, chain=self.chain, model=model)):
            found[:, place, : own.shape[1]] = own
        return found

    def answer_sets(self, model: str) -> Bool[np.ndarray, "case step answer"] | None:
        """The calibrated sets of answers; None where none were fitted."""
        if self.calibration is None or not self.is_calibrated(model):
            return None
        return answer_sets(self.probabilities(model), model, self.calibration, self.chain)


def read_run(workdir: pathlib.Path) -> FinishedRun:
    """What `stepcot_jax.main` left in a workdir.

    Raises:
      BadInput: the run is not finished, or a file is damaged or does not fit the others.
    """
    if not workdir.is_dir():
        raise BadInput(f"{workdir}: found no such folder, accepted is the workdir of a finished run")
    report = _read_report(workdir / "report.json")
    settings = read_settings(workdir / "settings.json")
    chain = read_reading(workdir).chain
    calibration = workdir / CALIBRATION_FILE
    split = read_predictions(workdir / "predictions" / "test.npz", chain)
    if not len(split.predictions.index):
        raise BadInput(f"{workdir}: found no case in the test split, accepted are runs with one or more")
    return FinishedRun(
        workdir=workdir,
        settings=settings,
        chain=chain,
        entries=read_metrics(workdir / METRICS_FILE),
        report=report,
        split=split,
        calibration=read_calibration(calibration, chain) if calibration.is_file() else None,
    )


def _read_report(path: pathlib.Path) -> Mapping[str, Any]:
    accepted = "accepted is the workdir of a run that has finished"
    try:
        found = json.loads(read_file(path, max_bytes=_MOST_REPORT_BYTES))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}), {accepted}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: found no report ({error}), {accepted}") from None
    if not isinstance(found, dict) or not isinstance(found.get("num_cases"), dict):
        raise BadInput(f"{path}: found another layout, {accepted}")
    return found
