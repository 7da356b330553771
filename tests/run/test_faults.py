import errno
import signal

import pytest
from refusals import refuse
from run.small_run import small_run, small_settings, stop_at, train

from stepcot_jax.host.errors import BadInput, Preempted, RunStopped
from stepcot_jax.host.files import lock_folder
from stepcot_jax.run import chain_task, training_run
from stepcot_jax.training.checkpoints import saved_steps
from stepcot_jax.training.loop import Loop

pytestmark = pytest.mark.slow
SHORT = {"job": "baseline", "baseline__epochs": 1}


def test_sigterm_while_data_are_loaded_ends_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(chain_task, "load_inputs", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    refuse("outside of training", training_run.Run, small_settings(**SHORT), tmp_path, error=Preempted)
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_after_the_last_look_ends_before_the_test_split(tmp_path, monkeypatch):
    end_if_asked = Loop._end_if_asked

    def signal_after(loop, step):
        end_if_asked(loop, step)
        signal.raise_signal(signal.SIGTERM)

    run = small_run(tmp_path, monkeypatch, **SHORT)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_end_if_asked", signal_after)
        refuse(r"step 5: saved after SIGTERM", run.execute, error=Preempted)
    assert not (tmp_path / "report.json").exists()
    assert train(small_run(tmp_path, monkeypatch, **SHORT), monkeypatch)["baseline"].step == 5


def test_a_second_sigterm_while_ending_changes_nothing(tmp_path, monkeypatch):
    run, close = small_run(tmp_path, monkeypatch, **SHORT), training_run.Checkpoints.close
    terminate = lambda *_: signal.raise_signal(signal.SIGTERM)  # noqa: E731
    monkeypatch.setattr(training_run.Checkpoints, "close", lambda checkpoints: (terminate(), close(checkpoints)))
    stop_at(run.task, "validate", 1, monkeypatch, stop=terminate)
    with pytest.raises(Preempted):
        run.execute()
    assert saved_steps(tmp_path / "checkpoints") == [5]


def test_a_run_that_waited_while_another_had_the_workdir_looks_again(tmp_path, monkeypatch):
    late = small_run(tmp_path, monkeypatch, **SHORT, loss__temperature=3.0)
    train(small_run(tmp_path, monkeypatch, **SHORT), monkeypatch)
    refuse(r"started with other values of config\.loss\.temperature", late.execute)


def test_a_run_that_is_refused_leaves_what_another_is_writing(tmp_path, monkeypatch):
    late = small_run(tmp_path, monkeypatch, **SHORT)
    half = tmp_path / "checkpoints" / "5.orbax-checkpoint-tmp"
    half.mkdir(parents=True)
    for start in (late.execute, lambda: small_run(tmp_path, monkeypatch, **SHORT)):
        with lock_folder(tmp_path), pytest.raises(BadInput, match="in use by another process"):
            start()
    assert half.is_dir()


def test_an_error_that_is_not_of_the_disk_stays_what_it_is(tmp_path, monkeypatch):
    def fail(*_):
        raise FileNotFoundError(errno.ENOENT, "no such file", "x")

    monkeypatch.setattr(training_run, "write_settings", fail)
    refuse("no such file", small_run(tmp_path, monkeypatch, **SHORT).execute, error=FileNotFoundError)


def test_a_checkpoint_that_cannot_be_written_says_what_is_left(tmp_path, monkeypatch):
    run = small_run(tmp_path, monkeypatch, **SHORT)

    def fail(*_, **__):
        raise ValueError("RESOURCE_EXHAUSTED: Error writing " + 300 * "x" + ": No space left on device")

    monkeypatch.setattr("orbax.checkpoint.CheckpointManager.save", fail)
    words = r"step 5 could not be written .*No space left on device\); there is no earlier"
    refuse(words, run.execute, error=RunStopped)


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("run/checkpoints", r"step 5 could not be written \(FileNotFoundError"),  # told before Orbax is asked
        ("run", r"run: the workdir is gone, with its checkpoints"),
    ],
)
def test_a_folder_that_is_gone_is_named(tmp_path, monkeypatch, lost, words):
    run, asked = small_run(tmp_path / "run", monkeypatch, **SHORT), []
    stop_at(run.task, "validate", 1, monkeypatch, stop=lambda: (tmp_path / lost).rename(tmp_path / "elsewhere"))
    monkeypatch.setattr("orbax.checkpoint.CheckpointManager.save", lambda *_, **__: asked.append(1))
    refuse(words, run.execute, error=RunStopped)
    assert not asked
