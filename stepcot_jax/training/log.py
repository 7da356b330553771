"""The numbers of a run: metrics.jsonl and TensorBoard event files in the workdir."""

import json
import math
import pathlib
from collections.abc import Mapping

METRICS_FILE = "metrics.jsonl"


class MetricsLog:
    """Numbers of a run over its steps, appended to `metrics.jsonl` and to TensorBoard event files.

    Args:
      workdir: where they go.
      first_step: entries of later steps, left by a run that was cut off, are removed before the first write.
      silent: write nothing, as all processes of a run but one do.
    """

    def __init__(self, workdir: pathlib.Path, *, first_step: int, silent: bool = False) -> None:
        self._silent = silent
        if silent:
            return
        import tensorboardX

        self._path = workdir / METRICS_FILE
        if self._path.exists():
            # What was found on the test split is found again at the end of this start.
            kept = [
                line
                for line in self._path.read_text().splitlines()
                if _step_of(line) <= first_step and '"kind": "test"' not in line
            ]
            partial = self._path.with_name(METRICS_FILE + ".partial")
            partial.write_text("".join(line + "\n" for line in kept))
            partial.replace(self._path)
        self._file = self._path.open("a", buffering=1)
        self._board = tensorboardX.SummaryWriter(str(workdir / "tensorboard"), purge_step=first_step + 1)

    def write(self, kind: str, *, step: int, epoch: int, numbers: Mapping[str, float]) -> None:
        """Append an entry; `kind` is "train", "val" or "test"."""
        if self._silent:
            return
        defined = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
        self._file.write(json.dumps({"kind": kind, "step": step, "epoch": epoch, **defined}) + "\n")
        for name, number in numbers.items():
            self._board.add_scalar(f"{kind}/{name}".replace(" ", "_"), number, step)

    def close(self) -> None:
        """Flush and close both."""
        if not self._silent:
            self._file.close()
            self._board.close()


def _step_of(line: str) -> float:
    """The step of an entry; a line that was cut off counts as later than any."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")
