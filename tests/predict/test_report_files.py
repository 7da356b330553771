"""Files of structured reports: one a content, kept; what has none is named."""

import csv
import importlib
import sys

import pytest
from PIL import Image
from trained_workdir import make_trained_workdir, write_gate, write_operating_points

pydicom = pytest.importorskip("pydicom")
highdicom = pytest.importorskip("highdicom")

from data.images.test_dicom_bounds import nest
from highdicom.sr import srread
from predict.dicom_reports import NETWORK, PIXELS, dicom, groups_of, make_reading
from pydicom.dataset import Dataset
from pydicom.uid import ExplicitVRLittleEndian

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.extras.dicom_sr import ReportFolder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.tools import predict


def test_one_file_a_report_that_is_kept(tmp_path):
    for name in ("a.dcm", "copy.dcm"):
        (tmp_path / name).write_bytes(dicom())
    (tmp_path / "x.png").write_bytes(b"\x89PNG")
    folder, refused = tmp_path / "deep" / "reports", []
    sources = [str(tmp_path / name) for name in ("a.dcm", "copy.dcm", "x.png", "gone.dcm")]

    def write():
        reports = ReportFolder(folder, NETWORK, max_pixels=10_000)
        return list(reports.attach(map(make_reading, sources), refuse=refused.append))

    found = write()
    assert [reading.source for reading in found] == sources
    assert found[0].report == found[1].report == str(next(folder.iterdir()))
    assert [reading.report.partition(":")[0] for reading in found[2:]] == ["none", "none"]
    assert [line.partition(": ")[0] for line in refused] == ["no structured report"] * 2
    assert "x.png: is not a DICOM file" in refused[0]
    assert "gone.dcm: cannot be read" in refused[1]
    (path,) = folder.iterdir()
    content, changed = path.read_bytes(), path.stat().st_mtime_ns
    write()
    assert list(folder.iterdir()) == [path]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (content, changed)


def test_a_header_without_end_costs_its_own_report_alone(tmp_path):
    """400 sequences in each other: 13 KB, of which pydicom would make 20 GB."""
    empty = dicom(OtherPatientIDsSequence=[Dataset()])
    one = nest(1, undefined=False, syntax=ExplicitVRLittleEndian)
    for name in ("a.dcm", "c.dcm"):
        (tmp_path / name).write_bytes(dicom(SOPInstanceUID=f"1.2.3.{ord(name[0])}"))
    (tmp_path / "b.dcm").write_bytes(empty.replace(one, nest(400, undefined=False, syntax=ExplicitVRLittleEndian)))
    reports, refused = ReportFolder(tmp_path / "reports", NETWORK, max_pixels=10_000), []
    readings = [make_reading(str(tmp_path / f"{name}.dcm")) for name in "abc"]
    found = list(reports.attach(readings, refuse=refused.append))
    assert [reading.report.startswith("none") for reading in found] == [False, True, False]
    assert found[1].report.endswith("its sequences are more than 16 deep; expected a header as scanners write it")
    assert len(refused) == 1


def test_a_folder_or_package_that_is_missing_is_told_first(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file: not a writable folder"):
        ReportFolder(tmp_path / "file", NETWORK, max_pixels=10)
    for name in ("highdicom", "highdicom.sr"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "stepcot_jax.extras.dicom_sr")
    with pytest.raises(BadInput, match=r'--dicom-out needs highdicom: .*pip install -e "\.\[sr\]"'):
        importlib.import_module("stepcot_jax.extras.dicom_sr")


@pytest.mark.usefixtures("small_encoder")
def test_the_tool_writes_a_report_for_each_dicom_image_and_names_the_rest(tmp_path, capsys):
    run, images, out, sheet = (tmp_path / name for name in ("run", "images", "reports", "answers.csv"))
    make_trained_workdir(run, calibrated=True)
    write_gate(run)
    write_operating_points(run)
    images.mkdir()
    changes = {"a": {}, "b": {}, "c": {"NumberOfFrames": 2}, "d": {"StudyInstanceUID": None}}
    for name, elements in changes.items():
        (images / f"{name}.dcm").write_bytes(dicom(**elements))
    Image.fromarray(PIXELS).save(images / "e.png")
    flags = [str(images), f"--checkpoint={run}", f"--dicom-out={out}"]
    assert predict.main([*flags, f"--out={sheet}"]) == 1
    told = capsys.readouterr()
    with sheet.open(newline="", encoding="utf-8") as file:
        rows = {row["image"].rpartition("/")[2].partition(".")[0]: row for row in csv.DictReader(file)}
    (path,) = out.iterdir()
    assert [rows[name]["structured report"] for name in "abc"] == [str(path), str(path), ""]
    assert "NumberOfFrames: 2 instead of 1" in rows["c"]["problem"]
    assert "StudyInstanceUID: missing" in rows["d"]["structured report"]
    assert "is not a DICOM file" in rows["e"]["structured report"]
    assert rows["d"]["Diagnosis"] == rows["e"]["Diagnosis"] == rows["a"]["Diagnosis"] != ""
    assert told.err.count("no structured report") == 2
    assert "MARKER" not in told.out + told.err + sheet.read_text()
    answers = [group.get_qualitative_evaluations()[1].value.meaning for group in groups_of(srread(path))]
    assert answers == [rows["a"][step.name] for step in DEFAULT_CHAIN.steps]
    assert predict.main([str(images / "a.dcm"), *flags[1:]]) == 0
    assert f"structured report: {path}" in capsys.readouterr().out
    assert list(out.iterdir()) == [path]
