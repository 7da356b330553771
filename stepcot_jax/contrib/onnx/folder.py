"""Write networks of a run as ONNX, with a loader that needs only numpy and onnxruntime, and compare the logits."""

import importlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from stepcot_jax import __version__
from stepcot_jax.contrib.onnx import loader as onnx_loader
from stepcot_jax.contrib.onnx.converter import OPSET, trace_to_onnx
from stepcot_jax.export import exported_models
from stepcot_jax.export.carried_files import read_kept_statistics
from stepcot_jax.export.folder import copy_loader, export_networks, name_parts, write_described, write_readme
from stepcot_jax.export.model_card import fill_use, list_files
from stepcot_jax.export.program import Program, make_gate_program
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_json
from stepcot_jax.host.text import install_extra
from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.run.stored_reading import STATISTICS_FILE

TOLERANCE = 1e-4  # Largest difference between the logits of onnxruntime and of JAX, absolute or relative

_HERE = pathlib.Path(__file__).parent
_DESCRIBED = {
    onnx_loader.MANIFEST: "the file and the temperatures of each model, versions",
    "check.safetensors": "two images of noise and what the models compute of them, for `python load.py`",
    STATISTICS_FILE: "operating points with their figures",
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
    described: dict[str, str] = {}
    parts: dict[str, Program] = {}
    for program in programs:
        say(f"writing the {program.name}")
        gate = make_gate_program(trained, program.name)
        reads = {onnx_loader.LOGITS: program.read} | ({} if gate is None else {onnx_loader.GATE_SCORES: gate.read})
        made = trace_to_onnx(reads, program.tensors | ({} if gate is None else gate.tensors), size=program.size)
        (folder / f"{program.name}.onnx").write_bytes(made.SerializeToString())
        temperatures = list(map(float, calibrated.get(program.name, [1.0] * trained.chain.num_steps)))
        models[program.name] = {"file": f"{program.name}.onnx", "temperatures": temperatures}
        parts_of_file = "image encoder" if gate is None else "image encoder and gate"
        described[f"{program.name}.onnx"] = f"the {program.name}, {parts_of_file} included"
        parts |= name_parts(program, gate)
    write_described(folder, trained, parts)
    made_with = {"stepcot_jax": __version__, "jax": jax.__version__}
    manifest = {"format": exported_models.FORMAT, "models": models, "opset": OPSET, "made_with": made_with}
    manifest["trained_on"] = trained.trained_on
    write_json(folder / onnx_loader.MANIFEST, manifest)
    if points := read_kept_statistics(trained.workdir).get("operating_points"):
        write_json(folder / STATISTICS_FILE, {"operating_points": points})
    copy_loader(folder, onnx_loader)
    files = list_files(folder, described | _DESCRIBED)
    use = fill_use(_HERE / "use.txt", trained, models, files, opset=f"opset {OPSET}", model=next(iter(models)))
    write_readme(folder, trained, programs, use)
