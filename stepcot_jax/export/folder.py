"""The folder of an export: written whole or not at all, read back and compared before it is there."""

import dataclasses
import hashlib
import json
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from stepcot_jax import __version__
from stepcot_jax.convert.torch_reference import flatten, to_torch_networks
from stepcot_jax.export import loader
from stepcot_jax.export.instructions import write_instructions
from stepcot_jax.export.model_card import write_model_card
from stepcot_jax.export.program import ENCODER, PLATFORMS, Program, Tensors, export_program, make_program, serialise
from stepcot_jax.host.errors import BadInput, RunStopped, make_workdir
from stepcot_jax.predict.trained_model import Trained

LOADER = "load.py"
TORCH_NAMES = "torch_names.safetensors"
TOLERANCE = 1e-6
"""Largest difference between the logits of an export and those of the run's own networks."""

_NUM_CHECK_IMAGES = 2

_PICTURES = {
    "crop": "sides beyond 4 to 1 cut to it; short side to the size, bicubic, smoothed when shrinking; then the centre",
    "pad": "long side to the size, bicubic, smoothed when shrinking; then black bars on both sides",
    "stretch": "both sides to the size, bicubic, smoothed when shrinking",
}


def export(
    trained: Trained,
    out: pathlib.Path,
    *,
    names: Sequence[str],
    torch_names: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write networks of a run to a folder that needs this package no more.

    Args:
      trained: the run.
      out: the folder; made, or there and empty.
      names: "student", "teacher" or both; the first is what the loader takes by default.
      torch_names: write the parameters under the authors' PyTorch names too.
      say: told before what takes long.

    Returns:
      "folder", "files" (names -> bytes), "models" (names -> "parameters" and "max_error").

    Raises:
      BadInput: the folder is in use, or a network cannot be exported.
      RunStopped: what was written does not give the numbers of the networks.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out}: found something there, accepted is a new or an empty folder")
    programs = [make_program(trained, name) for name in names]
    torch_tensors = name_as_authors(trained, names) if torch_names else {}
    make_workdir(out.parent)
    partial = pathlib.Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    try:
        written = _write(partial, trained, programs, torch_tensors=torch_tensors, say=say)
        say("reading it back")
        models = {
            program.name: {
                "parameters": sum(int(array.size) for array in program.tensors.values()),
                "max_error": compare(partial, program, written[program.name]),
            }
            for program in programs
        }
        partial.chmod(0o755)
        partial.replace(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    return {"folder": str(out), "files": files, "models": models}


def compare(folder: pathlib.Path, program: Program, expected: np.ndarray) -> float:
    """The largest difference between an export's logits of the check images and the networks'.

    Raises:
      RunStopped: it is above `TOLERANCE`.
    """
    found = loader.load(folder, program.name).logits(_check_images(program.size))
    error = float(np.max(np.abs(found - expected) / np.maximum(1, np.abs(expected))))
    if not error <= TOLERANCE:
        raise RunStopped(
            f"the exported {program.name} gives logits that differ by {error:.1e} from the network's, accepted is "
            f"{TOLERANCE}; nothing was written"
        )
    return error


def _write(
    folder: pathlib.Path,
    trained: Trained,
    programs: Sequence[Program],
    *,
    torch_tensors: Tensors,
    say: Callable[[str], None],
) -> dict[str, np.ndarray]:
    """Write all files; gives the logits of each network for the check images."""
    models: dict[str, Any] = {}
    logits = {}
    for program in programs:
        say(f"writing the {program.name}")
        (folder / f"{program.name}.stablehlo").write_bytes(serialise(export_program(program)))
        models[program.name] = {
            "program": f"{program.name}.stablehlo",
            "tensors": _write_tensors(folder, program, shared=trained.networks.image_encoder is None),
            "temperatures": list(temperatures(trained, program.name)),
        }
        images = _preprocessing(trained).normalise(_check_images(program.size))
        logits[program.name] = np.asarray(jax.jit(program.read)(program.tensors, images))
    check = {"images": _check_images(programs[0].size), **{f"logits/{name}": found for name, found in logits.items()}}
    _save(folder / "check.safetensors", check)
    if torch_tensors:
        _save(folder / TORCH_NAMES, torch_tensors)
    steps = [dataclasses.asdict(step) for step in trained.chain.steps]
    _write_json(folder / "labels.json", {"absent_logit": loader.ABSENT_LOGIT, "steps": steps})
    _write_json(folder / "preprocessing.json", describe_preprocessing(trained))
    manifest = {"format": loader.FORMAT, "models": models, "platforms": list(PLATFORMS)}
    manifest |= {"made_with": {"stepcot_jax": __version__, "jax": jax.__version__}}
    _write_json(folder / "export.json", manifest)
    shutil.copyfile(pathlib.Path(loader.__file__), folder / LOADER)
    (folder / "MODEL_CARD.md").write_text(write_model_card(trained, programs), encoding="utf-8")
    (folder / "README.md").write_text(
        write_instructions(trained, manifest, torch_names=bool(torch_tensors)), encoding="utf-8"
    )
    write_sums(folder)
    return logits


def _write_tensors(folder: pathlib.Path, program: Program, *, shared: bool) -> list[str]:
    """Write a network's tensors; a frozen encoder, which both networks share, goes to a file of its own, once."""
    files: dict[str, Tensors] = {}
    for name, array in program.tensors.items():
        owner = ENCODER if shared and name.startswith(f"{ENCODER}/") else program.name
        files.setdefault(f"{owner}.safetensors", {})[name] = array
    for file, tensors in files.items():
        if not (folder / file).exists():
            _save(folder / file, tensors)
    return sorted(files)


def _save(path: pathlib.Path, tensors: Tensors) -> None:
    # Exactly contiguous: safetensors writes the memory of a strided array as it lies.
    safetensors.numpy.save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path)
    path.chmod(0o644)  # an export is handed on, and safetensors writes for its owner alone


def name_as_authors(trained: Trained, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The parameters of networks under the authors' names; an image encoder has none there.

    Raises:
      BadInput: a network has parameters that the authors' has not, such as a linear map of the prompts.
    """
    networks: dict[str, Any] = {}
    for name in names:
        parts = (name, f"{name}_projection")
        networks |= {part: trained.params[name][part] for part in parts if part in trained.params[name]}
    try:
        return flatten(to_torch_networks(networks))
    except BadInput as error:
        raise BadInput(
            f"{trained.workdir}: --torch-names: {error}; accepted are teachers with text and memory whose prompt "
            "vectors have config.teacher.width, or --model=student"
        ) from None


def write_sums(folder: pathlib.Path) -> None:
    """Write the digests of all files, as `sha256sum -c SHA256SUMS` takes them."""
    lines = []
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != loader.SUMS:
            with path.open("rb") as file:
                lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / loader.SUMS).write_text("".join(lines), encoding="utf-8")


def temperatures(trained: Trained, name: str) -> tuple[float, ...]:
    """What each step's logits are divided by before they become probabilities; 1 where nothing was calibrated."""
    calibration = trained.calibration
    if calibration is None or name not in calibration.temperatures:
        return (1.0,) * trained.chain.num_steps
    return tuple(map(float, calibration.temperatures[name]))


def describe_preprocessing(trained: Trained) -> dict[str, Any]:
    """What has to be done to an image, for programs and for people."""
    preprocessing = trained.preprocessing
    return {
        "size": preprocessing.size,
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "fit": preprocessing.fit,
        "resize": _PICTURES[preprocessing.fit],
        "channels": "red, green, blue; a grey image has its value three times",
        "normalise": "(value / 255 - mean) / std, float32, [case, row, column, channel]",
        "orientation": "EXIF orientation applied",
        "transparency": "on black",
        "16 bits": "grey: full scale is the smallest of 2^10-1, 2^12-1, 2^14-1, 2^16-1 that holds the largest value",
    }


def _preprocessing(trained: Trained) -> loader.Preprocessing:
    found = trained.preprocessing
    return loader.Preprocessing(found.size, tuple(found.mean), tuple(found.std))


def _check_images(size: int) -> np.ndarray:
    """Grey images uint8 [case, size, size] of all values, no two rows alike."""
    return np.random.default_rng(0).integers(0, 256, (_NUM_CHECK_IMAGES, size, size), dtype=np.uint8)


def _write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
