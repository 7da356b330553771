"""Writers besides metrics.jsonl and TensorBoard: Weights & Biases and MLflow (`config.loggers`).

They get numbers and settings without paths and addresses: no data, console output, code or facts of the machine.
"""

import os
import pathlib
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

from stepcot_jax.host.untrusted import resolve

_NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]", re.ASCII)  # characters that it refuses in a metric's name


class Wandb:
    """A run of Weights & Biases; the key comes from WANDB_API_KEY or `wandb login`."""

    package = "wandb"

    def __init__(
        self,
        workdir: pathlib.Path,
        *,
        project: str,
        title: str,
        is_offline: bool,
        run_id: str | None,
        settings: Mapping[str, Any],
    ) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        quiet = {"console": "off", "silent": True, "disable_code": True, "disable_git": True}
        unasked = {"x_disable_meta": True, "x_disable_stats": True, "x_disable_machine_info": True}
        self._run = wandb.init(
            project=project,
            name=title,
            id=run_id or secrets.token_hex(4),
            resume="allow",
            mode="offline" if is_offline else "online",
            dir=workdir,
            config=dict(settings),
            settings=wandb.Settings(**quiet, **unasked),
        )
        self.id = self._run.id
        folder = workdir / "wandb"
        self.place = f"offline in {folder} (wandb sync {folder}/offline-run-*)" if is_offline else str(self._run.url)
        self._first = self._run.step  # the logger has the numbers of earlier updates

    def write(self, numbers: Mapping[str, float], *, step: int) -> None:
        """Append the numbers of an update that the logger does not have yet."""
        if step >= self._first:
            self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """End the run of the logger."""
        self._run.finish()


class Mlflow:
    """A run of MLflow: in the server of MLFLOW_TRACKING_URI, or offline in mlflow.db of the workdir."""

    package = "mlflow"

    def __init__(
        self,
        workdir: pathlib.Path,
        *,
        project: str,
        title: str,
        is_offline: bool,
        run_id: str | None,
        settings: Mapping[str, Any],
    ) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        offline = f"sqlite:///{resolve(workdir) / 'mlflow.db'}"
        self._client, self._make_metric = MlflowClient(tracking_uri=offline if is_offline else None), Metric
        if run_id is None:
            experiment = self._client.get_experiment_by_name(project)
            if experiment is None:
                artifacts = (resolve(workdir) / "mlartifacts").as_uri() if is_offline else None
                experiment_id = self._client.create_experiment(project, artifact_location=artifacts)
            else:
                experiment_id = experiment.experiment_id
            run_id = self._client.create_run(experiment_id, run_name=title).info.run_id
            params = [Param(key, str(value)) for key, value in settings.items()]
            for start in range(0, len(params), 100):  # the server's limit
                self._client.log_batch(run_id, params=params[start : start + 100])
        else:
            self._client.update_run(run_id, status="RUNNING")
        self.id = run_id
        self.place = f"offline in {workdir}/mlflow.db (mlflow ui --backend-store-uri {offline})"
        if not is_offline:
            self.place = f"run {run_id} of the tracking server"
        self._done = self._find_done()

    def _find_done(self) -> dict[str, int]:
        """Return the last update that each metric was logged for; an interrupted start may have logged later ones."""
        metrics = self._client.get_run(self.id).data.metrics
        return {name: max(entry.step for entry in self._client.get_metric_history(self.id, name)) for name in metrics}

    def write(self, numbers: Mapping[str, float], *, step: int) -> None:
        """Append the numbers of an update that the logger does not have yet."""
        now = int(1000 * time.time())
        named = {_NOT_IN_MLFLOW.sub("_", name): number for name, number in numbers.items()}
        new = [(name, number) for name, number in named.items() if step > self._done.get(name, -1)]
        if new:
            self._client.log_batch(
                self.id, metrics=[self._make_metric(name, number, now, step) for name, number in new]
            )

    def close(self) -> None:
        """End the run of the logger."""
        self._client.set_terminated(self.id)
