"""Loggers beside metrics.jsonl and TensorBoard: Weights & Biases and MLflow (`config.loggers`).

They get the numbers of the log and the settings, without paths and addresses; no data, no console output, no source
code, no facts about the machine. A resumed run goes on in the same run of the logger, whose id `loggers.json` keeps.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole
from stepcot_jax.host.text import install_extra, one_line
from stepcot_jax.settings.run_settings import PLACES, Settings
from stepcot_jax.settings.sections import LoggerSettings
from stepcot_jax.training.log import Logger

IDS_FILE = "loggers.json"
"""The id of the run of each logger, by the logger's name."""

_PRIVATE = frozenset({*PLACES, "rewards.judge_url"})  # an address may have a password
_PASSWORD = re.compile(r"//[^/@\s]*@")  # of an address, which libraries quote in their errors
_NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]", re.ASCII)  # characters that it refuses in a metric's name


def check_loggers(settings: LoggerSettings) -> None:
    """Refuse loggers whose packages are missing, before anything is loaded."""
    for name in settings.names:
        if importlib.util.find_spec(name) is None:
            raise BadInput(f"config.loggers.names: {name!r} is not installed: {install_extra(name)}")


def open_loggers(
    workdir: pathlib.Path, settings: Settings, *, name: str = "", say: Callable[[str], None]
) -> list[Logger]:
    """Open the loggers of the settings; one that fails is named and left out."""
    path, found = workdir / IDS_FILE, list[Logger]()
    ids = read_json(path, dict[str, str], accepted="expected the ids of a run's loggers") if path.is_file() else {}
    title = settings.loggers.run or name or workdir.resolve().name
    for logger in settings.loggers.names:
        guarded = _Guarded(logger, say)
        with guarded.guard("cannot be opened"):
            guarded.logger = _OPEN[logger](workdir, settings, ids.get(logger), title)
            ids[logger] = guarded.logger.id
            write_whole(path, (json.dumps(ids) + "\n").encode())
            say(f"{logger}: {guarded.logger.place}")
            found.append(guarded)
    return found


def describe_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings by full name without "config.", leaving out paths and addresses."""
    found: dict[str, Any] = {}

    def walk(tree: Mapping[str, Any], prefix: str) -> None:
        for name, value in tree.items():
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{name}.")
            elif f"{prefix}{name}" not in _PRIVATE:
                found[f"{prefix}{name}"] = value

    walk(dataclasses.asdict(settings), "")
    return found


class _Guarded:
    """A logger that stops at its first failure, says so once, and never stops the run."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self.logger: Any = None
        self._name, self._say = name, say

    def write(self, numbers: Mapping[str, float], *, step: int) -> None:
        """Write numbers, if nothing has failed yet."""
        if self.logger is not None:
            with self.guard("no longer gets numbers"):
                self.logger.write(numbers, step=step)

    def close(self) -> None:
        """End the logger's run."""
        logger, self.logger = self.logger, None
        if logger is not None:
            with self.guard("could not be closed"):
                logger.close()

    @contextlib.contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Say what failed, and drop the logger."""
        try:
            yield
        except Exception as error:  # of the network, the server, the disk: each library has its own kinds
            self.logger = None
            reason = _PASSWORD.sub("//", one_line(error))
            self._say(
                f"warning: {self._name} {what} ({type(error).__name__}: {reason}); training goes on, and metrics.jsonl "
                "has every number"
            )


class _Wandb:
    """A run of Weights & Biases; the key comes from WANDB_API_KEY or `wandb login`."""

    def __init__(self, workdir: pathlib.Path, settings: Settings, run_id: str | None, title: str) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        own = settings.loggers
        quiet = {"console": "off", "silent": True, "disable_code": True, "disable_git": True}
        unasked = {"x_disable_meta": True, "x_disable_stats": True, "x_disable_machine_info": True}
        self._run = wandb.init(
            project=own.project,
            name=title,
            id=run_id or secrets.token_hex(4),
            resume="allow",
            mode=own.mode,
            dir=workdir,
            config=describe_settings(settings),
            settings=wandb.Settings(**quiet, **unasked),
        )
        self.id = self._run.id
        folder = workdir / "wandb"
        self.place = (
            str(self._run.url) if own.mode == "online" else f"offline in {folder} (wandb sync {folder}/offline-run-*)"
        )
        self._first = self._run.step  # numbers of earlier updates are there already

    def write(self, numbers: Mapping[str, float], *, step: int) -> None:
        if step >= self._first:
            self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    """A run of MLflow: in the server of MLFLOW_TRACKING_URI, or offline in mlflow.db of the workdir."""

    def __init__(self, workdir: pathlib.Path, settings: Settings, run_id: str | None, title: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        own, offline = settings.loggers, f"sqlite:///{workdir.resolve() / 'mlflow.db'}"
        is_offline = own.mode == "offline"
        self._client, self._make_metric = MlflowClient(tracking_uri=offline if is_offline else None), Metric
        if run_id is None:
            experiment = self._client.get_experiment_by_name(own.project)
            if experiment is None:
                artifacts = (workdir.resolve() / "mlartifacts").as_uri() if is_offline else None
                experiment_id = self._client.create_experiment(own.project, artifact_location=artifacts)
            else:
                experiment_id = experiment.experiment_id
            run_id = self._client.create_run(experiment_id, run_name=title).info.run_id
            params = [Param(key, str(value)) for key, value in describe_settings(settings).items()]
            for start in range(0, len(params), 100):  # the server's limit
                self._client.log_batch(run_id, params=params[start : start + 100])
        else:
            self._client.update_run(run_id, status="RUNNING")
            self._tag_changes(run_id, settings)
        self.id = run_id
        self.place = f"offline in {workdir}/mlflow.db (mlflow ui --backend-store-uri {offline})"
        if not is_offline:
            self.place = f"run {run_id} of the tracking server"
        self._done = self._find_done()

    def _tag_changes(self, run_id: str, settings: Settings) -> None:
        """Note settings that have changed since the first start as tags: MLflow's parameters are written once."""
        first = self._client.get_run(run_id).data.params
        for key, value in describe_settings(settings).items():
            if first.get(key) != str(value):
                self._client.set_tag(run_id, f"resumed.{key}", str(value))

    def _find_done(self) -> dict[str, int]:
        """Return the last update that each metric was logged for; an interrupted start may have been further."""
        metrics = self._client.get_run(self.id).data.metrics
        return {name: max(entry.step for entry in self._client.get_metric_history(self.id, name)) for name in metrics}

    def write(self, numbers: Mapping[str, float], *, step: int) -> None:
        now = int(1000 * time.time())
        named = {_NOT_IN_MLFLOW.sub("_", name): number for name, number in numbers.items()}
        new = [(name, number) for name, number in named.items() if step > self._done.get(name, -1)]
        if new:
            self._client.log_batch(
                self.id, metrics=[self._make_metric(name, number, now, step) for name, number in new]
            )

    def close(self) -> None:
        self._client.set_terminated(self.id)


_OPEN: dict[str, Callable[[pathlib.Path, Settings, str | None, str], Any]] = {"wandb": _Wandb, "mlflow": _Mlflow}
