import csv
import json

import numpy as np
import pytest
from PIL import Image
from trained_workdir import SIDE, make_trained_workdir

from stepcot_jax.data.images.preprocessing import repeat_grey
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.evaluation.gate import fit_gate
from stepcot_jax.extras.demo.readings import read_session, start_session
from stepcot_jax.host.own_folder import save_arrays
from stepcot_jax.reading.explain import Explainer
from stepcot_jax.reading.image_reader import load
from stepcot_jax.reading.radiographs import to_input
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.systems.networks import read_moments
from stepcot_jax.tools import predict
from stepcot_jax.tools.explain import command as explain
from tests.data.images.test_dicom import make, write

pytestmark = pytest.mark.usefixtures("small_encoder")
TRAINED_ON = "trained on: phantoms (drawn images), 60 cases"


def phantom(index):
    return draw_case(index, seed=5, size=SIDE).image


def moments(network, images):
    params = {"image_encoder": network.params["student"]["image_encoder"]}
    batch = {"images": to_input(images, network.preprocessing)}
    return np.asarray(read_moments(params, batch, networks=network.networks))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate") / "run"
    make_trained_workdir(folder)
    pictures = [repeat_grey(phantom(index)) for index in range(160)]
    features = moments(load_trained(folder, names=("student",)), pictures)
    save_arrays(folder / "gate.npz", {"student": fit_gate(features[:120], features[120:], false_alarms=0.05)})
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    Image.fromarray(phantom(500)).save(folder / "a.png")
    (folder / "b.dcm").write_bytes(write(make(phantom(500), ViewPosition="LL")))
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(folder / "c.png")
    return folder


def test_a_reading_warns_of_noise_and_of_a_lateral_view(run, images):
    reader = load(run, batch_size=2)
    readings = usual, lateral, noise = reader.read(images)
    assert [reading.check.outside for reading in readings] == [False, False, True]
    assert [reading.check.gate_score > 1 for reading in readings] == [False, False, True]
    assert usual.warnings == ()
    assert TRAINED_ON in str(usual)
    assert "gate score 0." in str(usual)
    assert usual.paragraph.startswith("The radiograph ")
    assert lateral.check.projection == "lateral"
    assert lateral.warnings == ("the DICOM header names a lateral view; the network expects a frontal one",)
    score = f"gate score {noise.check.gate_score:.2f} (above 1: unlike the training images)"
    assert noise.warnings == (f"outside of what it was trained on: {score}",)
    for reading in (lateral, noise):  # once in print, right below the answers
        assert str(reading).split("\n")[1 + len(reading.steps)] == f"  warning: {reading.warnings[0]}"
        assert str(reading).count(reading.warnings[0]) == reading._repr_html_().count(reading.warnings[0]) == 1
        assert str(reading).count("score") <= 1
    assert noise.paragraph.startswith(f"Warning: {noise.warnings[0]}. The radiograph ")
    told = json.loads(json.dumps(noise.as_dict()))
    assert (told["outside"], told["gate_score"]) == (True, noise.check.gate_score)
    assert told["trained_on"] == "phantoms (drawn images), 60 cases"
    # Computed with the answers, in float32; the gate itself has float64.
    exact = reader.trained.gate("student").scores(moments(reader.trained, [reading.picture for reading in readings]))
    assert [reading.check.gate_score for reading in readings] == pytest.approx(exact.tolist(), rel=1e-5)
    alone = reader._reader.gate_scores(to_input([noise.picture], reader.trained.preprocessing))
    assert alone == pytest.approx(noise.check.gate_score, rel=1e-5)


def test_a_dicom_headers_notes_and_lateral_view_are_told_with_the_reading_everywhere(run, tmp_path, capsys):
    odd = "its pixels are not square: PixelSpacing 0.4 by 0.2 (rows, columns)"
    missed = "a window or VOI LUT of its DICOM header misses the pixels: the next one, or their range, is used"
    path, lateral = tmp_path / "odd.dcm", "the DICOM header names a lateral view"
    header = {"PixelSpacing": [0.4, 0.2], "WindowCenter": 9000, "WindowWidth": 2, "ViewPosition": "LL"}
    path.write_bytes(write(make(phantom(500), **header)))
    assert predict.main([str(path), f"--checkpoint={run}"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line.startswith("note: ")] == [f"note: {odd}", f"note: {missed}"]
    reader = load(run)
    reading = reader.read(path)
    assert reading.check.notes == (odd, missed)
    assert reading.as_dict()["notes"] == [odd, missed]
    assert reader.correct(reading, {"Detection": "B"}).check.notes == (odd, missed)
    assert predict.main([str(path), f"--checkpoint={run}", f"--out={tmp_path / 'rows.csv'}"]) == 0
    row = next(csv.DictReader((tmp_path / "rows.csv").open()))
    assert row["warnings"].startswith(lateral)
    assert row["warnings"].endswith(f"{odd}; {missed}")
    assert float(row["gate score"]) == pytest.approx(reading.check.gate_score, abs=1e-4)
    assert explain.main([str(path), f"--checkpoint={run}", f"--out={tmp_path / 'out'}"]) == 0
    told = capsys.readouterr().err
    assert f"odd.dcm: note: {missed}" in told
    assert f"warning: {lateral}" in told
    explainer = Explainer(load_trained(run, names=("student",)), model="student")
    view, _, _ = read_session(start_session(path, explainer), explainer)
    for words in (f"Note: {missed}.", '<p class="warning" role="alert">', "names a lateral view", TRAINED_ON):
        assert words in view
