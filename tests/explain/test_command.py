import json

import numpy as np
import pytest
from PIL import Image
from trained_workdir import make_trained_workdir

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.host.errors import BadInput
from stepcot_jax.tools.explain.command import main
from stepcot_jax.tools.explain.drawing import _free_name
from stepcot_jax.tools.explain.scoring import EVEN, RANDOM, TRAINED

pytestmark = pytest.mark.usefixtures("small_encoder")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain") / "run"
    make_trained_workdir(folder)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    (folder / "one").mkdir()
    Image.fromarray(draw_case(3, seed=5, size=48).image).save(folder / "one" / "x$y$.png")
    return folder


def test_pictures_and_numbers_are_written(workdir, images, tmp_path, capsys):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"nothing")
    flags = [f"--checkpoint={workdir}", f"--out={tmp_path / 'out'}", "--model=teacher", "--given=1=B"]
    assert main([str(bad), str(images / "one"), *flags]) == 1
    printed = capsys.readouterr()
    assert "bad.png" in printed.err
    assert printed.out.splitlines() == [str(tmp_path / "out" / "x$y$.maps.png")]
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {f"x$y$.{kind}" for kind in ("maps.png", "json", "attention.png")}
    facts = json.loads((tmp_path / "out" / "x$y$.json").read_text())
    assert facts["steps"][0]["answer"] == DEFAULT_CHAIN.steps[0].options[1]
    assert len(facts["focus"]["spread"]) == 7
    assert np.array(facts["maps"]).sum(axis=(1, 2)) == pytest.approx(np.ones(7), abs=1e-3)
    assert sum(facts["attention"]["Diagnosis"].values()) == pytest.approx(1, abs=1e-4)
    picture = np.asarray(Image.open(tmp_path / "out" / "x$y$.maps.png").convert("L"))
    assert picture.shape[1] > 1200
    assert picture.std() > 20


def test_files_of_one_name_do_not_replace_each_other():
    taken = set()
    assert [_free_name(name, taken) for name in ("x", "y", "x", "x")] == ["x", "y", "x.2", "x.3"]


def test_a_wrong_given_answer_ends_before_an_image_is_read(workdir, images, tmp_path):
    with pytest.raises(BadInput, match="'Z' is not one of"):
        main([str(images), f"--checkpoint={workdir}", f"--out={tmp_path}", "--given=1=Z"])


def test_scores_stand_beside_those_of_no_explanation(workdir, tmp_path, capsys):
    out = tmp_path / "scores.json"
    assert main(["score", f"--checkpoint={workdir}", "--num-cases=3", f"--json={out}"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in (TRAINED, RANDOM, EVEN, "Diagnosis", "3 radiographs"))
    found = json.loads(out.read_text())
    assert found["num_cases"] == 3
    for entry in found["steps"]:
        assert entry[EVEN]["spread"] == 1
        assert entry[TRAINED]["energy"] != entry[RANDOM]["energy"]


def test_wrong_flags_are_bad_input(workdir):
    with pytest.raises(BadInput, match="--num-cases must be at least 1; got 0"):
        main(["score", f"--checkpoint={workdir}", "--num-cases=0"])
    with pytest.raises(BadInput, match="--data is required with --boxes"):
        main(["score", f"--checkpoint={workdir}", "--boxes=x"])
