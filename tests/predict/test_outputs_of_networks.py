"""Commands that use a trained network write to a store what they write to a folder."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from host.memory_store import (
    check_killed,
    check_same_on_store,
    files_of,
    new_address,
    objects,
    put_files,
    put_workdir,
)
from PIL import Image
from policies.policy_workdir import make_policy_workdir
from trained_workdir import make_trained_workdir

from stepcot_jax.contrib import dicom_sr as structured_report
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.reading.loading import load
from stepcot_jax.tools.answer import main as answer
from stepcot_jax.tools.data.command import main as data
from stepcot_jax.tools.explain.command import main as explain
from stepcot_jax.tools.export import main as export
from stepcot_jax.tools.predict import main as predict
from stepcot_jax.tools.report.command import main as report

pytestmark = pytest.mark.usefixtures("small_encoder")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    make_trained_workdir(folder / "run")
    (folder / "images").mkdir()
    Image.fromarray(np.arange(1600, dtype=np.uint8).reshape(40, 40)).save(folder / "images" / "chest.png")
    return folder


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["sheet.csv", "lines.jsonl", "text.txt"])
def test_a_sheet_of_readings(name, run, tmp_path, monkeypatch):
    asked = [str(run / "images"), f"--checkpoint={run / 'run'}", "--model=student"]
    place = check_same_on_store(lambda out: predict([*asked, f"--out={out}"]), tmp_path / name, monkeypatch)
    before = objects(place.rpartition("/")[0])
    with pytest.raises(BadInput, match="'Z' is not one of"):
        predict([*asked, f"--out={place}", "--given=1=Z"])
    assert objects(place.rpartition("/")[0]) == before


def test_structured_reports_are_named_by_their_address(run, tmp_path, monkeypatch, capsys):
    class Reports:
        """In the place of `ReportFolder`, which needs highdicom: keeps the files that are there."""

        def __init__(self, folder, network, *, max_pixels):
            self.folder = folder

        def attach(self, readings, *, refuse):
            for reading in readings:
                path = self.folder / "1.2.dcm"
                if not path.exists():
                    write_whole(path, b"first")
                yield dataclasses.replace(reading, report=str(path))

    monkeypatch.setattr(structured_report, "ReportFolder", Reports)
    place = f"{new_address(monkeypatch)}/reports"
    for _ in range(2):
        assert predict([str(run / "images"), f"--checkpoint={run / 'run'}", f"--dicom-out={place}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["report"] == f"{place}/1.2.dcm"
        assert objects(place) == {"1.2.dcm": b"first"}


def test_maps_are_written_and_named_by_their_address(run, tmp_path, monkeypatch, capsys):
    asked = [str(run / "images"), f"--checkpoint={run / 'run'}", "--model=teacher"]
    place = check_same_on_store(lambda out: explain([*asked, f"--out={out}"]), tmp_path / "maps", monkeypatch)
    assert f"{place}/chest.maps.png" in capsys.readouterr().out.splitlines()


def test_an_export_is_read_from_where_it_was_written(run, tmp_path, monkeypatch, capsys):
    def write(out):
        assert export([f"--checkpoint={run / 'run'}", f"--out={out}", "--model=student"]) == 0

    def compare(files):
        # The programs name the lines that called them.
        return {name: content for name, content in files.items() if name not in ("student.stablehlo", "SHA256SUMS")}

    write(str(tmp_path / "export"))
    place = f"{new_address(monkeypatch)}/export"
    check_killed(write, place, monkeypatch)
    assert objects(place) == {}
    capsys.readouterr()
    write(place)
    printed = capsys.readouterr().out
    assert printed.startswith(f"{place}: ")
    assert f"next: stepcot data fetch {place} DIR" in printed
    there = objects(place)
    here = files_of(tmp_path / "export")
    assert there.keys() == here.keys()
    assert compare(there) == compare(here)
    chest = run / "images" / "chest.png"
    assert load(place).read(chest).as_dict()["steps"] == load(tmp_path / "export").read(chest).as_dict()["steps"]
    with pytest.raises(BadInput, match=rf"^--out: {place} is not empty; a new or empty folder"):
        write(place)
    assert objects(place) == there


def test_scores_of_maps_and_their_cases(run, tmp_path, monkeypatch, capsys):
    data(["phantom", str(tmp_path / "boxed"), "--num-cases=3", "--size=40"])
    names = [pathlib.Path(each["image_path"]).name for each in json.loads((tmp_path / "boxed/data.json").read_text())]
    rows = ["Image Index,Finding Label,Bbox [x,y,w,h]", *(f"{name},Mass,8,8,20,20" for name in names)]
    (tmp_path / "boxed" / "boxes.csv").write_text("\n".join(rows) + "\n")
    there = put_files(tmp_path / "boxed", monkeypatch)
    asked = ["score", f"--checkpoint={run / 'run'}", "--model=teacher", "--num-cases=3"]
    boxed = tmp_path / "boxed"
    explain([*asked, f"--data={boxed}", f"--boxes={boxed / 'boxes.csv'}", f"--json={tmp_path / 'scores.json'}"])
    address = new_address(monkeypatch)
    explain([*asked, f"--data={there}", f"--boxes={there}/boxes.csv", f"--json={address}/scores.json"])
    here = json.loads((tmp_path / "scores.json").read_text())
    assert json.loads(objects(address)["scores.json"]) == here | {"data": there}
    assert f"({there}), teacher" in capsys.readouterr().out


def test_a_policy_answers_about_a_picture_and_its_page_is_written(run, tmp_path, monkeypatch, capsys):
    _, records, _ = make_policy_workdir(tmp_path / "run")
    question = next(record for record in records if record.kind == "closed").question
    image = f"{put_files(run / 'images', monkeypatch)}/chest.png"

    def ask(out):
        picture = image if "://" in out else str(run / "images" / "chest.png")
        answer([picture, question, f"--checkpoint={tmp_path / 'run'}", f"--out={out}"])

    check_same_on_store(ask, tmp_path / "boxes.png", monkeypatch)
    page = check_same_on_store(
        lambda out: report([str(tmp_path / "run"), f"--out={out}"]), tmp_path / "page.html", monkeypatch
    )
    assert f"{page}: " in capsys.readouterr().out
    address = put_workdir(tmp_path / "run", monkeypatch)
    report([address])  # beside the other files of the run, as on this machine
    assert objects(address)["report.html"] == (tmp_path / "page.html").read_bytes()
