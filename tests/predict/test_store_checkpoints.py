import json

import numpy as np
import pytest
from memory_store import put_files, put_workdir
from PIL import Image
from refusals import refuse
from trained_workdir import make_trained_workdir

from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.image_reader import load
from stepcot_jax.tools.explain.command import main as explain
from stepcot_jax.tools.export import main as export
from stepcot_jax.tools.predict import main as predict

pytestmark = pytest.mark.usefixtures("small_encoder")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_trained_workdir(tmp_path / "run")
    return tmp_path / "run", put_workdir(tmp_path / "run", monkeypatch)


def test_a_run_on_a_store_reads_as_the_folder_does(run, tmp_path, capsys):
    folder, address = run
    Image.fromarray(np.arange(1600, dtype=np.uint8).reshape(40, 40)).save(tmp_path / "chest.png")
    for checkpoint in (str(folder), address):
        assert predict([str(tmp_path / "chest.png"), f"--checkpoint={checkpoint}", "--json"]) == 0
    local, remote = map(json.loads, capsys.readouterr().out.splitlines())
    assert local["steps"] == remote["steps"]
    assert export([f"--checkpoint={address}", f"--out={tmp_path / 'out'}", "--model=student"]) == 0
    assert (tmp_path / "out" / "SHA256SUMS").exists()
    with pytest.raises(BadInput, match=r"--checkpoint: https://x.org/run: unknown scheme"):
        export(["--checkpoint=https://x.org/run", f"--out={tmp_path / 'out'}"])
    refuse("az://b/run: unknown scheme", load, "az://b/run")


def test_radiographs_on_a_store_read_as_those_here(run, tmp_path, monkeypatch, capsys):
    folder, _ = run
    (tmp_path / "images").mkdir()
    for number in range(2):
        picture = np.arange(1600, dtype=np.uint8).reshape(40, 40) // (number + 1)
        Image.fromarray(picture).save(tmp_path / "images" / f"{number}.png")
    address = put_files(tmp_path / "images", monkeypatch)
    found = []
    for images in ([f"{tmp_path}/images"], [address], [f"{address}/0.png", f"{address}/1.png"]):
        assert predict([*images, f"--checkpoint={folder}", "--json"]) == 0
        found.append([json.loads(line)["steps"] for line in capsys.readouterr().out.splitlines()])
    assert found[0] == found[1] == found[2]
    refuse(rf"^IMAGE: {address}/2\.png: holds no files", predict, [f"{address}/2.png", f"--checkpoint={folder}"])
    with pytest.raises(BadInput, match=r"^IMAGE: https://x\.org/a\.png: unknown scheme"):
        explain(["https://x.org/a.png", f"--checkpoint={folder}", f"--out={tmp_path / 'none'}"])
