"""Hostile records and folders for `hostile_files`: data.json, pipes and devices among files of a source, archives."""

import json
import tarfile
from pathlib import Path
from typing import Any

from benchmarks.hostile_inputs import (
    MAKERS,
    MEGABYTE,
    NUM_CASES,
    Command,
    Make,
    hostile,
    make_pipe,
    published_folder,
    repeat,
    split_folder,
)


def _field(piece: str, megabytes: float, **place: Any) -> Make:
    """`place`: a record's field, or step and a step's field, that gets the long text."""
    mark = "\ue000"

    def make(root: Path, factor: float) -> Command:
        command = published_folder(root)
        path = root / "data.json"
        records = json.loads(path.read_text())
        record = records[2]
        owner = record["vqa_chain"][3] if place.get("step") else record
        owner[place["field"]] = [mark, "B", "C"] if place["field"] == "options" else mark
        start, _, end = json.dumps(records, ensure_ascii=False).partition(mark)
        with path.open("wb") as file:
            file.write(start.encode())
            repeat(file, piece.encode(), megabytes * MEGABYTE * factor)
            file.write(end.encode())
        return command

    return make


for _name in ("image_path", "patient_id", "origin", "report"):
    MAKERS[f"data.json: {_name} of 60 MB"] = _field("a", 60, field=_name)
for _name in ("step", "question", "options", "answer", "reasoning"):
    MAKERS[f"data.json: {_name} of 60 MB"] = _field("a", 60, field=_name, step=True)
MAKERS["data.json: image_path of 60 MB of parts"] = _field("a/", 60, field="image_path")
MAKERS["data.json: image_path of 60 MB of parts with dots"] = _field("./", 60, field="image_path")
MAKERS["data.json: 60 MB of options"] = _field('a","', 60, field="options", step=True)
MAKERS["data.json: unknown text of 60 MB"] = _field("a", 60, field="other")


@hostile("data.json: 200 MB of white space")
def _white(root: Path, factor: float) -> Command:
    command = published_folder(root)
    with (root / "data.json").open("wb") as file:
        repeat(file, b" ", 200 * MEGABYTE * factor)
    return command


@hostile("records.jsonl: an unknown field of 4 MB")
def _unknown_field(root: Path, factor: float) -> Command:
    with (root / "records.jsonl").open("wb") as file:
        file.write(b'{"')
        repeat(file, b"a", min(3.0, 150 * factor) * MEGABYTE)
        file.write(b'": 1}')
    return ["data", "check", str(root / "records.jsonl"), "--images=none"]


def _pipe(name: str, *, check: str = "") -> Make:
    def make(root: Path, factor: float) -> Command:
        del factor
        make_pipe(name, root)
        return ["data", "check", str(root / check), "--images=none"]

    return make


MAKERS["pipe: IU X-Ray report"] = _pipe("ecgen-radiology/1.xml")
MAKERS["pipe: loose IU X-Ray report"] = _pipe("1.xml")
MAKERS["pipe: IU X-Ray archive"] = _pipe("NLMCXR_reports.tgz", check="NLMCXR_reports.tgz")
MAKERS["pipe: IU X-Ray archive in its folder"] = _pipe("NLMCXR_reports.tgz")
MAKERS["pipe: data.json"] = _pipe("data.json")
MAKERS["pipe: cases.csv"] = _pipe("cases.csv")
MAKERS["pipe: records.jsonl"] = _pipe("records.jsonl", check="records.jsonl")
MAKERS["pipe: ChestX-ray8"] = _pipe("BBox_List_2017.csv")
MAKERS["pipe: Data_Entry"] = _pipe("Data_Entry_2017.csv")


@hostile("pipe: IU X-Ray projections")
def _projections(root: Path, factor: float) -> Command:
    from stepcot_jax.data.sources.iu_xray import LIST_NAME

    del factor
    make_pipe(LIST_NAME, root)
    (root / "1.xml").write_text("<eCitation/>")
    return ["data", "check", str(root), "--images=none"]


@hostile("pipe: train.csv of splits")
def _pipe_split(root: Path, factor: float) -> Command:
    del factor
    command, table = split_folder(root)
    make_pipe("train.csv", root)
    del table
    return command


@hostile("pipe: train.csv of VinBigData")
def _pipe_vindr(root: Path, factor: float) -> Command:
    del factor
    make_pipe("train.csv", root)
    return ["data", "vqa", str(root / "out"), f"--source={root}"]


@hostile("pipe: questions")
def _pipe_vqa(root: Path, factor: float) -> Command:
    del factor
    make_pipe("a.jsonl", root)
    make_pipe("b.json", root)
    return ["data", "vqa", str(root / "out"), f"--source={root}"]


@hostile("pipe: an image")
def _pipe_image(root: Path, factor: float) -> Command:
    del factor
    command = published_folder(root)
    for number in range(NUM_CASES):
        make_pipe(f"images/{number}.png", root)
    return command[:-1]


def _device(name: str) -> Make:
    def make(root: Path, factor: float) -> Command:
        del factor
        (root / name).symlink_to("/dev/zero")
        return ["data", "check", str(root / name) if name.endswith(".tgz") else str(root), "--images=none"]

    return make


for _name in ("data.json", "cases.csv", "NLMCXR_reports.tgz", "1.xml"):
    MAKERS[f"/dev/zero: {_name}"] = _device(_name)


@hostile("IU X-Ray: gzip bomb")
def _gzip_bomb(root: Path, factor: float) -> Command:
    import gzip

    entry = tarfile.TarInfo("1.xml")
    entry.size = round(4000 * MEGABYTE * factor)
    path = root / "NLMCXR_reports.tgz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(entry.tobuf())
        repeat(file, b"\0", entry.size)
    return ["data", "check", str(path), "--images=none"]


@hostile("IU X-Ray: a header of 1 GB")
def _long_header(root: Path, factor: float) -> Command:
    entry = tarfile.TarInfo("name")
    entry.size, entry.type = round(1000 * MEGABYTE * factor), tarfile.GNUTYPE_LONGNAME
    path = root / "NLMCXR_reports.tar"
    with path.open("wb") as file:
        file.write(entry.tobuf())
        file.truncate(entry.size + 10_240)
    return ["data", "check", str(path), "--images=none"]
