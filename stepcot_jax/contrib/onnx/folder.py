"""Write networks of a run as ONNX, with a loader that needs only numpy and onnxruntime, and compare the logits."""

import dataclasses
import importlib
import json
import pathlib
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from stepcot_jax import __version__
from stepcot_jax.contrib.onnx import loader as onnx_loader
from stepcot_jax.contrib.onnx.converter import OPSET, trace_to_onnx
from stepcot_jax.export import exported_files, exported_models, loader
from stepcot_jax.export.carried_files import read_kept_statistics
from stepcot_jax.export.folder import (
    LOADER,
    check_images,
    describe_models,
    describe_preprocessing,
    list_sizes,
    require_equal,
    require_new,
    save_tensors,
    write_json,
    write_sums,
    writing_folder,
)
from stepcot_jax.export.instructions import RESIZE
from stepcot_jax.export.model_card import require_readable, write_front_matter, write_model_card
from stepcot_jax.export.program import Program, make_gate_program, make_program
from stepcot_jax.features.carried_encoder import PREPROCESSING_FILE
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import install_extra
from stepcot_jax.reading.exported_model import LABELS_FILE
from stepcot_jax.reading.trained_model import Trained, load_trained
from stepcot_jax.run.stored_reading import STATISTICS_FILE

TOLERANCE = 1e-4
"""Largest difference between the logits of onnxruntime and of JAX, absolute or relative."""

_HERE = pathlib.Path(__file__).parent
_DESCRIBED = {
    LOADER: "the loader",
    "exported_files.py": "what it reads files with",
    "exported_models.py": "what it reads and checks models with",
    LABELS_FILE: "questions and answers, in the order of the logits",
    PREPROCESSING_FILE: "from an image file to the model's input",
    onnx_loader.MANIFEST: "the file and the temperatures of each model, versions",
    "check.safetensors": "two images of noise and what the models compute of them, for `python load.py`",
    STATISTICS_FILE: "operating points with their figures",
    exported_files.SUMS: "digests of all files (`sha256sum -c SHA256SUMS`)",
}


def export_onnx(
    workdir: str | pathlib.Path | Trained,
    out: str | pathlib.Path,
    *,
    models: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write networks of a run, or of an export of one, as ONNX files with their image encoders."""
    _require_onnx()
    trained, out = workdir, pathlib.Path(out)
    require_new(out)
    if not isinstance(trained, Trained):
        trained = load_trained(pathlib.Path(trained), names=None if models is None else tuple(models))
    require_readable(trained)
    programs = [make_program(trained, name) for name in models or sorted(trained.params)]
    with writing_folder(out) as partial:
        _write(partial, trained, programs, say=say)
        say("reading it back with onnxruntime")
        results = onnx_loader.check(partial, tolerance=TOLERANCE)
        require_equal(results, tolerance=TOLERANCE)
    return {"folder": str(out), "files": list_sizes(out), "models": describe_models(programs, results)}


def _require_onnx() -> None:
    for name in ("onnx", "onnxruntime"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise BadInput(f"--format=onnx needs {name} ({install_extra('onnx')})") from None


def _write(folder: pathlib.Path, trained: Trained, programs: Sequence[Program], *, say: Callable[[str], None]) -> None:
    """Write all files."""
    calibrated = {} if trained.calibration is None else trained.calibration.temperatures
    rules = describe_preprocessing(trained.preprocessing)
    pixels = exported_models.Preprocessing(rules["size"], tuple(rules["mean"]), tuple(rules["std"]))
    check: dict[str, Any] = {"images": check_images(rules["size"])}
    models: dict[str, Any] = {}
    for program in programs:
        say(f"writing the {program.name}")
        gate = make_gate_program(trained, program.name)
        outputs = {onnx_loader.LOGITS: program} | ({} if gate is None else {onnx_loader.GATE_SCORES: gate})
        reads = {output: traced.read for output, traced in outputs.items()}
        made = trace_to_onnx(reads, program.tensors | ({} if gate is None else gate.tensors), size=program.size)
        (folder / f"{program.name}.onnx").write_bytes(made.SerializeToString())
        ones = [1.0] * trained.chain.num_steps
        temperatures = list(map(float, calibrated.get(program.name, ones)))
        models[program.name] = {"file": f"{program.name}.onnx", "temperatures": temperatures}
        for kind, traced in zip(("logits", "gate"), outputs.values(), strict=False):
            computed = jax.jit(traced.read)(traced.tensors, pixels.normalise(check["images"]))
            check[f"{kind}/{program.name}"] = np.asarray(computed)
    save_tensors(folder / "check.safetensors", check)
    steps = [dataclasses.asdict(step) for step in trained.chain.steps]
    write_json(folder / LABELS_FILE, {"absent_logit": loader.ABSENT_LOGIT, "steps": steps})
    write_json(folder / PREPROCESSING_FILE, rules)
    made_with = {"stepcot_jax": __version__, "jax": jax.__version__}
    manifest = {"format": exported_models.FORMAT, "models": models, "opset": OPSET, "made_with": made_with}
    manifest["trained_on"] = trained.trained_on
    write_json(folder / onnx_loader.MANIFEST, manifest)
    if points := read_kept_statistics(trained.workdir).get("operating_points"):
        write_json(folder / STATISTICS_FILE, {"operating_points": points})
    shutil.copyfile(onnx_loader.__file__, folder / LOADER)
    for module in (exported_files, exported_models):
        shutil.copy(str(module.__file__), folder)
    card = write_front_matter("image-classification") + write_model_card(trained, programs)
    use = write_use(trained, models, written={path.name for path in folder.iterdir()})
    readme = f"{card.rstrip()}\n\n{use}"
    (folder / "README.md").write_text(readme, encoding="utf-8")
    write_sums(folder)


def write_use(trained: Trained, models: Mapping[str, Any], *, written: Collection[str]) -> str:
    """Return the part of the card on the use of the files."""
    first, *others = models
    files = {}
    for name, facts in models.items():
        gate = " and gate" if trained.gate(name) else ""
        files[facts["file"]] = f"the {name}, image encoder{gate} included"
    files |= {name: what for name, what in _DESCRIBED.items() if name in written or name == exported_files.SUMS}
    return (
        (_HERE / "use.txt")
        .read_text(encoding="utf-8")
        .format(
            opset=f"opset {OPSET}",
            argument=f', "{first}"' if others else "",
            step=json.dumps(trained.chain.steps[-1].name, ensure_ascii=False),
            size=trained.preprocessing.size,
            resize=RESIZE[trained.preprocessing.fit],
            model=first,
            files="\n".join(f"| `{name}` | {what} |" for name, what in files.items()),
        )
    )
