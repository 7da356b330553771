import json
import math

import pytest
from refusals import refuse
from run.small_run import read_log, small_run, small_settings, train

from stepcot_jax.host.errors import BadInput
from stepcot_jax.run import training_run
from stepcot_jax.run.training_run import check_loggers, describe_settings, open_loggers
from stepcot_jax.training.log import MetricsLog


class Remembered:
    def __init__(self, workdir, settings, run_id, title, *, fails_at=None):
        self.id, self.place, self.title = run_id or f"run-{workdir.name}", "here", title
        self.got, self.closed, self.fails_at, self.resumed = [], False, fails_at, run_id is not None

    def write(self, numbers, *, step):
        if step == self.fails_at:
            raise ConnectionError("no route to http://user:hunter2@host/api")
        self.got.append((step, dict(numbers)))

    def close(self):
        self.closed = True


@pytest.fixture
def opened(monkeypatch):
    """The loggers that were opened, in order; `fails_at` of those to come."""
    found, options = [], {}

    def open_one(workdir, *, project, title, is_offline, run_id, settings):
        assert (project, is_offline) == ("stepcot-jax", True)
        found.append(Remembered(workdir, settings, run_id, title, **options))
        return found[-1]

    open_one.package = "json"
    monkeypatch.setattr(training_run, "find_extra", lambda kind, name, packages: open_one)
    return found, options


@pytest.mark.slow
def test_a_run_logs_what_metrics_jsonl_has_and_resumes_the_same_run(tmp_path, monkeypatch, opened):
    found, _ = opened
    changes = {"loggers__names": ("wandb", "mlflow"), "job": "baseline", "baseline__epochs": 1}
    small_run(tmp_path, monkeypatch, **changes).execute()
    assert [logger.closed for logger in found] == [True, True]
    skipped = ("kind", "step", "epoch", "cases_per_second")
    expected = [
        (entry["step"], {f"{entry['kind']}/{name}".replace(" ", "_"): number for name, number in entry.items()
                         if name not in skipped and number is not None})
        for entry in read_log(tmp_path)
    ]  # fmt: skip
    for logger in found:
        for _, numbers in logger.got:
            numbers.pop("train/cases_per_second", None)
    assert found[0].got == found[1].got == expected
    assert {step for step, _ in expected} == {2, 4, 5}
    assert json.loads((tmp_path / "loggers.json").read_text()) == dict.fromkeys(("wandb", "mlflow"), found[0].id)
    train(small_run(tmp_path, monkeypatch, **changes), monkeypatch)
    assert [(logger.resumed, logger.id) for logger in found[2:]] == [(True, found[0].id)] * 2


def test_a_logger_that_fails_is_named_once_and_the_others_go_on(tmp_path, opened):
    found, options = opened
    said = []
    options["fails_at"] = 2
    settings = small_settings(loggers__names=("wandb", "mlflow"))
    first = open_loggers(tmp_path, settings, say=said.append)
    found[1].fails_at = None
    log = MetricsLog(tmp_path, first_step=0, loggers=first)
    for step in (1, 2, 3):
        log.write("train", step=step, epoch=0, numbers={"a b": step / 2, "undefined": math.nan, "endless": math.inf})
    log.close()
    assert {(entry["undefined"], entry["endless"]) for entry in read_log(tmp_path)} == {(None, None)}
    assert found[0].got == [(1, {"train/a_b": 0.5})]
    assert [step for step, _ in found[1].got] == [1, 2, 3]
    assert said == [
        "wandb: here",
        "mlflow: here",
        "warning: wandb no longer gets numbers (ConnectionError: no route to http://host/api); training goes on, and "
        "metrics.jsonl has every number",
    ]
    assert (found[0].closed, found[1].closed) == (False, True)
    assert [entry["step"] for entry in read_log(tmp_path)] == [1, 2, 3]


def test_a_logger_that_cannot_be_opened_leaves_the_run_alone(tmp_path, opened, monkeypatch):
    said, find = [], training_run.find_extra

    def fail(*_, **__):
        raise RuntimeError("api_key not configured")

    monkeypatch.setattr(
        training_run, "find_extra", lambda kind, name, packages: fail if name == "wandb" else find(kind, name, packages)
    )
    assert len(open_loggers(tmp_path, small_settings(loggers__names=("wandb", "mlflow")), say=said.append)) == 1
    assert said[0].startswith("warning: wandb cannot be opened (RuntimeError: api_key not configured); training goes")
    assert json.loads((tmp_path / "loggers.json").read_text()) == {"mlflow": f"run-{tmp_path.name}"}


def test_a_missing_package_is_named_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(training_run.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"config.loggers.names: 'mlflow' is not installed: .*pip install -e .*mlflow"):
        check_loggers(small_settings(loggers__names=("mlflow",)).loggers)
    refuse("'wandb' is not installed", small_run, tmp_path / "run", monkeypatch, loggers__names=("wandb",))
    assert not (tmp_path / "run").exists()


def test_settings_are_told_without_paths_and_addresses():
    private = {
        "data__source": "folder",
        "data__root": "/secret/place",
        "rewards__judge_url": "http://user:secret@host",
        "features__folder": "/secret",
    }
    told = describe_settings(small_settings(**private))
    assert (told["training.joint_epochs"], told["data.source"]) == (3, "folder")
    assert "secret" not in json.dumps(told)


@pytest.mark.slow
def test_mlflow_goes_on_in_its_offline_store(tmp_path):
    pytest.importorskip("mlflow.store.tracking.sqlalchemy_store")
    from mlflow.tracking import MlflowClient

    own, said = {"loggers__names": ("mlflow",), "loggers__run": "first"}, []
    for first_step, steps in ((0, (1, 2, 3)), (2, (3, 4))):  # killed after 3; resumed from 2 with more epochs
        settings = small_settings(**own, training__joint_epochs=5 if first_step else 3)
        log = MetricsLog(tmp_path, first_step=first_step, loggers=open_loggers(tmp_path, settings, say=said.append))
        for step in steps:
            log.write("train", step=step, epoch=0, numbers={"teacher/total (sum)": step / 2})
        log.close()
    assert not [line for line in said if line.startswith("warning")]
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("stepcot-jax")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("first", "FINISHED")
    assert found.data.params["training.joint_epochs"] == "3"
    history = client.get_metric_history(found.info.run_id, "train/teacher/total__sum_")
    assert [(entry.step, entry.value) for entry in history] == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)]


@pytest.mark.slow
def test_wandb_writes_offline_runs_of_one_id(tmp_path):
    pytest.importorskip("wandb")
    settings, said = small_settings(loggers__names=("wandb",), data__source="folder", data__root="/secret"), []
    for first_step, steps in ((0, (1, 2)), (2, (3,))):
        log = MetricsLog(tmp_path, first_step=first_step, loggers=open_loggers(tmp_path, settings, say=said.append))
        for step in steps:
            log.write("train", step=step, epoch=0, numbers={"loss": step / 2})
        log.close()
    assert not [line for line in said if line.startswith("warning")]
    run_id = json.loads((tmp_path / "loggers.json").read_text())["wandb"]
    files = sorted((tmp_path / "wandb").glob(f"offline-run-*/run-{run_id}.wandb"))
    assert len(files) == 2
    assert all(b"train/loss" in path.read_bytes() for path in files)
    assert not any(b"/secret" in path.read_bytes() for path in files)
    assert not list((tmp_path / "wandb").rglob("wandb-metadata.json"))
