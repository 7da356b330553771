import dataclasses
import hashlib
import json
import pathlib
import shutil

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from PIL import Image
from policies.policy_workdir import make_policy_workdir
from refusals import refuse
from trained_workdir import write_operating_points

from stepcot_jax.data.images.preprocessing import Preprocessing, normalise, prepare_image
from stepcot_jax.evaluation.calibration import calibrated_probabilities
from stepcot_jax.export import folder as folder_module
from stepcot_jax.export import loader
from stepcot_jax.export.folder import export_model, require_equal
from stepcot_jax.export.program import PLATFORMS, make_program
from stepcot_jax.host import exported_files
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.exported_files import write_sums
from stepcot_jax.reading.image_reader import load
from stepcot_jax.reading.programs import Reader
from stepcot_jax.tools import export as tool
from stepcot_jax.tools.export import main
from tests.export import random_run

SIZE = random_run.SIZE
IMAGES = np.random.default_rng(3).normal(size=(3, SIZE, SIZE, 3)).astype(np.float32)
NAMES = ("student", "teacher")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    found = random_run.make_run(tmp_path_factory.mktemp("run"))
    random_run.write_gate(found)
    return dataclasses.replace(found, trained_on="noise")


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """The export that the tests read; they copy it before they change it."""
    random_run.write_report(run)
    write_operating_points(run.workdir, chain=run.chain)
    out = tmp_path_factory.mktemp("exports") / "model"
    report = export_model(run, out, models=NAMES)
    assert all(report["models"][name]["max_error"] <= 1e-6 for name in NAMES)
    assert set(report["files"]) == {path.name for path in out.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in out.glob("*.safetensors")} == {0o644}
    return out


@pytest.fixture
def copy(exported, tmp_path):
    return pathlib.Path(shutil.copytree(exported, tmp_path / "copy"))


@pytest.fixture(scope="module")
def models(exported):
    return {name: loader.load(exported, name) for name in NAMES}


@pytest.fixture(scope="module")
def student(models):
    return models["student"]


def test_answers_temperatures_and_operating_points_are_those_of_the_run(run, exported, models):
    pixels = np.random.default_rng(5).integers(0, 256, (2, SIZE, SIZE), dtype=np.uint8)
    for name, model in models.items():
        above, shares = model.above(pixels), model(pixels)
        expected = calibrated_probabilities(model.logits(pixels), name, run.calibration, run.chain)
        assert model.temperatures == run.calibration.temperatures[name]
        assert list(shares) == [step.name for step in run.chain.steps]
        for place, step in enumerate(run.chain.steps):
            answers, probabilities = shares[step.name]
            np.testing.assert_allclose(probabilities, expected[:, place, : step.num_answers], atol=1e-12)
            assert answers == [step.options[label] for label in expected[:, place].argmax(axis=-1)]
            own = run.operating_points.of_step(name, step.name)
            limits = {answer: point.threshold.value for answer, point in own.items()}
            assert {answer: found["threshold"] for answer, found in model.operating_points[step.name].items()} == limits
            for called, row in zip(above[step.name], probabilities, strict=True):
                options = zip(step.options, row, strict=True)
                assert called == [option for option, share in options if share >= limits.get(option, np.inf)]
    card = (exported / "README.md").read_text()
    assert "Thresholds: sensitivity of 80 % or more on validation." in card
    assert "| Diagnosis | Mass | 8 | 32.1 [20.0, 50.0] | 80.0 [75.0, 85.0] | 70.0 [65.0, 75.0] |" in card


@pytest.mark.slow
def test_another_process_without_this_package_gives_the_same_logits(run, exported):
    body = """print(json.dumps([load(folder, "student").logits(images).tolist(),
                  load(folder, "teacher").logits(images[:2]).tolist()]))"""
    for name, found in zip(NAMES, random_run.read_alone(exported, IMAGES, body), strict=True):
        expected = random_run.expected_logits(run, name, IMAGES)
        real = expected > -1e8
        assert len(np.unique(expected[real])) == real.sum()  # no two answers alike, or a mix-up could hide
        count = len(found)
        assert np.abs(np.array(found) - expected[:count])[real[:count]].max() <= 1e-6
        assert (np.array(found)[~real[:count]] == loader.ABSENT_LOGIT).all()


def test_the_gate_comes_along(run, models, student):
    expected = Reader(run, model="student", batch_size=4).gate_scores(IMAGES)
    np.testing.assert_allclose(student.gate_scores(IMAGES), expected, rtol=1e-4)
    grey = np.full((3, SIZE, SIZE), 128, np.uint8)
    assert (student.gate_scores(grey) > expected.max()).all()
    assert (student.trained_on, models["teacher"].gate_scores(IMAGES)) == ("noise", None)


def test_pixels_are_normalised_as_in_training_and_other_images_are_refused(run, student):
    pixels = np.random.default_rng(6).integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)
    expected, rules = normalise(pixels, run.preprocessing), student.preprocessing
    assert (rules.normalise(pixels) == expected).all()
    grey = pixels[..., 0]
    assert (rules.normalise(grey) == normalise(np.repeat(grey[..., None], 3, -1), run.preprocessing)).all()
    assert rules.normalise(expected) is expected
    floats = [np.zeros(shape, np.float32) for shape in ((1, 32, 31, 3), (0, 32, 32, 3), (1, 32, 32))]
    for images in (*floats, np.zeros((1, 32, 32, 3)), np.zeros((32, 32), np.uint8)):
        refuse(r"images must be uint8\[case, 32, 32\].*got ", student.logits, images, error=ValueError)


def test_programs_are_for_every_platform(exported, student):
    assert student.exported.platforms == PLATFORMS
    assert json.loads((exported / "export.json").read_text())["platforms"] == list(PLATFORMS)
    assert "stablehlo" in student.stablehlo()
    assert "case" in str(student.exported.in_avals[-1].shape[0])
    assert (exported / "student.stablehlo").stat().st_size < 300_000  # no parameters inside


def test_every_file_has_its_digest(exported):
    lines = dict(reversed(line.split("  ")) for line in (exported / "SHA256SUMS").read_text().splitlines())
    assert set(lines) == {path.name for path in exported.iterdir()} - {"SHA256SUMS"}
    for name, digest in lines.items():
        assert hashlib.sha256((exported / name).read_bytes()).hexdigest() == digest


def test_sums_that_lead_elsewhere_or_name_too_little_are_refused(copy):
    sums, digest = (copy / "SHA256SUMS").read_text(), hashlib.sha256(b"x").hexdigest()
    (copy.parent / "outside").write_bytes(b"x")
    lines = (f"{digest}  ../outside\n", f"{digest}  /etc/passwd\n", "nonsense\n", f"{digest}  a\\b\n")
    cases = [(sums + line, "is not a digest and a file's name") for line in lines]
    cases += [("".join(line for line in sums.splitlines(True) if "labels.json" not in line), r"labels\.json")]
    for content, words in (*cases, (None, "cannot be read")):
        (copy / "SHA256SUMS").unlink() if content is None else (copy / "SHA256SUMS").write_text(content)
        refuse(words, loader.load, copy, error=exported_files.RefusedExport)


def test_another_model_or_a_program_that_calls_out_is_refused(copy):
    with pytest.raises(exported_files.RefusedExport, match="no model 'reader'; it has student, teacher"):
        loader.load(copy, "reader")
    shapes = (jax.ShapeDtypeStruct((3, 3), jnp.float32),)
    calling = jax.export.export(jax.jit(jnp.linalg.cholesky), platforms=("cpu",))(*shapes)
    (copy / "student.stablehlo").write_bytes(calling.serialize())
    write_sums(copy)
    refuse("custom calls", loader.load, copy, error=exported_files.RefusedExport)


def test_load_py_checks_this_machine(copy, capsys):
    stored = safetensors.numpy.load_file(copy / "check.safetensors")
    assert sorted(stored) == ["gate/student", "images", "logits/student", "logits/teacher"]
    stored["logits/teacher"][0, 1, 2] += 0.1
    stored["gate/student"][1] = np.nan
    safetensors.numpy.save_file(stored, copy / "check.safetensors")
    assert loader.main([str(copy)]) == 2
    assert "check.safetensors has changed" in capsys.readouterr().err
    write_sums(copy)
    assert loader.main([str(copy), "--tolerance=1e-5"]) == 1
    student, teacher = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (student["model"], student["same_answers"], student["ok"]) == ("student", True, False)
    assert student["max_error"] < 1e-5 < 0.01 < teacher["max_error"]
    results = [{"model": "teacher", "max_error": 1e-4}, {"model": "student", "max_error": 0.0, "gate_error": np.nan}]
    words = [r"exported teacher .* differ by 1\.0e-04, gate scores by 0", "exported student .* gate scores by nan"]
    for result, expected in zip(results, words, strict=True):
        require_equal([{**result, "ok": True}])
        refuse(expected, require_equal, [{**result, "ok": False}], error=RunStopped)


def test_what_does_not_run_in_jax_is_refused(run, tmp_path):
    frozen = random_run.make_run(tmp_path, frozen=True)

    class Foreign:
        name = "transformers:blip"

    for encoder, words in ((Foreign(), "blip, which runs in PyTorch"), (None, "imported features")):
        refuse(words, make_program, dataclasses.replace(frozen, frozen_encoder=encoder), "student")
    with pytest.raises(BadInput, match="no trained 'student'; it has teacher"):
        make_program(dataclasses.replace(run, params={"teacher": run.params["teacher"]}), "student")


def test_a_folder_in_use_is_refused_and_nothing_is_left_of_an_export_that_fails(run, exported, tmp_path, monkeypatch):
    def fail(folder, *_, **__):
        (folder / "student.stablehlo").write_text("half")
        raise RunStopped("off")

    monkeypatch.setattr(folder_module, "_write", fail)
    with pytest.raises(RunStopped):
        export_model(run, tmp_path / "out", models=["student"])
    monkeypatch.setattr(folder_module, "_write", lambda *_, **__: None)
    monkeypatch.setattr(loader, "check", lambda *_, **__: [{"model": "student", "max_error": 1.0, "ok": False}])
    refuse("computes other numbers", export_model, run, tmp_path / "out", models=["student"], error=RunStopped)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    for out in (exported, tmp_path / "file"):
        with pytest.raises(BadInput, match="exists and is not an empty folder; expected a new or empty folder"):
            export_model(run, out, models=["student"])


def test_a_folder_that_is_no_workdir_is_refused(tmp_path):
    refuse("is not the workdir of a run", tool.main, [f"--checkpoint={tmp_path}", f"--out={tmp_path / 'out'}"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_the_lines_of_the_readme_resize_as_in_training(run, fit, tmp_path):
    changed = dataclasses.replace(run, preprocessing=Preprocessing(SIZE, fit=fit))
    text = folder_module.write_card(changed, {"student": 1}, {"models": {}, "platforms": []}, tmp_path)
    lines = {}
    exec(text.split("```python\n")[2].split("```")[0], lines)  # noqa: S102
    for shape in ((37, 61), (300, 20)):
        path = tmp_path / "image.png"
        Image.fromarray(np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)).save(path)
        expected = prepare_image(path.read_bytes(), name="image", preprocessing=changed.preprocessing)
        assert (lines["read"](path) == expected[None]).all()


def test_the_command_says_what_reads_a_policy(tmp_path):
    workdir = tmp_path / "run"
    make_policy_workdir(workdir)
    flags = [f"--checkpoint={workdir}", f"--out={tmp_path / 'out'}"]
    refuse(r"a policy of this package is not exported; sc\.load\('.*run'\) reads its run", main, flags)
    refuse("of a policy, to which --model does not apply", main, [*flags, "--model=teacher"])
    (workdir / "export.json").write_text("{}")
    refuse("an export; a policy is read from the workdir of its run", load, workdir)
