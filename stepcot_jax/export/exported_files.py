"""Files of an export: compared with their digests, tensors, questions, pixels. Needs numpy alone; load.py imports it.

Every export has a copy of this file.

Every file is compared with SHA256SUMS before it is used, which detects damage. An attacker could change both: use only
exports from sources whose programs you would run.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

SUMS = "SHA256SUMS"
FORMAT = 1
"""Of the manifests of networks."""

_MOST_SUMS_BYTES = 2**16
_MOST_JSON_BYTES, _MOST_HEADER_BYTES = 2**26, 2**24
_DTYPES = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "I32": np.int32, "U8": np.uint8}


class RefusedExport(ValueError):
    """An export that is incomplete or changed, or that this loader cannot read."""


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
        """Return the network's input, float32 [case, size, size, 3].

        Args:
          images: uint8 [case, size, size] (grey) or [case, size, size, 3], or normalised float32
            [case, size, size, 3].

        Raises:
          ValueError: another shape or type.
        """
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


class Files:
    """The files of an export, compared with their digests.

    Args:
      folder: of the export; all files that SHA256SUMS names are compared at once.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        lines = _read_text(folder / SUMS, most=_MOST_SUMS_BYTES).splitlines()
        self._digests: dict[str, str] = {}
        for line in lines:
            digest, _, name = line.partition("  ")
            if len(digest) != 64 or not name or pathlib.PurePath(name).name != name or "\\" in name:
                raise RefusedExport(f"{folder / SUMS}: {line[:100]!r} is not a digest and a file's name")
            self._digests[name] = digest
        self._contents = {name: self._compare(name) for name in self._digests}

    def __contains__(self, name: str) -> bool:
        """Whether the export has a file of this name."""
        return name in self._contents

    def read(self, name: str) -> memoryview:
        """Return the content of a verified file.

        Raises:
          RefusedExport: it has no digest.
        """
        if name not in self._contents:
            raise RefusedExport(f"{self._folder / SUMS} has no digest of {name}")
        return self._contents[name]

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file.

        Raises:
          RefusedExport: it has no digest, is too large or is not JSON.
        """
        content = self.read(name)
        if len(content) > _MOST_JSON_BYTES:
            raise RefusedExport(f"{self._folder / name}: {len(content)} bytes; at most {_MOST_JSON_BYTES} are accepted")
        with self.expecting(name, "JSON"):
            return json.loads(bytes(content))

    def read_tensors(self, name: str) -> dict[str, np.ndarray]:
        """Return the tensors of a .safetensors file.

        Raises:
          RefusedExport: it has no digest, or is no complete .safetensors file.
        """
        with self.expecting(name, "a complete .safetensors file"):
            return dict(read_safetensors(self.read(name)))

    @contextlib.contextmanager
    def expecting(self, name: str, kind: str) -> Iterator[None]:
        """Name a file where its content is not of the expected kind."""
        try:
            yield
        except RefusedExport as error:
            raise RefusedExport(str(error) if name in str(error) else f"{self._folder / name}: {error}") from None
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError, StopIteration) as error:
            found = f"{type(error).__name__}: {str(error)[:80]}"
            raise RefusedExport(f"{self._folder / name} cannot be used ({found}); expected {kind}") from None

    def _compare(self, name: str) -> memoryview:
        path = self._folder / name
        try:
            _require_regular(path)
            content: Any = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
        except (OSError, ValueError) as error:
            raise RefusedExport(f"{path} cannot be read ({error}); the export is incomplete") from None
        if hashlib.sha256(content).hexdigest() != self._digests[name]:
            raise RefusedExport(f"{path} has changed since the export: its digest is not that of {SUMS}")
        return memoryview(content)


def _require_regular(path: pathlib.Path) -> os.stat_result:
    """Refuse a pipe, a device or a folder before anything waits for it; return the file's status."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("not a regular file")
    return found


def _read_text(path: pathlib.Path, *, most: int) -> str:
    try:
        if (size := _require_regular(path).st_size) > most:
            raise ValueError(f"{size} bytes, more than {most}")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RefusedExport(f"{path} cannot be read ({error}); the export is incomplete") from None


def read_safetensors(content: memoryview) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of a .safetensors file by name, as views of its content.

    Raises:
      RefusedExport: its lengths, types and offsets are inconsistent.
    """
    try:
        (length,) = struct.unpack_from("<Q", content)
        if length > len(content) - 8:
            raise ValueError("its header is longer than the file")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"its header has {length} bytes; at most {_MOST_HEADER_BYTES} are accepted")
        header = json.loads(bytes(content[8 : 8 + length]))
        data = content[8 + length :]
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            (first, last), shape, dtype = entry["data_offsets"], entry["shape"], np.dtype(_DTYPES[entry["dtype"]])
            if not 0 <= first <= last <= len(data) or math.prod(shape) * dtype.itemsize != last - first:
                raise ValueError(f"{name} does not fit its place")
            yield name, np.frombuffer(data[first:last], dtype).reshape(shape)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        found = str(error)[:200]
        raise RefusedExport(f"the tensors cannot be read ({found}); expected a complete .safetensors file") from None


def read_steps(files: Files) -> tuple[Step, ...]:
    """Return the questions of labels.json."""
    with files.expecting("labels.json", "steps with name, question and options"):
        steps = files.read_json("labels.json")["steps"]
        return tuple(Step(step["name"], step["question"], tuple(step["options"])) for step in steps)


def read_manifest(files: Files, manifest: str, name: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the manifest of an export, and the facts of one of its models with its "name"; None names the first.

    Raises:
      RefusedExport: the manifest has another format, or no such model.
    """
    with files.expecting(manifest, f"format {FORMAT} and models"):
        found = files.read_json(manifest)
        if found.get("format") != FORMAT:
            raise RefusedExport(f"format {str(found.get('format'))[:80]} is not supported; expected {FORMAT}")
        models = found["models"]
        name = next(iter(models)) if name is None else name
        if name not in models:
            raise RefusedExport(f"no model {name!r}; it has {', '.join(models)[:80]}")
        return found, {**models[name], "name": name}


def read_pixel_rules(files: Files) -> Preprocessing:
    """Return size and normalisation of preprocessing.json."""
    with files.expecting("preprocessing.json", "size, mean and std"):
        found = files.read_json("preprocessing.json")
        return Preprocessing(found["size"], tuple(found["mean"]), tuple(found["std"]))


def to_answers(
    logits: np.ndarray, steps: Sequence[Step], temperatures: Sequence[float]
) -> dict[str, tuple[list[str], np.ndarray]]:
    """Return the answers of all steps.

    Args:
      logits: [case, step, answer].
      steps: the questions.
      temperatures: divisor of each step's logits before the softmax.

    Returns:
      By the name of the step: the most probable answer of each image, and the probabilities of the step's options
      [case, option].
    """
    found = {}
    for position, (step, temperature) in enumerate(zip(steps, temperatures, strict=True)):
        own = logits[:, position, : len(step.options)].astype(np.float64) / temperature
        weights = np.exp(own - own.max(axis=-1, keepdims=True))
        answers = [step.options[best] for best in own.argmax(axis=-1)]
        found[step.name] = (answers, weights / weights.sum(axis=-1, keepdims=True))
    return found


def compare_logits(found: np.ndarray, expected: np.ndarray) -> tuple[float, bool]:
    """Return the largest difference, the smaller of absolute and relative, and whether all answers are the same."""
    error = float(np.max(np.abs(found - expected) / np.maximum(1, np.abs(expected))))
    return error, bool((found.argmax(axis=-1) == expected.argmax(axis=-1)).all())


def check_models(
    folder: str | pathlib.Path, load: Callable[..., Any], *, manifest: str, tolerance: float
) -> list[dict[str, Any]]:
    """Compare each model's logits and gate scores of the stored images with the stored ones.

    Args:
      folder: of the export.
      load: (folder, name of the model) -> the model, with `logits`, and `gate_scores` if scores are stored.
      manifest: name of the file that lists the models.
      tolerance: largest accepted difference, the smaller of absolute and relative.

    Returns:
      For each model: "model", "max_error", "same_answers", "ok" and, with stored scores, "gate_error".
    """
    files = Files(pathlib.Path(folder))
    stored = files.read_tensors("check.safetensors")
    with files.expecting(manifest, "models"):
        names = [name for name, facts in files.read_json(manifest)["models"].items() if facts.keys()]
    with files.expecting("check.safetensors", "images, and the logits of each model"):
        images, expected_logits = stored["images"], {name: stored[f"logits/{name}"] for name in names}
    results = []
    for name in names:
        model = load(folder, name)
        error, same = compare_logits(model.logits(images), expected_logits[name])
        result = {"model": name, "max_error": error, "same_answers": same, "ok": error <= tolerance}
        if f"gate/{name}" in stored:
            scores, expected = model.gate_scores(images), stored[f"gate/{name}"]
            result["gate_error"] = float(np.max(np.abs(scores - expected) / np.maximum(1, np.abs(expected))))
            result["ok"] &= result["gate_error"] <= tolerance
        results.append(result)
    return results


def run_check(check: Callable[..., list[dict[str, Any]]], arguments: list[str] | None, *, here: pathlib.Path) -> int:
    """Print one JSON line for each model; return 1 if logits differ, 2 if the export is refused.

    Args:
      check: (folder, tolerance) -> results, as of `check_models`.
      arguments: of the command line.
      here: the folder without an argument.
    """
    parser = argparse.ArgumentParser(description="Check that this machine computes the logits that were exported.")
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
