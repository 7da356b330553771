"""Read an exported Step-CoT model. Needs jax and numpy alone; an export has a copy of this file as load.py.

    from load import load
    model = load(".")                        # the folder of the export
    model(images)["Diagnosis"]               # (answers, probabilities [case, option])
    model.above(images)["Diagnosis"]         # answers at or above their operating points, a list for each image
    model.logits(images)                     # float32 [case, step, answer]
    model.gate_scores(images)                # above 1: an image unlike those of model.trained_on

`python load.py` checks that this machine computes the exported logits.

Every export has a copy of this file, of exported_models.py, of exported_files.py, which compares each file with
SHA256SUMS before its use, and of exported_programs.py.
"""

import argparse
import pathlib
import sys
from typing import Any

import jax
import numpy as np

if __package__:
    from stepcot_jax.export import exported_models
    from stepcot_jax.export.exported_programs import read_program, require_fit
    from stepcot_jax.host.exported_files import Files
else:  # in the folder of an export
    import exported_models  # type: ignore[import-not-found,no-redef]
    from exported_files import Files  # type: ignore[import-not-found,no-redef]
    from exported_programs import read_program, require_fit  # type: ignore[import-not-found,no-redef]

ABSENT_LOGIT = -1e9  # Logit of an answer that a step does not have

_HERE = pathlib.Path(__file__).parent


class Model(exported_models.AnsweringModel):
    """An exported model; its attributes are those of `AnsweringModel`."""

    def __init__(self, folder: str | pathlib.Path, name: str | None = None) -> None:
        files = Files(pathlib.Path(folder))
        facts = self.read(files, "export.json", name)
        self.temperatures = _read_temperatures(files, self.name, len(self.steps))
        with files.expecting("export.json", "program, tensors and gate of each model"):
            self.exported = read_program(files.read(facts["program"]), folder)
            tensors = {key: value for file in facts["tensors"] for key, value in files.read_tensors(file).items()}
            gate = facts.get("gate")
            gate_program = None if gate is None else read_program(files.read(gate["program"]), folder)
            gate_tensors = {} if gate is None else files.read_tensors(gate["tensors"])
        require_fit(self.exported, tensors, f"{folder}: {', '.join(facts['tensors'])}")
        self._tensors = jax.device_put(tensors)
        self._run = jax.jit(self.exported.call)
        self._gate = None
        if gate_program is not None:
            encoder = {key: value for key, value in tensors.items() if key.startswith("image_encoder/")}
            self._gate_tensors = jax.device_put(encoder | gate_tensors)
            self._gate = jax.jit(gate_program.call)

    def gate_scores(self, images: Any) -> np.ndarray | None:
        """Return float32 [case], above 1 outside of what the model was trained on; None if the export has no gate."""
        if self._gate is None:
            return None
        return np.asarray(self._gate(self._gate_tensors, self.preprocessing.normalise(images)))

    def logits(self, images: Any) -> np.ndarray:
        """Return float32 [case, step, answer]; compiled once for each number of images."""
        return np.asarray(self._run(self._tensors, self.preprocessing.normalise(images)))

    def stablehlo(self) -> str:
        """Return the program as text, for other StableHLO compilers."""
        return self.exported.mlir_module()


def _read_temperatures(files: Files, name: str, num_steps: int) -> tuple[float, ...]:
    """Return the temperatures of calibration.json; 1 without calibration."""
    if "calibration.json" not in files:
        return (1.0,) * num_steps
    with files.expecting("calibration.json", "a temperature for each step"):
        return tuple(map(float, files.read_json("calibration.json")["temperatures"].get(name, (1.0,) * num_steps)))


def load(folder: str | pathlib.Path, model: str | None = None) -> Model:
    """Load a model."""
    return Model(folder, model)


def check(folder: str | pathlib.Path, *, tolerance: float) -> list[dict[str, Any]]:
    """Compare this machine's logits and gate scores of the stored images with the stored ones, for each model."""
    return exported_models.check_models(folder, load, manifest="export.json", tolerance=tolerance)


def main(arguments: list[str] | None = None) -> int:
    """Print one JSON line for each model; return 1 if logits differ, 2 if the export is refused."""
    parser = argparse.ArgumentParser(description="Check that this machine computes the logits that were exported.")
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=_HERE, help="default: this file's folder")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of the logits (default: %(default)s)")
    flags = parser.parse_args(arguments)
    return exported_models.print_check(lambda: check(flags.folder, tolerance=flags.tolerance))


if __name__ == "__main__":
    sys.exit(main())
