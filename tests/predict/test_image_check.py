"""Readings say what the network was trained on, and warn of images unlike it and of lateral views."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from trained_workdir import SIDE, make_trained_workdir

from stepcot_jax.contrib.demo.sessions import read_session, start_session
from stepcot_jax.data.images.preprocessing import repeat_grey
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.evaluation.gate import fit_gate, read_gate, write_gates
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.explain import Explainer
from stepcot_jax.reading.loading import load
from stepcot_jax.reading.radiographs import to_input
from stepcot_jax.reading.readings import ImageCheck
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.systems.networks import read_moments
from stepcot_jax.tools import predict
from stepcot_jax.tools.explain import command as explain
from tests.data.images.test_dicom import make, write

pytestmark = pytest.mark.usefixtures("small_encoder")

TRAINED_ON = "trained on: phantoms (drawn images), 60 cases"


def phantom(index):
    return draw_case(index, seed=5, size=SIDE).image


@pytest.fixture(scope="module")
def old_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old") / "run"
    make_trained_workdir(folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose student has a gate, fitted on phantoms."""
    folder = tmp_path_factory.mktemp("gate") / "run"
    make_trained_workdir(folder)
    trained = load_trained(folder, names=("student",))
    images = to_input([repeat_grey(phantom(index)) for index in range(160)], trained.preprocessing)
    params = {"image_encoder": trained.params["student"]["image_encoder"]}
    features = np.asarray(read_moments(params, {"images": images}, networks=trained.networks))
    write_gates(folder / "gate.npz", {"student": fit_gate(features[:120], features[120:], false_alarms=0.05)})
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A phantom, the same as a lateral DICOM file, and a picture of noise."""
    folder = tmp_path_factory.mktemp("images")
    Image.fromarray(phantom(500)).save(folder / "a.png")
    (folder / "b.dcm").write_bytes(write(make(phantom(500), ViewPosition="LL")))
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(folder / "c.png")
    return folder


def test_a_reading_warns_of_noise_and_of_a_lateral_view(run, images):
    reader = load(run, batch_size=2)
    usual, lateral, noise = reader.read(images)
    assert usual.check.gate_score < 1
    assert usual.check.outside is False
    assert usual.warnings == ()
    assert TRAINED_ON in str(usual)
    assert "score of this image 0." in str(usual)
    assert lateral.check.projection == "lateral"
    assert lateral.check.outside is False
    assert lateral.warnings == ("the DICOM header names a lateral view; the network expects a frontal one",)
    assert f"warning: {lateral.warnings[0]}" in str(lateral)
    assert noise.check.gate_score > 1
    assert noise.warnings == (
        f"outside of what it was trained on: score {noise.check.gate_score:.2f} (1 is the limit)",
    )
    assert f"warning: {noise.warnings[0]}" in str(noise)
    assert noise.paragraph.startswith(f"Warning: {noise.warnings[0]}. The radiograph ")
    assert usual.paragraph.startswith("The radiograph ")
    assert "outside of what it was trained on" in noise._repr_html_()
    told = json.loads(json.dumps(noise.as_dict()))
    assert (told["outside"], told["gate_score"]) == (True, noise.check.gate_score)
    assert told["trained_on"] == "phantoms (drawn images), 60 cases"
    assert [row["gate score"] > 1 for row in reader.read(images).as_rows()] == [False, False, True]
    alone = reader._reader.gate_scores(to_input([noise.picture], reader.trained.preprocessing))
    assert alone == pytest.approx(noise.check.gate_score, rel=1e-5)
    # Computed with the answers, in float32; the gate itself has float64.
    read = [each.picture for each in (usual, lateral, noise)]
    batch = {"images": to_input(read, reader.trained.preprocessing)}
    moments = read_moments(reader._reader.params, batch, networks=reader.trained.networks)
    exact = reader.trained.gate("student").scores(np.asarray(moments))
    assert [each.check.gate_score for each in (usual, lateral, noise)] == pytest.approx(exact.tolist(), rel=1e-5)


def test_the_sheet_has_warnings_and_scores(run, images, tmp_path):
    out = tmp_path / "answers.csv"
    assert predict.main([str(images), f"--checkpoint={run}", f"--out={out}"]) == 0
    rows = list(csv.DictReader(out.open()))
    assert [row["warnings"].partition(":")[0].partition(";")[0] for row in rows] == [
        "",
        "the DICOM header names a lateral view",
        "outside of what it was trained on",
    ]
    assert [float(row["gate score"]) > 1 for row in rows] == [False, False, True]


def test_explain_warns(run, images, tmp_path, capsys):
    assert explain.main([str(images), f"--checkpoint={run}", f"--out={tmp_path / 'out'}"]) == 0
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 3
    first, second = told.err.splitlines()
    assert "warning: the DICOM header names a lateral view" in first
    assert "warning: outside of what it was trained on" in second


def test_the_demo_warns(run, images, tmp_path):
    explainer = Explainer(load_trained(run, names=("student",)), model="student")
    for name, words in (("b.dcm", "names a lateral view"), ("c.png", "outside of what it was trained on: score")):
        upload = tmp_path / name
        upload.write_bytes((images / name).read_bytes())
        view, _ = read_session(start_session(upload, explainer), explainer)
        assert '<p class="warning" role="alert">' in view
        assert words in view
        assert TRAINED_ON in view


def test_a_run_without_a_gate_says_so(old_run, images, capsys):
    assert predict.main([str(images / "c.png"), f"--checkpoint={old_run}"]) == 0
    printed = capsys.readouterr().out
    assert f"{TRAINED_ON}; no gate stored" in printed
    assert "warning" not in printed
    reading = load(old_run).read(images / "c.png")
    assert (reading.check.outside, reading.as_dict()["gate_score"]) == (None, None)


def test_a_gate_of_another_encoder_is_refused(run, tmp_path):
    folder = tmp_path / "run"
    make_trained_workdir(folder)
    features = np.random.default_rng(0).random((30, 5))
    other = fit_gate(features, features, false_alarms=0.1)
    write_gates(folder / "gate.npz", {"student": other})
    with pytest.raises(BadInput, match=r"gate.npz, 'student': a gate of 5 features; the encoder has 16"):
        load(folder).read(phantom(0))
    assert read_gate(run / "gate.npz", "teacher") is None


@pytest.mark.parametrize(
    ("projection", "words"),
    [("oblique", "names an oblique view"), ("decubitus", "names a decubitus view"), ("frontal", ""), ("", "")],
)
def test_projections_in_words(projection, words):
    warnings = ImageCheck("phantoms", 0.5, projection).warnings
    assert [words in line for line in warnings] == [True] * bool(words)
