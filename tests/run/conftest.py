"""A finished run that several files read."""

import dataclasses
import pathlib

import jax
import pytest
from run.small_run import small_run

from stepcot_jax.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A finished run whose best weights are not its last, with its params at each validation, by update."""

    run: object
    workdir: pathlib.Path
    report: dict
    states: dict


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run that validates as ever, except that the scores after its last epoch are made the worst."""
    workdir, patch = tmp_path_factory.mktemp("trained"), pytest.MonkeyPatch()
    with jax.numpy_dtype_promotion("standard"):
        epochs = {"training__teacher_epochs": 0, "training__joint_epochs": 3}
        run = small_run(workdir, patch, phantom__num_cases=150, training__given_answers="none", **epochs)
        validate, states = run.task.validate, {}
        last = 3 * run.task.batches_per_epoch

        def validate_and_remember(state: TrainState):
            step = int(state.step)
            states[step] = jax.device_get(state.params)
            scores = validate(state)
            return scores if step < last else {name: score - 1 for name, score in scores.items()}

        patch.setattr(run.task, "validate", validate_and_remember)
        report = run.execute()
        patch.undo()
    return TrainedRun(run, workdir, report, states)
