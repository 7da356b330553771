"""Reports to annotate: every layout, and what is said about odd input."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.annotate.annotation import Aside, Reason, Report
from stepcot_jax.annotate.reports import read_reports
from stepcot_jax.host.errors import BadInput


def write(tmp_path, content, name="reports.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path):
    with pytest.raises(BadInput) as caught:
        list(read_reports(path))
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert "Example" not in message
    return message


def test_every_layout_is_read(tmp_path):
    content = (
        b"\xef\xbb\xbfID, report,Image,note,patient_id\r\n"
        b'r1,"FINDINGS: Clear,\r\n""quite"".\r\nIMPRESSION: Normal.",images\\a.png,x,p1\r\n'
        b"\r\n"
        b"r2,,,,p2\r\n"
        b"r3,Clear.,b1.png,,p3\r\n"
        b"r3,Clear.,b2.png,,p3\r\n"
        b"r3,Other.,b3.png,,p3\r\n"
    )
    assert list(read_reports(write(tmp_path, content))) == [
        Report("r1", "p1", 'FINDINGS: Clear,\r\n"quite".\r\nIMPRESSION: Normal.', ("images/a.png",), ""),
        *(Report("r2", "p2", "", (), ""), Report("r3", "p3", "Clear.", ("b1.png", "b2.png"), "")),
        Aside("r3", Reason.REPEATED, "the id 'r3' came before"),
    ]
    lines = [
        {"id": 7, "report": "Größe", "image": "a.png", "extra": {}},
        {"id": "b", "report": None, "image": None, "origin": "here"},
        {"id": "c", "report": "", "image": ["c.png", "d.png"], "patient_id": 9},
        {"id": "d", "report": "", "image": "./c.png"},
    ]
    path = write(tmp_path, "\ufeff" + "\n\n".join(map(json.dumps, lines)), "r.jsonl")
    assert list(read_reports(path)) == [
        *(Report("7", "7", "Größe", ("a.png",), ""), Report("b", "b", "", (), "here")),
        *(Report("c", "9", "", ("c.png", "d.png"), ""), Aside("d", Reason.REPEATED, "the image 'c.png' came before")),
    ]
    record = {"patient_id": 3, "image_path": "images/a.png", "origin": None, "report": "Clear.", "vqa_chain": []}
    write(tmp_path, json.dumps([record, {**record, "image_path": "b.png"}]), "data.json")
    expected = [Report(name, "3", "Clear.", (name,), "") for name in ("images/a.png", "b.png")]
    assert list(read_reports(tmp_path)) == list(read_reports(tmp_path / "data.json")) == expected


def csv_of(*rows):
    return b"\n".join([b"id,report,image", *rows, b""])


def published(**change):
    record = {"patient_id": 3, "image_path": "a.png", "origin": None, "report": "Example", "vqa_chain": []}
    return json.dumps([record, {**record, "image_path": "b.png", **change}])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("r.csv", b"", "is empty"),
        ("r.csv", b"id,report\nr1,Example\n", "header ['id', 'report'] lacks image"),
        ("r.csv", csv_of(b"r1,Example"), "row 2 has 2 cells; expected 3"),
        ("r.csv", csv_of(b" ,Example,a.png"), "row 2, field 'id': ''"),
        ("r.csv", b'id,report,image,patient_id\nr1,Example,a.png,"p\n1"\n', "row 2, field 'patient_id'"),
        *(
            ("r.csv", csv_of(b"r1,Example," + image), "row 2, field 'image'")
            for image in (b"../a.png", b"/etc/passwd", b"C:\\a.png")
        ),
        ("r.csv", csv_of(b"r1,Exam\0ple,a.png"), "row 2, field 'report'"),
        ("r.csv", csv_of(b"r1," + b"x" * 4_200_000 + b",a.png"), "row 2, field 'report'"),
        ("r.jsonl", b"", "is empty"),
        ("r.jsonl", "Example".encode("utf-16"), "UTF-16"),
        ("r.jsonl", b"Example", "line 1: "),
        ("r.jsonl", b'{"id": "a", "report": "Example"}', "line 1: Object missing required field `image`"),
        ("r.jsonl", b'{"id": null, "report": "Example", "image": "a"}',
         "line 1: Expected `int | str`, got `null` - at `$.id`"),
        ("r.jsonl", b'{"id": "a", "report": "Example", "image": ["../a"]}', "field 'image'"),
        ("r.jsonl", b'{"id": "a", "report": "Example \xff", "image": "a"}', "line 1: "),
        ("r.jsonl", b"[" * 100_000, "line 1: "),
        ("r.jsonl", b" " * (1 << 22), "line 1: exceeds"),
        ("data.json", published(image_path="../a.png"), "record 1"),
        ("data.json", published(patient_id=" "), "record 1: `$[1].patient_id` is blank"),
        ("data.json", published(report=3), "Expected `str | null`"),
    ],
)  # fmt: skip
def test_odd_input_is_named_by_its_place_and_field(tmp_path, name, content, words):
    assert words in refusal(write(tmp_path, content, name))


def test_what_is_none_of_the_layouts_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    write(tmp_path, b"", "reports.xlsx")
    for name in ("missing", "empty", "reports.xlsx"):
        assert "expected the IU X-Ray archive" in refusal(tmp_path / name)


@given(st.binary(max_size=60), st.sampled_from(["r.csv", "r.jsonl", "data.json"]))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content, name):
    path = write(tmp_path_factory.mktemp("any"), content, name)
    message = str(path)
    try:
        assert all(isinstance(item, Report | Aside) for item in read_reports(path))
    except BadInput as error:
        message = str(error)
    assert str(path) in message
