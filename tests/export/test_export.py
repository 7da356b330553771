"""The loaded export gives the networks' logits, with jax and numpy alone, and refuses what is not as it was written."""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from PIL import Image
from trained_workdir import write_operating_points

from stepcot_jax.contrib.onnx import loader as onnx_loader
from stepcot_jax.data.images.preprocessing import Preprocessing, normalise, prepare_image
from stepcot_jax.evaluation.calibration import calibrated_probabilities
from stepcot_jax.export import exported_files, exported_models, exported_programs, loader, policy_loader
from stepcot_jax.export import folder as folder_module
from stepcot_jax.export.authors import from_torch_networks
from stepcot_jax.export.folder import export_model, require_equal, write_sums
from stepcot_jax.export.program import PLATFORMS, make_program
from stepcot_jax.host.errors import BadInput, RunStopped, run_tool
from stepcot_jax.reading.programs import Reader
from stepcot_jax.tools import export as tool
from tests.export import random_run

COUNTS = {"student": (1, 3), "teacher": (3,)}  # each number of images is compiled anew

READ_ALONE = """
import importlib.machinery, pathlib, sys

OWN = ("load", "exported_files", "exported_models", "exported_programs")
ALLOWED = {"jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum", "scipy", *OWN}
ALLOWED |= set(sys.stdlib_module_names)

class Few(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in ALLOWED or name.startswith("_sysconfigdata"):
            return super().find_spec(name, path, target)

sys.meta_path[:] = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, Few]
folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder))
import numpy as np
from load import load

images = np.load(sys.argv[2])
found = {}
for name, counts in (("student", (1, 3)), ("teacher", (3,))):
    model = load(folder, name)
    for count in counts:
        found[f"{name}/{count}"] = model.logits(images[:count])
np.savez(sys.argv[3], **found)
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"stepcot_jax", "flax", "flatbuffers", "safetensors", "jaxtyping", "orbax"}, loaded
"""


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """With a gate for the student, fitted on noise."""
    found = random_run.make_run(tmp_path_factory.mktemp("run"))
    random_run.write_gate(found)
    return dataclasses.replace(found, trained_on="noise")


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """The export that the tests read; they copy it before they change it."""
    random_run.write_report(run)
    write_operating_points(run.workdir, chain=run.chain)
    out = tmp_path_factory.mktemp("exports") / "model"
    report = export_model(run, out, models=["student", "teacher"], torch_names=True)
    assert {name: model["max_error"] <= 1e-6 for name, model in report["models"].items()} == {
        "student": True,
        "teacher": True,
    }
    assert set(report["files"]) == {path.name for path in out.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in out.glob("*.safetensors")} == {0o644}
    return out


@pytest.fixture
def copy(exported, tmp_path):
    return pathlib.Path(shutil.copytree(exported, tmp_path / "copy"))


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(3).normal(size=(8, random_run.SIZE, random_run.SIZE, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def models(exported):
    return {name: loader.load(exported, name) for name in ("student", "teacher")}


@pytest.fixture(scope="module")
def student(models):
    return models["student"]


@pytest.mark.slow
def test_temperatures_and_operating_points_are_those_of_the_run_and_stored_once(run, exported, models, images, copy):
    for name, model in models.items():
        above, shares = model.above(images[:3]), model(images[:3])
        assert model.temperatures == run.calibration.temperatures[name]
        for step in run.chain.steps:
            own = run.operating_points.of_step(name, step.name)
            limits = {answer: point.threshold.value for answer, point in own.items()}
            assert {answer: found["threshold"] for answer, found in model.operating_points[step.name].items()} == limits
            for called, row in zip(above[step.name], shares[step.name][1], strict=True):
                options = zip(step.options, row, strict=True)
                assert called == [option for option, share in options if share >= limits.get(option, np.inf)]
    card = (exported / "README.md").read_text()
    assert "Thresholds: sensitivity of 80 % or more on validation." in card
    assert "| Diagnosis | Mass | 8 | 32.1 (20.0 to 50.0) | 80.0 (75.0 to 85.0) | 70.0 (65.0 to 75.0) |" in card
    manifest = json.loads((copy / "export.json").read_text())
    assert not [model for model in manifest["models"].values() if {"temperatures", "operating_points"} & model.keys()]
    # Earlier versions wrote them to export.json.
    points = {"Diagnosis": {"Mass": {"threshold": 0.25, "sensitivity": None, "specificity": 0.5}}}
    manifest["models"]["student"] |= {"temperatures": [3.0, 2.0, 1.0], "operating_points": points}
    (copy / "export.json").write_text(json.dumps(manifest))
    (copy / "statistics.json").unlink()  # of a run without points
    write_sums(copy)
    earlier, other = loader.load(copy, "student"), loader.load(copy, "teacher")
    assert (earlier.temperatures, earlier.operating_points) == ((3.0, 2.0, 1.0), points)
    assert (other.operating_points, other.above(images[:1])) == ({}, {})


@pytest.mark.slow
def test_another_process_with_jax_and_numpy_alone_gives_the_same_logits(run, exported, images, tmp_path):
    np.save(tmp_path / "images.npy", images)
    arguments = [str(exported), str(tmp_path / "images.npy"), str(tmp_path / "found.npz")]
    environment = {name: os.environ[name] for name in ("PATH", "XLA_FLAGS")} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", READ_ALONE, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.load(tmp_path / "found.npz")
    for name in ("student", "teacher"):
        expected = random_run.expected_logits(run, name, images)
        assert expected.shape == (8, 3, 5)
        assert len(np.unique(expected[expected > -1e8])) > 60  # no two answers alike, or a mix-up could hide
        for count in COUNTS[name]:
            difference = np.abs(found[f"{name}/{count}"] - expected[:count])
            assert difference[expected[:count] > -1e8].max() <= 1e-6, (name, count)
            assert (found[f"{name}/{count}"][expected[:count] <= -1e8] == loader.ABSENT_LOGIT).all()


def test_answers_are_those_of_the_calibrated_probabilities(run, student):
    given = np.random.default_rng(5).integers(0, 256, (3, random_run.SIZE, random_run.SIZE), dtype=np.uint8)
    found = student(given)
    logits = student.logits(given)
    expected = calibrated_probabilities(logits, "student", run.calibration, run.chain)
    assert list(found) == [step.name for step in run.chain.steps]
    for place, step in enumerate(run.chain.steps):
        answers, probabilities = found[step.name]
        np.testing.assert_allclose(probabilities, expected[:, place, : step.num_answers], atol=1e-12)
        assert answers == [step.options[label] for label in expected[:, place].argmax(axis=-1)]


def test_the_gate_comes_along(run, models, student, images):
    expected = Reader(run, model="student", batch_size=4).gate_scores(images[:3])
    np.testing.assert_allclose(student.gate_scores(images[:3]), expected, rtol=1e-4)
    grey = np.full((3, random_run.SIZE, random_run.SIZE), 128, np.uint8)
    assert (student.gate_scores(grey) > expected.max()).all()
    assert student.trained_on == "noise"
    assert models["teacher"].gate_scores(images[:3]) is None


def test_pixels_are_normalised_as_in_training(run, student):
    pixels = np.random.default_rng(6).integers(0, 256, (2, random_run.SIZE, random_run.SIZE, 3), dtype=np.uint8)
    expected = normalise(pixels, run.preprocessing)
    assert (student.preprocessing.normalise(pixels) == expected).all()
    grey = pixels[..., 0]
    assert (
        student.preprocessing.normalise(grey) == normalise(np.repeat(grey[..., None], 3, -1), run.preprocessing)
    ).all()
    assert student.preprocessing.normalise(expected) is expected


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 32, 31, 3), np.float32),
        ((1, 32, 32, 3), np.float64),
        ((32, 32), np.uint8),
        ((0, 32, 32, 3), np.float32),
        ((1, 32, 32), np.float32),
    ],
)
def test_images_of_another_kind_are_refused(student, shape, dtype):
    with pytest.raises(ValueError, match=r"images must be uint8\[case, 32, 32\].*got "):
        student.logits(np.zeros(shape, dtype))


def test_the_program_is_for_every_platform_and_has_no_parameters_inside(exported, student):
    assert student.exported.platforms == PLATFORMS
    assert json.loads((exported / "export.json").read_text())["platforms"] == list(PLATFORMS)
    assert "stablehlo" in student.stablehlo()
    assert "case" in str(student.exported.in_avals[-1].shape[0])
    assert (exported / "student.stablehlo").stat().st_size < 300_000


def test_tensors_are_those_of_each_networks_own_best_step(run, exported):
    for name in ("student", "teacher"):
        tensors = safetensors.numpy.load_file(exported / f"{name}.safetensors")
        program = make_program(run, name)
        assert tensors.keys() == program.tensors.keys()
        assert all((tensors[key] == array).all() for key, array in program.tensors.items())
    assert (
        tensors["image_encoder/stem_norm/scale"] == run.params["teacher"]["image_encoder"]["stem_norm"]["scale"]
    ).all()
    assert (tensors["prompts"] == run.text_features).all()


def test_every_file_has_its_digest_and_a_changed_missing_or_cut_one_is_refused(exported, copy):
    lines = dict(reversed(line.split("  ")) for line in (exported / "SHA256SUMS").read_text().splitlines())
    assert set(lines) == {path.name for path in exported.iterdir()} - {"SHA256SUMS"}
    for name, digest in lines.items():
        whole = (exported / name).read_bytes()
        assert hashlib.sha256(whole).hexdigest() == digest
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for content in (bytes(flipped), whole[:-1], None):
            (copy / name).unlink() if content is None else (copy / name).write_bytes(content)
            with pytest.raises(exported_files.RefusedExport, match=name.replace(".", r"\.")):
                exported_files.Files(copy)
        (copy / name).write_bytes(whole)
    (copy / "labels.json").write_bytes(b"")
    with pytest.raises(exported_files.RefusedExport, match=r"labels\.json has changed"):
        loader.load(copy)


def test_sums_that_lead_elsewhere_or_name_too_little_are_refused(copy):
    sums = (copy / "SHA256SUMS").read_text()
    digest = hashlib.sha256(b"x").hexdigest()
    (copy.parent / "outside").write_bytes(b"x")
    for added in (f"{digest}  ../outside\n", f"{digest}  /etc/passwd\n", "nonsense\n", f"{digest}  a\\b\n"):
        (copy / "SHA256SUMS").write_text(sums + added)
        with pytest.raises(exported_files.RefusedExport, match="SHA256SUMS"):
            loader.load(copy)
    (copy / "SHA256SUMS").write_text("".join(line for line in sums.splitlines(True) if "labels.json" not in line))
    with pytest.raises(exported_files.RefusedExport, match=r"labels\.json"):
        loader.load(copy)
    (copy / "SHA256SUMS").unlink()
    with pytest.raises(exported_files.RefusedExport, match="cannot be read"):
        loader.load(copy)


def test_another_model_format_or_a_program_that_calls_out_is_refused(copy):
    with pytest.raises(exported_files.RefusedExport, match="no model 'reader'; it has student, teacher"):
        loader.load(copy, "reader")
    shapes = (jax.ShapeDtypeStruct((3, 3), jnp.float32),)
    calling = jax.export.export(jax.jit(jnp.linalg.cholesky), platforms=("cpu",))(*shapes)
    (copy / "student.stablehlo").write_bytes(calling.serialize())
    write_sums(copy)
    with pytest.raises(exported_files.RefusedExport, match="custom calls"):
        loader.load(copy)
    manifest = json.loads((copy / "export.json").read_text())
    (copy / "export.json").write_text(json.dumps({**manifest, "format": 2}))
    write_sums(copy)
    with pytest.raises(exported_files.RefusedExport, match="format 2 is not supported; expected 1"):
        loader.load(copy)


def test_load_py_checks_this_machine(exported, copy, capsys):
    assert loader.main([str(exported), "--tolerance=1e-5"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(result["model"], result["same_answers"]) for result in results] == [("student", True), ("teacher", True)]
    stored = safetensors.numpy.load_file(copy / "check.safetensors")
    assert sorted(stored) == ["gate/student", "images", "logits/student", "logits/teacher"]
    stored["logits/teacher"][0, 1, 2] += 0.1
    stored["gate/student"][1] = np.nan
    safetensors.numpy.save_file(stored, copy / "check.safetensors")
    assert loader.main([str(copy)]) == 2
    assert "check.safetensors has changed" in capsys.readouterr().err
    write_sums(copy)
    assert loader.main([str(copy)]) == 1
    student, teacher = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (student["ok"], teacher["ok"]) == (False, False)
    assert student["max_error"] < 1e-5 < 0.01 < teacher["max_error"]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"model": "teacher", "max_error": 1e-4}, r"exported teacher .* logits differ by 1\.0e-04, gate scores by 0"),
        ({"model": "student", "max_error": 0.0, "gate_error": np.nan}, r"exported student .* gate scores by nan"),
    ],
)
def test_an_export_with_other_numbers_is_stopped(result, words):
    require_equal([{**result, "ok": True}], tolerance=1e-6)
    with pytest.raises(RunStopped, match=words):
        require_equal([{**result, "ok": False}], tolerance=1e-6)


def test_the_authors_names_convert_back(run, exported):
    tensors = safetensors.numpy.load_file(exported / "torch_names.safetensors")
    networks = {}
    for name, array in tensors.items():
        network, _, rest = name.partition("/")
        networks.setdefault(network, {})[rest] = array
    params = from_torch_networks(networks)
    assert set(params) == {"teacher", "student", "teacher_projection", "student_projection"}
    for part, found in params.items():
        expected = run.params["teacher" if part.startswith("teacher") else "student"][part]
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), found, expected)))


def test_a_frozen_encoder_is_stored_once(images, tmp_path):
    run = random_run.make_run(tmp_path / "run", frozen=True, calibrated=False)
    out = tmp_path / "out"
    export_model(run, out, models=["teacher"])
    model = json.loads((out / "export.json").read_text())["models"]["teacher"]
    assert model["tensors"] == ["image_encoder.safetensors", "teacher.safetensors"]
    loaded = loader.load(out, "teacher")
    assert loaded.temperatures == (1.0,) * 3
    found = loaded.logits(images[:2])
    np.testing.assert_allclose(found, random_run.expected_logits(run, "teacher", images[:2]), atol=1e-6, rtol=1e-6)
    assert "CLIP of somewhere/clip, pretrained and frozen" in (out / "README.md").read_text()

    encoder = (out / "image_encoder.safetensors").stat().st_mtime_ns
    files = folder_module._write_tensors(out, make_program(run, "student"), shared=True)
    assert files == ["image_encoder.safetensors", "student.safetensors"]
    assert (out / "image_encoder.safetensors").stat().st_mtime_ns == encoder
    names = {name: set(safetensors.numpy.load_file(out / f"{name}.safetensors")) for name in ("teacher", "student")}
    assert all(name.startswith("student/") for name in names["student"])
    assert all(name == "prompts" or name.startswith("teacher/") for name in names["teacher"])


def test_what_does_not_run_in_jax_is_refused(run, tmp_path):
    frozen = random_run.make_run(tmp_path, frozen=True)

    class Foreign:
        name = "transformers:blip"

    for encoder, words in ((Foreign(), "blip, which runs in PyTorch"), (None, "imported features")):
        object.__setattr__(frozen, "frozen_encoder", encoder)
        with pytest.raises(BadInput, match=words):
            make_program(frozen, "student")
    object.__setattr__(frozen, "params", {"teacher": run.params["teacher"]})
    with pytest.raises(BadInput, match="no trained 'student'; it has teacher"):
        make_program(frozen, "student")


def test_nothing_is_left_of_an_export_that_fails(run, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def fail(folder, *_, **__):
        (folder / "student.stablehlo").write_text("half")
        raise RunStopped("off")

    monkeypatch.setattr(folder_module, "_write", fail)
    with pytest.raises(RunStopped):
        export_model(run, out, models=["student"])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused(run, exported, tmp_path):
    (tmp_path / "file").write_text("x")
    for out in (exported, tmp_path / "file"):
        with pytest.raises(BadInput, match="already exists; expected a new or an empty folder"):
            export_model(run, out, models=["student"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model=studnt"], "--model: 'studnt' is not one of student, teacher"),
        ([], "is not the workdir of a run"),
    ],
)
def test_a_wrong_command_is_one_line_and_code_2(flags, words, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        run_tool(lambda: tool.main([f"--checkpoint={tmp_path / 'none'}", f"--out={tmp_path / 'out'}", *flags]))
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out) == (2, "")
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("module", "needed"),
    [
        (loader, {"jax", "numpy"}),
        (exported_files, {"numpy"}),
        (exported_models, {"numpy"}),
        (exported_programs, {"jax", "numpy"}),
        (policy_loader, {"jax", "numpy"}),
        (onnx_loader, {"numpy"}),  # and onnxruntime, when a model is loaded
    ],
)
def test_the_loaders_need_nothing_of_the_package(module, needed):
    imports = {
        line.split()[1].partition(".")[0]
        for line in pathlib.Path(module.__file__).read_text().splitlines()
        if line.startswith(("import ", "from "))
    }
    assert imports - set(sys.stdlib_module_names) == needed


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("shape", [(37, 61), (300, 20)])
def test_the_lines_of_the_readme_resize_as_in_training(run, fit, shape, tmp_path):
    object_of_readme = {}
    changed = dataclasses.replace(run, preprocessing=Preprocessing(random_run.SIZE, fit=fit))
    manifest = {"models": {}, "made_with": {"jax": "0"}, "platforms": []}
    text = folder_module.write_instructions(changed, manifest, written=())
    code = text.split("```python\n")[2].split("```")[0]
    exec(code, object_of_readme)  # noqa: S102
    path = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)).save(path)
    expected = prepare_image(path.read_bytes(), name="image", preprocessing=changed.preprocessing)
    assert (object_of_readme["read"](path) == expected[None]).all()
