"""Write networks of a run as ONNX, with a loader that needs only numpy and onnxruntime, and compare the logits."""

import importlib
import json
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax

from stepcot_jax import __version__
from stepcot_jax.contrib.onnx import loader as onnx_loader
from stepcot_jax.contrib.onnx.converter import OPSET, trace_to_onnx
from stepcot_jax.export import exported_files, exported_models
from stepcot_jax.export.carried_files import read_kept_statistics
from stepcot_jax.export.folder import (
    LOADER,
    copy_loader,
    export_networks,
    name_parts,
    write_described,
    write_readme,
)
from stepcot_jax.export.model_card import RESIZE
from stepcot_jax.export.program import Program, make_gate_program
from stepcot_jax.features.carried_encoder import PREPROCESSING_FILE
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_json
from stepcot_jax.host.text import install_extra
from stepcot_jax.reading.exported_model import LABELS_FILE
from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.run.stored_reading import STATISTICS_FILE

TOLERANCE = 1e-4  # Largest difference between the logits of onnxruntime and of JAX, absolute or relative

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
    for name in ("onnx", "onnxruntime"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise BadInput(f"--format=onnx needs {name} ({install_extra('onnx')})") from None

    def write(folder: pathlib.Path, trained: Trained, programs: Sequence[Program]) -> None:
        _write(folder, trained, programs, say=say)

    return export_networks(workdir, out, models, write=write, check=onnx_loader.check, tolerance=TOLERANCE, say=say)


def _write(folder: pathlib.Path, trained: Trained, programs: Sequence[Program], *, say: Callable[[str], None]) -> None:
    calibrated = {} if trained.calibration is None else trained.calibration.temperatures
    models: dict[str, Any] = {}
    parts: dict[str, Program] = {}
    for program in programs:
        say(f"writing the {program.name}")
        gate = make_gate_program(trained, program.name)
        reads = {onnx_loader.LOGITS: program.read} | ({} if gate is None else {onnx_loader.GATE_SCORES: gate.read})
        made = trace_to_onnx(reads, program.tensors | ({} if gate is None else gate.tensors), size=program.size)
        (folder / f"{program.name}.onnx").write_bytes(made.SerializeToString())
        temperatures = list(map(float, calibrated.get(program.name, [1.0] * trained.chain.num_steps)))
        models[program.name] = {"file": f"{program.name}.onnx", "temperatures": temperatures}
        parts |= name_parts(program, gate)
    write_described(folder, trained, parts)
    made_with = {"stepcot_jax": __version__, "jax": jax.__version__}
    manifest = {"format": exported_models.FORMAT, "models": models, "opset": OPSET, "made_with": made_with}
    manifest["trained_on"] = trained.trained_on
    write_json(folder / onnx_loader.MANIFEST, manifest)
    if points := read_kept_statistics(trained.workdir).get("operating_points"):
        write_json(folder / STATISTICS_FILE, {"operating_points": points})
    copy_loader(folder, onnx_loader)
    use = write_use(trained, models, written={path.name for path in folder.iterdir()})
    write_readme(folder, trained, programs, use)


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
