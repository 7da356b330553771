"""Write the folder of an export, atomically, after reading it back and comparing its logits."""

import dataclasses
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jaxlib
import numpy as np

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.export import loader
from stepcot_jax.export.carried_files import describe_encoder, write_carried
from stepcot_jax.export.model_card import write_card
from stepcot_jax.export.program import PLATFORMS, Program, Tensors, export_program, make_program
from stepcot_jax.host import exported_files
from stepcot_jax.host.array_files import save_safetensors
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.host.exported_files import MANIFEST_FILE, write_sums
from stepcot_jax.host.files import require_new, writing_folder
from stepcot_jax.host.own_folder import save
from stepcot_jax.reading.exported_model import ENCODER, LABELS_FILE, PREPROCESSING_FILE
from stepcot_jax.reading.trained_model import Trained, choose_model, load_trained

LOADER = "load.py"
TOLERANCE = 1e-6
"""Largest difference between the logits of an export and of the run's own networks, absolute or relative."""

_NUM_CHECK_IMAGES = 2

_PICTURES = {
    "crop": "sides beyond 4 to 1 cut to it; short side to the size, bicubic, smoothed when shrinking; then the centre",
    "pad": "long side to the size, bicubic, smoothed when shrinking; then black bars on both sides",
    "stretch": "both sides to the size, bicubic, smoothed when shrinking",
}


def export_model(
    workdir: str | pathlib.Path | Trained,
    out: str | pathlib.Path,
    *,
    models: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write networks of a run to a folder that works without this package; for a policy see `qwen_folder`.

    Args:
      workdir: the run's workdir, or the loaded run.
      out: the folder; it must not exist or be empty.
      models: of "teacher", "student" and "plain", the loader's default first; None for all, the run's default first.
      say: called with a message before each slow part.

    Returns:
      "folder", "files" (names -> bytes), "models" (names -> "parameters" and "max_error").

    Raises:
      BadInput: the run cannot be loaded, the folder is not empty, or a network cannot be exported.
      RunStopped: the export computes other logits than the networks.
    """
    out = pathlib.Path(out)
    require_new(out)
    trained = workdir
    if not isinstance(trained, Trained):
        trained = load_trained(pathlib.Path(trained), names=None if models is None else tuple(models))
    default = choose_model(trained.workdir, tuple(trained.params))
    programs = [
        make_program(trained, name) for name in models or sorted(trained.params, key=lambda name: name != default)
    ]
    sizes = {program.name: sum(int(array.size) for array in program.tensors.values()) for program in programs}
    with writing_folder(out) as partial:
        _write(partial, trained, programs, sizes, say)
        say("reading it back")
        results = loader.check(partial, tolerance=TOLERANCE)
        require_equal(results)
    errors = {result["model"]: result["max_error"] for result in results}
    described = {name: {"parameters": size, "max_error": errors[name]} for name, size in sizes.items()}
    return {"folder": str(out), "files": list_sizes(out), "models": described}


def list_sizes(folder: pathlib.Path) -> dict[str, int]:
    """Return the files of a folder with their bytes."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def require_equal(results: Sequence[Mapping[str, Any]]) -> None:
    """Refuse an export that computes other numbers than the networks."""
    for result in results:
        if not result["ok"]:
            raise RunStopped(
                f"the exported {result['model']} computes other numbers: logits differ by {result['max_error']:.1e}, "
                f"gate scores by {result.get('gate_error', 0.0):.1e} (limit {TOLERANCE}); nothing was written"
            )


def _write(
    folder: pathlib.Path,
    trained: Trained,
    programs: Sequence[Program],
    sizes: Mapping[str, int],
    say: Callable[[str], None],
) -> None:
    models: dict[str, Any] = {}
    for program in programs:
        say(f"writing the {program.name}")
        (folder / f"{program.name}.stablehlo").write_bytes(export_program(program).serialize())
        models[program.name] = {
            "program": f"{program.name}.stablehlo",
            "tensors": _write_tensors(folder, program, shared=trained.networks.image_encoder is None),
            "best_step": trained.best_steps[program.name],
        }
    _write_described(folder, trained, programs)
    manifest: dict[str, Any] = {"models": models, "platforms": list(PLATFORMS)}
    manifest["made_with"] = {"jax": jax.__version__, "jaxlib": jaxlib.__version__}
    manifest |= {"encoder": describe_encoder(trained.frozen_encoder, trained.workdir), "trained_on": trained.trained_on}
    save(folder / MANIFEST_FILE, manifest)
    write_carried(folder, trained)
    shutil.copyfile(loader.__file__, folder / LOADER)
    shutil.copy(exported_files.__file__, folder)
    (folder / "README.md").write_text(write_card(trained, sizes, manifest, folder), encoding="utf-8")
    write_sums(folder)


def _write_described(folder: pathlib.Path, trained: Trained, programs: Sequence[Program]) -> None:
    """Write images of noise with what the programs compute of them, the questions, and the preprocessing."""
    rules = describe_preprocessing(trained.preprocessing)
    images = check_images(rules["size"])
    pixels = loader.Preprocessing(rules["size"], tuple(rules["mean"]), tuple(rules["std"])).normalise(images)
    computed = {
        f"{part}/{program.name}": np.asarray(numbers)
        for program in programs
        for part, numbers in jax.jit(program.read)(program.tensors, pixels).items()
    }
    save_tensors(folder / "check.safetensors", {"images": images, **computed})
    steps = [dataclasses.asdict(step) for step in trained.chain.steps]
    save(folder / LABELS_FILE, {"absent_logit": loader.ABSENT_LOGIT, "steps": steps})
    save(folder / PREPROCESSING_FILE, rules)


def _write_tensors(folder: pathlib.Path, program: Program, *, shared: bool) -> list[str]:
    """Write a network's tensors; a frozen encoder, which the networks share, goes to its own file, once."""
    files: dict[str, Tensors] = {}
    for name, array in program.tensors.items():
        owner = ENCODER if shared and name.startswith(f"{ENCODER}/") else program.name
        files.setdefault(f"{owner}.safetensors", {})[name] = array
    for file, tensors in files.items():
        if not (folder / file).exists():
            save_tensors(folder / file, tensors)
    return sorted(files)


def save_tensors(path: pathlib.Path, tensors: Tensors) -> None:
    """Write tensors as safetensors, readable by everyone."""
    save_safetensors(path, tensors)
    path.chmod(0o644)  # safetensors writes files that only their owner can read


def describe_preprocessing(preprocessing: Preprocessing) -> dict[str, Any]:
    """Describe the preprocessing of an image, for programs and for people."""
    return {
        "size": preprocessing.size,
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "fit": preprocessing.fit,
        "resize": _PICTURES[preprocessing.fit],
        **({"jpeg": "decoded at 1/2, 1/4 or 1/8, not below twice the size"} if preprocessing.reduced_jpeg else {}),
        "channels": "red, green, blue; a grey image has its value three times",
        "normalise": "(value / 255 - mean) / std, float32, [case, row, column, channel]",
        "orientation": "EXIF orientation applied",
        "transparency": "on black",
        "16 bits": "full scale is the smallest of 2^10-1, 2^12-1, 2^14-1, 2^16-1 that holds the 99.9th percentile",
    }


def check_images(size: int) -> np.ndarray:
    """Return grey noise images, uint8 [case, size, size]."""
    return np.random.default_rng(0).integers(0, 256, (_NUM_CHECK_IMAGES, size, size), dtype=np.uint8)
