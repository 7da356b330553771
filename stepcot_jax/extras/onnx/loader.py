"""Read a Step-CoT model as ONNX. Needs numpy and onnxruntime alone; an export has a copy of this file as load.py.

    from load import load
    model = load(".")                        # the folder of the export
    model(images)["Diagnosis"]               # (answers, probabilities [case, option])
    model.logits(images)                     # float32 [case, step, answer]
    model.gate_scores(images)                # above 1: an image unlike those of model.trained_on
    model.above(images)["Diagnosis"]         # answers at or above their operating points

`python load.py` checks that this machine computes the exported logits.

Every export has a copy of this file, of exported_models.py and of exported_files.py, which compares each file with
SHA256SUMS before its use.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

if __package__:
    from stepcot_jax.export import exported_models
    from stepcot_jax.host.exported_files import Files
else:  # in the folder of an export
    import exported_models  # type: ignore[import-not-found,no-redef]
    from exported_files import Files  # type: ignore[import-not-found,no-redef]

MANIFEST = "onnx.json"
LOGITS, GATE_SCORES = "logits", "gate_scores"  # Outputs of a model; the second one if the run fitted a gate
PROVIDERS = ("CPUExecutionProvider",)  # Where onnxruntime computes by default

_HERE = pathlib.Path(__file__).parent


class Model(exported_models.AnsweringModel):
    """An exported model; its attributes are those of `AnsweringModel`."""

    def __init__(
        self, folder: str | pathlib.Path, name: str | None = None, *, providers: Sequence[str] = PROVIDERS
    ) -> None:
        import onnxruntime

        files = Files(pathlib.Path(folder))
        facts = self.read(files, MANIFEST, name)
        with files.expecting(MANIFEST, "file and temperatures of each model"):
            self.temperatures = tuple(facts["temperatures"])
            program = bytes(files.read(facts["file"]))
        self.session = onnxruntime.InferenceSession(program, providers=list(providers))

    def logits(self, images: Any) -> np.ndarray:
        """Return float32 [case, step, answer]; about -1e9 beyond a step's own answers."""
        return self._run(LOGITS, images)

    def gate_scores(self, images: Any) -> np.ndarray | None:
        """Return float32 [case], above 1 outside of what the model was trained on; None if the export has no gate."""
        has_gate = any(output.name == GATE_SCORES for output in self.session.get_outputs())
        return self._run(GATE_SCORES, images) if has_gate else None

    def _run(self, output: str, images: Any) -> np.ndarray:
        (values,) = self.session.run([output], {"images": self.preprocessing.normalise(images)})
        return values


def load(folder: str | pathlib.Path, model: str | None = None, *, providers: Sequence[str] = PROVIDERS) -> Model:
    """Load a model."""
    return Model(folder, model, providers=providers)


def check(folder: str | pathlib.Path, *, tolerance: float) -> list[dict[str, Any]]:
    """Compare this machine's logits and gate scores of the stored images with those of JAX, for each model."""
    return exported_models.check_models(folder, load, manifest=MANIFEST, tolerance=tolerance)


def main(arguments: list[str] | None = None) -> int:
    """Print one JSON line for each model; return 1 if logits differ, 2 if the export is refused."""
    parser = argparse.ArgumentParser(description="Check that this machine computes the logits that were exported.")
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=_HERE, help="default: this file's folder")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of the logits (default: %(default)s)")
    flags = parser.parse_args(arguments)
    return exported_models.print_check(lambda: check(flags.folder, tolerance=flags.tolerance))


if __name__ == "__main__":
    sys.exit(main())
