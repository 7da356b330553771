"""The models of an export: questions, pixels, answers, check. Needs numpy alone; load.py imports it.

Every export has a copy of this file.
"""

import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

if __package__:
    from stepcot_jax.host.exported_files import Files, RefusedExport
else:  # in the folder of an export
    from exported_files import Files, RefusedExport  # type: ignore[import-not-found,no-redef]

FORMAT = 1  # Format of the manifests of networks

_OF_A_POINT = ("threshold", "sensitivity", "specificity")


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


def read_manifest(files: Files, manifest: str, name: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the manifest of an export, and the facts of one of its models with its "name"; None names the first."""
    with files.expecting(manifest, f"format {FORMAT} and models"):
        content = files.read_json(manifest)
        if content.get("format") != FORMAT:
            raise RefusedExport(f"format {str(content.get('format'))[:80]} is not supported; expected {FORMAT}")
        models = content["models"]
        name = next(iter(models)) if name is None else name
        if name not in models:
            raise RefusedExport(f"no model {name!r}; it has {', '.join(models)[:80]}")
        return content, {**models[name], "name": name}


def read_pixel_rules(files: Files) -> Preprocessing:
    """Return size and normalisation of preprocessing.json."""
    with files.expecting("preprocessing.json", "size, mean and std"):
        rules = files.read_json("preprocessing.json")
        return Preprocessing(rules["size"], tuple(rules["mean"]), tuple(rules["std"]))


def read_points(files: Files, name: str) -> dict[str, dict[str, dict[str, Any]]]:
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


def _finite_or_none(value: Any) -> float | None:
    """Return a number of points.json, in which infinity is "inf"."""
    return float(value) if math.isfinite(float(value)) else None


class AnsweringModel:
    """An exported model of any format: questions, answers and operating points of its logits."""

    name: str
    steps: tuple[Step, ...]  # the questions and their answers
    preprocessing: Preprocessing
    temperatures: tuple[float, ...]  # divisor of each step's logits before the softmax; 1 without calibration
    operating_points: dict[str, dict[str, dict[str, Any]]]  # by step and answer, a threshold of None: never called
    trained_on: str  # the training data in a few words; "" in exports of earlier versions

    def read(self, files: Files, manifest: str, name: str | None) -> dict[str, Any]:
        """Read all attributes but the temperatures; return the facts of the model in the manifest."""
        content, facts = read_manifest(files, manifest, name)
        with files.expecting("labels.json", "steps with name, question and options"):
            steps = files.read_json("labels.json")["steps"]
            self.steps = tuple(Step(step["name"], step["question"], tuple(step["options"])) for step in steps)
        self.name, self.trained_on = facts["name"], content.get("trained_on", "")
        self.preprocessing = read_pixel_rules(files)
        self.operating_points = read_points(files, self.name)
        return facts

    def logits(self, images: Any) -> np.ndarray:
        """Return float32 [case, step, answer]."""
        raise NotImplementedError

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


def _largest_error(computed: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, of each number the smaller of absolute and relative."""
    return float(np.max(np.abs(computed - expected) / np.maximum(1, np.abs(expected))))


def check_models(
    folder: str | pathlib.Path, load: Callable[..., Any], *, manifest: str, tolerance: float
) -> list[dict[str, Any]]:
    """Compare each model's logits and gate scores of the stored images; `load` gives a model by folder and name."""
    files = Files(pathlib.Path(folder))
    stored = files.read_tensors("check.safetensors")
    with files.expecting(manifest, "models"):
        names = [name for name, facts in files.read_json(manifest)["models"].items() if facts.keys()]
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


def print_check(check: Callable[[], list[dict[str, Any]]]) -> int:
    """Print one JSON line for each result; return the exit code: 1 if numbers differ, 2 if the export is refused."""
    try:
        results = check()
    except RefusedExport as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for result in results:
        print(json.dumps(result))
    return 0 if all(result["ok"] for result in results) else 1
