"""Read an exported Step-CoT model. Needs jax and numpy alone; an export has a copy of this file as load.py.

    from load import load
    model = load(".")                        # the folder of the export
    model(images)["Diagnosis"]               # (answers, probabilities [case, option])
    model.logits(images)                     # float32 [case, step, answer]

`python load.py` checks that this machine computes the exported logits.

Every export has a copy of this file and of exported_files.py, which compares each file with SHA256SUMS before its use.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from typing import Any

import jax
import numpy as np

if __package__:
    from stepcot_jax.export.exported_files import Files, Preprocessing, RefusedExport, read_program, read_safetensors
else:  # in the folder of an export
    from exported_files import (  # type: ignore[import-not-found,no-redef]
        Files,
        Preprocessing,
        RefusedExport,
        read_program,
        read_safetensors,
    )

FORMAT = 1
ABSENT_LOGIT = -1e9
"""Logit of an answer that a step does not have."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One question of the chain, with its answers in the order of the logits."""

    name: str
    question: str
    options: tuple[str, ...]


class Model:
    """An exported model.

    Attributes:
      name: "student" or "teacher".
      steps: the questions and their answers.
      preprocessing: size and normalisation of the images.
      temperatures: divisor of each step's logits before the softmax; 1 without calibration.
      exported: the program.
    """

    def __init__(self, folder: str | pathlib.Path, name: str | None = None) -> None:
        files = Files(pathlib.Path(folder))
        manifest = files.read_json("export.json")
        if manifest.get("format") != FORMAT:
            raise RefusedExport(f"{folder}: format {manifest.get('format')!r} is not supported; expected {FORMAT}")
        models = manifest["models"]
        name = next(iter(models)) if name is None else name
        if name not in models:
            raise RefusedExport(f"{folder} has no model {name!r}; it has {', '.join(models)}")
        self.name = name
        self.steps = tuple(
            Step(step["name"], step["question"], tuple(step["options"]))
            for step in files.read_json("labels.json")["steps"]
        )
        found = files.read_json("preprocessing.json")
        self.preprocessing = Preprocessing(found["size"], tuple(found["mean"]), tuple(found["std"]))
        self.temperatures = tuple(models[name]["temperatures"])
        self.exported = read_program(files.read(models[name]["program"]), folder)
        tensors = {key: value for file in models[name]["tensors"] for key, value in read_safetensors(files.read(file))}
        self._tensors = jax.device_put(tensors)
        self._run = jax.jit(self.exported.call)

    def logits(self, images: Any) -> np.ndarray:
        """Return the logits of all steps; compiled once for each number of images.

        Args:
          images: see `Preprocessing.normalise`.

        Returns:
          float32 [case, step, answer]; `ABSENT_LOGIT` beyond a step's own answers.
        """
        return np.asarray(self._run(self._tensors, self.preprocessing.normalise(images)))

    def __call__(self, images: Any) -> dict[str, tuple[list[str], np.ndarray]]:
        """Return the answers of all steps.

        Args:
          images: see `Preprocessing.normalise`.

        Returns:
          By the name of the step: the most probable answer of each image, and the probabilities of the step's options
          [case, option].
        """
        found = {}
        logits = self.logits(images).astype(np.float64)
        for position, (step, temperature) in enumerate(zip(self.steps, self.temperatures, strict=True)):
            own = logits[:, position, : len(step.options)] / temperature
            weights = np.exp(own - own.max(axis=-1, keepdims=True))
            answers = [step.options[best] for best in own.argmax(axis=-1)]
            found[step.name] = (answers, weights / weights.sum(axis=-1, keepdims=True))
        return found

    def stablehlo(self) -> str:
        """Return the program as text, for other StableHLO compilers."""
        return self.exported.mlir_module()


def load(folder: str | pathlib.Path, model: str | None = None) -> Model:
    """Load a model.

    Args:
      folder: of the export.
      model: "student" or "teacher"; default: the first of the export.

    Raises:
      RefusedExport: a file is missing, changed, or has another format.
    """
    return Model(folder, model)


def check(folder: str | pathlib.Path, *, tolerance: float) -> list[dict[str, Any]]:
    """Compare this machine's logits of the stored images with the stored logits.

    Args:
      folder: of the export.
      tolerance: largest accepted difference, the smaller of absolute and relative.

    Returns:
      For each model: "model", "max_error", "same_answers" and "ok".
    """
    files = Files(pathlib.Path(folder))
    stored = dict(read_safetensors(files.read("check.safetensors")))
    results = []
    for name in files.read_json("export.json")["models"]:
        found, expected = load(folder, name).logits(stored["images"]), stored[f"logits/{name}"]
        error = float(np.max(np.abs(found - expected) / np.maximum(1, np.abs(expected))))
        same = bool((found.argmax(axis=-1) == expected.argmax(axis=-1)).all())
        results.append({"model": name, "max_error": error, "same_answers": same, "ok": error <= tolerance})
    return results


def main(arguments: list[str] | None = None) -> int:
    """Print one JSON line for each model; return 1 if logits differ, 2 if the export is refused."""
    parser = argparse.ArgumentParser(description="Check that this machine computes the logits that were exported.")
    here = pathlib.Path(__file__).parent
    parser.add_argument(
        "folder", nargs="?", type=pathlib.Path, default=here, help="the export (default: this file's folder)"
    )
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of the logits (default: %(default)s)")
    flags = parser.parse_args(arguments)
    try:
        results = check(flags.folder, tolerance=flags.tolerance)
    except RefusedExport as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for result in results:
        print(json.dumps(result))
    return 0 if all(result["ok"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
