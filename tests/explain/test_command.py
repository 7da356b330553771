import json

import numpy as np
import pytest
from PIL import Image
from trained_workdir import make_trained_workdir

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.tools.explain import scoring
from stepcot_jax.tools.explain.command import main

pytestmark = pytest.mark.usefixtures("small_encoder")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain") / "run"
    make_trained_workdir(folder)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for index, name in enumerate(("one", "two")):
        (folder / name).mkdir()
        Image.fromarray(draw_case(index, seed=5, size=48).image).save(folder / name / "x$y$.png")
    return folder


@pytest.mark.slow
def test_pictures_and_numbers_are_written(workdir, images, tmp_path, capsys):
    bad, out = tmp_path / "bad.png", tmp_path / "out"
    bad.write_bytes(b"nothing")
    flags = [f"--checkpoint={workdir}", f"--out={out}", "--model=teacher", "--given=1=B"]
    assert main([str(bad), str(images), *flags]) == 1
    printed = capsys.readouterr()
    assert "bad.png" in printed.err
    names = ("x$y$", "x$y$.2")
    assert printed.out.splitlines() == [str(out / f"{name}.maps.png") for name in names]
    kinds = ("maps.png", "json", "attention.png")
    assert {path.name for path in out.iterdir()} == {f"{name}.{kind}" for name in names for kind in kinds}
    facts = json.loads((out / "x$y$.json").read_text())
    assert facts["steps"][0]["answer"] == DEFAULT_CHAIN.steps[0].options[1]
    assert len(facts["focus"]["spread"]) == len(facts["claims"]) == 7
    assert facts["maps_filled_with"].startswith("a blurred copy")
    assert set(facts["claims"]["Diagnosis"]) == {"probability", "brightest", "random", "other"}
    assert np.array(facts["maps"]).sum(axis=(1, 2)) == pytest.approx(np.ones(7), abs=1e-3)
    assert sum(facts["attention"]["Diagnosis"].values()) == pytest.approx(1, abs=1e-4)
    picture = np.asarray(Image.open(out / "x$y$.maps.png").convert("L"))
    assert picture.shape[1] > 1200
    assert picture.std() > 20


def test_scores_stand_less_those_of_no_explanation(workdir, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(scoring, "_NUM_FITTED", 20)
    monkeypatch.setattr(scoring, "_NUM_SHUFFLES", 2)
    out = tmp_path / "scores.json"
    assert main(["score", f"--checkpoint={workdir}", "--num-cases=3", f"--json={out}"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("3 radiographs with boxes (phantom;")
    assert told[4].startswith("| pointing less best constant map |")
    assert told[5].startswith("| share in boxes less best constant map |")
    scores = json.loads(out.read_text())
    assert scores["num_cases"] == 3
    assert {len(of_steps) for of_steps in scores["figures"].values()} == {7}
    own, less = (
        scores["figures"][name][6]["value"] for name in ("share in boxes", "share in boxes less random weights")
    )
    assert 0 < own < 1
    assert less != own
