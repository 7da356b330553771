"""Read an exported Step-CoT model. Needs jax, numpy and flatbuffers; an export has a copy of this file as load.py.

    from load import load
    model = load(".")                        # the folder of the export
    model(images)["Diagnosis"]               # (answers, probabilities [case, option])
    model.above(images)["Diagnosis"]         # answers at or above their operating points, a list for each image
    model.logits(images)                     # float32 [case, step, answer]
    model.gate_scores(images)                # above 1: an image unlike those of model.trained_on

`python load.py` checks that this machine computes the exported logits.

Every export also has a copy of exported_files.py, which compares each file with SHA256SUMS before its use.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.export
import numpy as np

if __package__:
    from stepcot_jax.host.exported_files import Files, RefusedExport
else:  # in the folder of an export
    from exported_files import Files, RefusedExport  # type: ignore[import-not-found,no-redef]

ABSENT_LOGIT = -1e9  # Logit of an answer that a step does not have
MANIFEST = "export.json"

_HERE = pathlib.Path(__file__).parent
_OF_A_POINT = ("threshold", "sensitivity", "specificity")
_CALLS = "custom_call"
_HARMLESS_CALLS = ("custom_call @shape_assertion",)


@dataclasses.dataclass(frozen=True)
class Step:
    """One question of the chain, with its answers in the order of the logits."""

    name: str
    question: str
    options: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Size and normalisation of an image; preprocessing.json has all rules."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalise(self, images: Any) -> np.ndarray:
        """Return float32 [case, size, size, 3] of uint8 pixels, grey [case, size, size] or not, or of float32."""
        images = np.asarray(images)
        grey = images.ndim == 3 and images.dtype == np.uint8
        shape = (*images.shape, 3) if grey else images.shape
        if shape[1:] != (self.size, self.size, 3) or not shape[0] or images.dtype not in (np.uint8, np.float32):
            raise ValueError(
                f"images must be uint8[case, {self.size}, {self.size}], uint8[case, {self.size}, {self.size}, 3] or, "
                f"normalised, float32[case, {self.size}, {self.size}, 3]; got {images.dtype}{list(images.shape)}"
            )
        if images.dtype == np.float32:
            return images
        pixels = np.repeat(images[..., None], 3, axis=-1) if grey else images
        std = np.asarray(self.std)
        scale = (1.0 / (255.0 * std)).astype(np.float32)
        shift = (np.asarray(self.mean) / std).astype(np.float32)
        return pixels.astype(np.float32) * scale - shift


def _read_points(files: Files, name: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the points of points.json; {} without any."""
    if "points.json" not in files:
        return {}
    with files.expecting("points.json", "operating points"):
        return {
            step: {
                answer: {part: _finite_or_none(point[part]["value"]) for part in _OF_A_POINT}
                for answer, point in answers.items()
            }
            for step, answers in files.read_json("points.json")["models"].get(name, {}).items()
        }


def _read_temperatures(files: Files, name: str, num_steps: int) -> tuple[float, ...]:
    """Return the temperatures of calibration.json; 1 without calibration."""
    if "calibration.json" not in files:
        return (1.0,) * num_steps
    with files.expecting("calibration.json", "a temperature for each step"):
        read = files.read_json("calibration.json")["temperatures"].get(name, (1.0,) * num_steps)
        temperatures = tuple(map(float, read))
        if len(temperatures) != num_steps or not all(1e-6 <= each <= 1e6 for each in temperatures):
            raise ValueError("a temperature for each step, from 1e-6 to 1e6")
        return temperatures


def _finite_or_none(value: Any) -> float | None:
    """Return a number of points.json, in which infinity is "inf"."""
    return float(value) if math.isfinite(float(value)) else None


class Model:
    """An exported model.

    Attributes:
      name: "teacher", "student" or "plain".
      steps: the questions and their answers.
      preprocessing: size and normalisation of its images.
      temperatures: divisor of each step's logits before the softmax; 1 without calibration.
      operating_points: by step and answer; a threshold of None is never reached.
      trained_on: the training data in a few words.
    """

    def __init__(self, folder: str | pathlib.Path, name: str | None = None) -> None:
        files = Files(pathlib.Path(folder))
        with files.expecting(MANIFEST, "models and trained_on"):
            content = files.read_json(MANIFEST)
            models = content["models"]
            self.name = next(iter(models)) if name is None else name
            if self.name not in models:
                raise RefusedExport(f"no model {name!r}; it has {', '.join(models)[:80]}")
            facts, self.trained_on = models[self.name], content["trained_on"]
        with files.expecting("labels.json", "steps with name, question and options"):
            steps = files.read_json("labels.json")["steps"]
            self.steps = tuple(Step(step["name"], step["question"], tuple(step["options"])) for step in steps)
        with files.expecting("preprocessing.json", "size, mean and std"):
            rules = files.read_json("preprocessing.json")
            self.preprocessing = Preprocessing(rules["size"], tuple(rules["mean"]), tuple(rules["std"]))
        self.operating_points = _read_points(files, self.name)
        self.temperatures = _read_temperatures(files, self.name, len(self.steps))
        with files.expecting(MANIFEST, "program and tensors of each model"):
            self.exported = _read_program(files.read(facts["program"]), folder)
            tensors = {key: value for file in facts["tensors"] for key, value in files.read_tensors(file).items()}
        _require_fit(self.exported, tensors, f"{folder}: {', '.join(facts['tensors'])}")
        self._tensors = jax.device_put(tensors)
        self._run = jax.jit(self.exported.call)

    def _compute(self, images: Any) -> dict[str, np.ndarray]:
        computed = self._run(self._tensors, self.preprocessing.normalise(images))
        return {name: np.asarray(numbers) for name, numbers in computed.items()}

    def gate_scores(self, images: Any) -> np.ndarray | None:
        """Return float32 [case], above 1 outside of what the model was trained on; None if the export has no gate."""
        return self._compute(images).get("gate")

    def logits(self, images: Any) -> np.ndarray:
        """Return float32 [case, step, answer]; compiled once for each number of images."""
        return self._compute(images)["logits"]

    def stablehlo(self) -> str:
        """Return the program as text, for other StableHLO compilers."""
        return self.exported.mlir_module()

    def __call__(self, images: Any) -> dict[str, tuple[list[str], np.ndarray]]:
        """Return by step the most probable answer of each image, and the options' probabilities [case, option]."""
        logits, by_step = self.logits(images), {}
        for position, (step, temperature) in enumerate(zip(self.steps, self.temperatures, strict=True)):
            scaled = logits[:, position, : len(step.options)].astype(np.float64) / temperature
            weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
            answers = [step.options[best] for best in scaled.argmax(axis=-1)]
            by_step[step.name] = (answers, weights / weights.sum(axis=-1, keepdims=True))
        return by_step

    def above(self, images: Any) -> dict[str, list[list[str]]]:
        """Return the answers at or above their operating points, by step that has any, for each image."""
        answers, above = self(images), {}
        for step in self.steps:
            if of_step := self.operating_points.get(step.name):
                limits = [of_step.get(option, {}).get("threshold") for option in step.options]
                rows = answers[step.name][1] >= np.array([np.inf if limit is None else limit for limit in limits])
                above[step.name] = [[step.options[index] for index in np.flatnonzero(row)] for row in rows]
        return above


def _read_program(content: memoryview, folder: str | pathlib.Path) -> jax.export.Exported:
    """Return the program; programs with custom calls and programs that this jax cannot read are refused."""
    try:
        exported = jax.export.deserialize(bytearray(content))
        text = exported.mlir_module()
    except Exception as error:  # jax and its compiler raise many kinds
        raise RefusedExport(
            f"{folder}: jax {jax.__version__} cannot read the program ({type(error).__name__}); README.md says which "
            "versions can; export again from the run: stepcot export --checkpoint=RUN --out=DIR"
        ) from None
    if text.count(_CALLS) != sum(text.count(call) for call in _HARMLESS_CALLS):
        raise RefusedExport(f"{folder}: the program makes custom calls, which are not allowed")
    return exported


def _require_fit(program: jax.export.Exported, tensors: Mapping[str, Any], where: str) -> None:
    """Refuse tensors whose names and shapes are not those of the program's first argument."""
    tree: Any = program.in_tree
    first = tree.children()[0].children()[0]
    leaves, structure = jax.tree.flatten(dict(tensors))
    shapes = [leaf.shape for leaf in leaves]
    if structure != first or shapes != [aval.shape for aval in program.in_avals[: len(shapes)]]:
        raise RefusedExport(f"{where}: names or shapes of {len(leaves)} tensors are not those that the program reads")


def _largest_error(computed: Any, expected: np.ndarray) -> float:
    """Return the largest difference, of each number the smaller of absolute and relative."""
    return float(np.max(np.abs(computed - expected) / np.maximum(1, np.abs(expected))))


def load(folder: str | pathlib.Path, model: str | None = None) -> Model:
    """Load a model."""
    return Model(folder, model)


def check(folder: str | pathlib.Path, *, tolerance: float) -> list[dict[str, Any]]:
    """Compare this machine's logits and gate scores of the stored images with the stored ones, for each model."""
    files = Files(pathlib.Path(folder))
    stored = files.read_tensors("check.safetensors")
    with files.expecting(MANIFEST, "models"):
        names = [name for name, facts in files.read_json(MANIFEST)["models"].items() if facts.keys()]
    with files.expecting("check.safetensors", "images, and the logits of each model"):
        images, expected_logits = stored["images"], {name: stored[f"logits/{name}"] for name in names}
    results = []
    for name in names:
        model = load(folder, name)
        logits, expected = model.logits(images), expected_logits[name]
        error, same = _largest_error(logits, expected), bool((logits.argmax(-1) == expected.argmax(-1)).all())
        result = {"model": name, "max_error": error, "same_answers": same, "ok": error <= tolerance}
        if f"gate/{name}" in stored:
            result["gate_error"] = _largest_error(model.gate_scores(images), stored[f"gate/{name}"])
            result["ok"] &= result["gate_error"] <= tolerance
        results.append(result)
    return results


def main(arguments: list[str] | None = None) -> int:
    """Print one JSON line for each model; return 1 if logits differ, 2 if the export is refused."""
    parser = argparse.ArgumentParser(description="Check that this machine computes the logits that were exported.")
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=_HERE, help="default: this file's folder")
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
