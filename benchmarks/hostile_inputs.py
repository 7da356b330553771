"""Hostile files for the commands that read untrusted input; `hostile_files` runs the commands on them."""

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.records import write_records

Command = list[str]
Make = Callable[[Path, float], Command]

_MEGABYTE = 10**6
_NUM_CASES = 6
_HEAD = b"patient_id,image_path\n"
_SHEET = "xl/worksheets/sheet1.xml"

MAKERS: dict[str, Make] = {}
"""By name: writes a hostile file below a folder, with sizes times a factor, and returns the command that reads it."""


def _hostile(name: str) -> Callable[[Make], Make]:
    def keep(make: Make) -> Make:
        MAKERS[name] = make
        return make

    return keep


def _repeat(file: BinaryIO, piece: bytes, num_bytes: float) -> None:
    """Write a piece again and again, `num_bytes` in all."""
    block = piece * max(1, 2**20 // len(piece))
    for _ in range(max(1, round(num_bytes / len(block)))):
        file.write(block)


def published_folder(root: Path) -> Command:
    """Write a good folder of the published layout without images or split tables."""
    unanswered = (DEFAULT_CHAIN.num_steps * (0,), DEFAULT_CHAIN.num_steps * ("",))
    cases = [Case(f"p{number}", f"images/{number}.png", "", "", *unanswered) for number in range(_NUM_CASES)]
    write_records(root, chain=DEFAULT_CHAIN, cases=cases)
    return ["data", "check", str(root), "--images=none"]


def _splits(root: Path) -> tuple[Command, Path]:
    """Write a good folder with tables for val and test; the hostile one is train."""
    command = published_folder(root)
    (root / "val.csv").write_text("patient_id\np1\n")
    (root / "test.csv").write_text("patient_id\np2\n")
    return command, root / "train"


def _csv_splits(piece: bytes, megabytes: float) -> Make:
    def make(root: Path, factor: float) -> Command:
        command, table = _splits(root)
        with table.with_suffix(".csv").open("wb") as file:
            file.write(_HEAD)
            _repeat(file, piece, megabytes * _MEGABYTE * factor)
        return command

    return make


MAKERS["split .csv: one row of 200 MB of blank cells"] = _csv_splits(b",", 200)
MAKERS["split .csv: 200 MB of blank rows of two cells"] = _csv_splits(b",\n", 200)
MAKERS["split .csv: 10^7 blank rows"] = _csv_splits(b"\n", 10)
MAKERS["split .csv: one cell of 200 MB"] = _csv_splits(b"a", 200)

_ROOT_RELS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" Type='
    '"http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="xl/workbook.xml"/>'
    "</Relationships>"
)
_RELS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="rId1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet" '
    'Target="worksheets/sheet1.xml"/><Relationship Id="rId2" Type="http://schemas.openxmlformats.org/officeDocument/'
    '2006/relationships/sharedStrings" Target="sharedStrings.xml"/><Relationship Id="rId3" Type="http://schemas.'
    'openxmlformats.org/officeDocument/2006/relationships/styles" Target="styles.xml"/></Relationships>'
)
_MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
_BOOK = (
    f'<workbook {_MAIN} xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"><sheets>'
    '<sheet name="a" sheetId="1" r:id="rId1"/></sheets></workbook>'
)
_KIND = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default Extension="xml" '
    'ContentType="application/xml"/><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.'
    f'relationships+xml"/><Override PartName="/xl/workbook.xml" ContentType="{_KIND}.sheet.main+xml"/>'
    f'<Override PartName="/{_SHEET}" ContentType="{_KIND}.worksheet+xml"/><Override PartName="/xl/sharedStrings.xml" '
    f'ContentType="{_KIND}.sharedStrings+xml"/><Override PartName="/xl/styles.xml" ContentType="{_KIND}.styles+xml"/>'
    "</Types>"
)
_STRINGS = f"<sst {_MAIN}>", "<si><t>patient_id</t></si>", "</sst>"
_ROWS = f"<worksheet {_MAIN}><sheetData>", '<row r="1"><c r="A1" t="s"><v>0</v></c></row>', "</sheetData></worksheet>"
_STYLES = f"<styleSheet {_MAIN}><cellXfs>", '<xf numFmtId="0"/>', "</cellXfs></styleSheet>"


def write_book(path: Path, *, large: str = "", piece: str = "", num_bytes: float = 0.0) -> None:
    """Write an .xlsx whose part `large` ("rows", "strings" or "styles") has a piece again and again."""
    parts = {
        "rows": (_SHEET, _ROWS),
        "strings": ("xl/sharedStrings.xml", _STRINGS),
        "styles": ("xl/styles.xml", _STYLES),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        small = {"[Content_Types].xml": _TYPES, "_rels/.rels": _ROOT_RELS, "xl/workbook.xml": _BOOK}
        for name, content in {**small, "xl/_rels/workbook.xml.rels": _RELS}.items():
            archive.writestr(name, content)
        for name, (member, (start, own, end)) in parts.items():
            with archive.open(member, "w", force_zip64=True) as file:
                file.write(f"{start}{own}".encode())
                if name == large:
                    _repeat(file, piece.encode(), num_bytes)
                file.write(end.encode())


def _xlsx_splits(large: str, piece: str, megabytes: float) -> Make:
    def make(root: Path, factor: float) -> Command:
        command, table = _splits(root)
        write_book(table.with_suffix(".xlsx"), large=large, piece=piece, num_bytes=megabytes * _MEGABYTE * factor)
        return command

    return make


_CELL = '<c t="inlineStr"><is><t>p0</t></is></c>'
MAKERS["split .xlsx: a row numbered 10^9"] = _xlsx_splits("rows", f'<row r="1000000000">{_CELL}</row>', 0)
MAKERS["split .xlsx: a row numbered 10^300"] = _xlsx_splits("rows", f'<row r="1{"0" * 300}">{_CELL}</row>', 0)
MAKERS["split .xlsx: rows with a cell in column ZZZ"] = _xlsx_splits("rows", '<row><c r="ZZZ2"><v>1</v></c></row>', 200)
MAKERS["split .xlsx: one row of 400 MB of cells"] = _xlsx_splits("rows", f"<!---->{_CELL}", 400)
MAKERS["split .xlsx: 400 MB of cells in rows"] = _xlsx_splits("rows", f"<row>{_CELL * 100}</row>", 400)
MAKERS["split .xlsx: 400 MB of empty rows"] = _xlsx_splits("rows", "<row/>", 400)
MAKERS["split .xlsx: 400 MB of shared strings"] = _xlsx_splits("strings", "<si><t>p0</t></si>", 400)
MAKERS["split .xlsx: a shared string of 400 MB"] = _xlsx_splits("strings", "<si><t>" + "p" * 10**6 + "</t></si>", 400)
MAKERS["split .xlsx: 400 MB of styles"] = _xlsx_splits("styles", '<xf numFmtId="14"/>', 400)
MAKERS["split .xlsx: elements nested without end"] = _xlsx_splits("rows", "<row>", 100)
MAKERS["split .xlsx: 400 MB of white space"] = _xlsx_splits("rows", " ", 400)


@_hostile("split .xlsx: a million files in the archive")
def _many_members(root: Path, factor: float) -> Command:
    command, table = _splits(root)
    _write_members(table.with_suffix(".xlsx"), num_members=round(10**6 * factor))
    return command


def _write_members(path: Path, *, num_members: int) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(min(num_members, 2000)):
            archive.writestr(f"{number}.npy", b"")
    # The directory repeated: quicker than writing a million entries, and as long.
    content = path.read_bytes()
    end = content.rindex(b"PK\5\6")
    size, start = (int.from_bytes(content[end + place : end + place + 4], "little") for place in (12, 16))
    times = max(1, num_members // 2000)
    tail = bytearray(content[end:])
    tail[12:16] = (size * times).to_bytes(4, "little")
    path.write_bytes(content[:start] + content[start:end] * times + bytes(tail))


@_hostile("split .xlsx: entities that grow")
def _entities(root: Path, factor: float) -> Command:
    command, table = _splits(root)
    write_book(table.with_suffix(".xlsx"))
    names = "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(9))
    bomb = f'<!DOCTYPE x [<!ENTITY a0 "p">{names}]><worksheet {_MAIN}><sheetData><row><c t="str"><v>&a9;</v></c></row>'
    path = table.with_suffix(".xlsx")
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts[_SHEET] = f"{bomb}</sheetData></worksheet>".encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    del factor
    return command


def _table(content: bytes, piece: bytes, megabytes: float, end: bytes) -> Make:
    def make(root: Path, factor: float) -> Command:
        with (root / "cases.csv").open("wb") as file:
            file.write(content)
            _repeat(file, piece, megabytes * _MEGABYTE * factor)
            file.write(end)
        return ["data", "check", str(root), "--images=none"]

    return make


MAKERS["source .csv: an image of 49 MB"] = _table(b"image,label\n", b"a", 49, b",Normal\n")
MAKERS["source .csv: a label of 49 MB"] = _table(b"image,label\na.png,", b"a", 49, b"\n")
MAKERS["source .csv: a column of 49 MB"] = _table(b"image,label,", b"a", 49, b"\na.png,Normal,\n")
MAKERS["source .csv: a quote that is not closed"] = _table(b'image,label\na.png,"', b"a", 49, b"")
MAKERS["source .csv: a header of 100 MB of blank cells"] = _table(b"image,label", b",", 100, b"\n")
MAKERS["source .csv: a row of 100 MB of blank cells"] = _table(b"image,label\na.png,Normal", b",", 100, b"\n")
MAKERS["source .csv: 200 MB of blank lines"] = _table(b"image,label\n", b"\n", 200, b"a.png,Normal\n")
MAKERS["source .csv: lines of NUL bytes"] = _table(b"image,label\n", b"\0", 100, b"\n")


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
            _repeat(file, piece.encode(), megabytes * _MEGABYTE * factor)
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


@_hostile("data.json: 200 MB of white space")
def _white(root: Path, factor: float) -> Command:
    command = published_folder(root)
    with (root / "data.json").open("wb") as file:
        _repeat(file, b" ", 200 * _MEGABYTE * factor)
    return command


@_hostile("records.jsonl: an unknown field of 4 MB")
def _unknown_field(root: Path, factor: float) -> Command:
    with (root / "records.jsonl").open("wb") as file:
        file.write(b'{"')
        _repeat(file, b"a", min(3.0, 150 * factor) * _MEGABYTE)
        file.write(b'": 1}')
    return ["data", "check", str(root / "records.jsonl"), "--images=none"]


def _fifo(name: str, root: Path) -> Path:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(root / name)
    return root / name


def _pipe(name: str, *, check: str = "") -> Make:
    def make(root: Path, factor: float) -> Command:
        del factor
        _fifo(name, root)
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


@_hostile("pipe: IU X-Ray projections")
def _projections(root: Path, factor: float) -> Command:
    from stepcot_jax.data.sources.iu_projections import LIST_NAME

    del factor
    _fifo(LIST_NAME, root)
    (root / "1.xml").write_text("<eCitation/>")
    return ["data", "check", str(root), "--images=none"]


@_hostile("pipe: train.csv of splits")
def _pipe_split(root: Path, factor: float) -> Command:
    del factor
    command, table = _splits(root)
    _fifo("train.csv", root)
    del table
    return command


@_hostile("pipe: train.csv of VinBigData")
def _pipe_vindr(root: Path, factor: float) -> Command:
    del factor
    _fifo("train.csv", root)
    return ["data", "vqa", str(root / "out"), f"--source={root}"]


@_hostile("pipe: questions")
def _pipe_vqa(root: Path, factor: float) -> Command:
    del factor
    _fifo("a.jsonl", root)
    _fifo("b.json", root)
    return ["data", "vqa", str(root / "out"), f"--source={root}"]


@_hostile("pipe: an image")
def _pipe_image(root: Path, factor: float) -> Command:
    del factor
    command = published_folder(root)
    for number in range(_NUM_CASES):
        _fifo(f"images/{number}.png", root)
    return command[:-1]


def _device(name: str) -> Make:
    def make(root: Path, factor: float) -> Command:
        del factor
        (root / name).symlink_to("/dev/zero")
        return ["data", "check", str(root / name) if name.endswith(".tgz") else str(root), "--images=none"]

    return make


for _name in ("data.json", "cases.csv", "NLMCXR_reports.tgz", "1.xml"):
    MAKERS[f"/dev/zero: {_name}"] = _device(_name)


def _import(root: Path, file: Path, *ids: Path) -> Command:
    published_folder(root)
    names = [f"--ids={path}" for path in ids]
    return ["features", str(file), *names, f"--root={root}", f"--store={root / 'store'}"]


def _features(root: Path, num_rows: int = _NUM_CASES) -> Path:
    path = root / "features.npy"
    np.save(path, np.zeros((num_rows, 4), np.float32))
    return path


@_hostile("features: pipe as .npy")
def _npy_pipe(root: Path, factor: float) -> Command:
    del factor
    (root / "ids.txt").write_text("a\n")
    return _import(root, _fifo("a.npy", root), root / "ids.txt")


@_hostile("features: pipe as .npz")
def _npz_pipe(root: Path, factor: float) -> Command:
    del factor
    return _import(root, _fifo("a.npz", root))


@_hostile("features: pipe as ids")
def _ids_pipe(root: Path, factor: float) -> Command:
    del factor
    return _import(root, _features(root), _fifo("ids.txt", root))


def _zero(name: str) -> Make:
    def make(root: Path, factor: float) -> Command:
        del factor
        (root / name).symlink_to("/dev/zero")
        return _import(root, root / name) if name.endswith(".npz") else _import(root, _features(root), root / name)

    return make


for _name in ("a.npz", "ids.txt", "ids.csv", "ids.json"):
    MAKERS[f"features: /dev/zero as {_name}"] = _zero(_name)


@_hostile("features: /dev/zero as .npy")
def _npy_zero(root: Path, factor: float) -> Command:
    del factor
    (root / "ids.txt").write_text("a\n")
    (root / "a.npy").symlink_to("/dev/zero")
    return _import(root, root / "a.npy", root / "ids.txt")


def _ids(name: str, start: bytes, piece: bytes, megabytes: float, end: bytes) -> Make:
    def make(root: Path, factor: float) -> Command:
        with (root / name).open("wb") as file:
            file.write(start)
            _repeat(file, piece, megabytes * _MEGABYTE * factor)
            file.write(end)
        return _import(root, _features(root), root / name)

    return make


MAKERS["features: 250 MB of empty ids"] = _ids("ids.txt", b"", b"\n", 250, b"")
MAKERS["features: an id of 250 MB"] = _ids("ids.txt", b"", b"a", 250, b"")
MAKERS["features: 250 MB of ids as JSON"] = _ids("ids.json", b"[1", b",1", 250, b"]")
MAKERS["features: nested ids as JSON"] = _ids("ids.json", b"[", b"[", 100, b"]")
MAKERS["features: 250 MB of ids as CSV"] = _ids("ids.csv", b"id\n", b"1\n", 250, b"")
MAKERS["features: a row of ids of 250 MB"] = _ids("ids.csv", b"id\n1", b",", 250, b"")


def _npz(write: Callable[[zipfile.ZipFile, float], None]) -> Make:
    def make(root: Path, factor: float) -> Command:
        path = root / "a.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            write(archive, factor)
        return _import(root, path)

    return make


def _write_array(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: str, fill: bytes) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        file.write(header.getvalue())
        for start in range(0, num_bytes, 2**20):
            file.write((fill * (2**20 // len(fill)))[: min(2**20, num_bytes - start)])


def _bomb_of_ids(dtype: str, fill: bytes) -> Callable[[zipfile.ZipFile, float], None]:
    def write(archive: zipfile.ZipFile, factor: float) -> None:
        num_ids = round(250 * _MEGABYTE * factor) // np.dtype(dtype).itemsize
        _write_array(archive, "features", (_NUM_CASES, 4), "<f4", b"\0")
        _write_array(archive, "ids", (num_ids,), dtype, fill)

    return write


MAKERS["features: zip bomb of short ids"] = _npz(_bomb_of_ids("|S1", b"a"))
MAKERS["features: zip bomb of numbers as ids"] = _npz(_bomb_of_ids("|u1", b"\1"))
MAKERS["features: zip bomb of one id"] = _npz(_bomb_of_ids("<U1000000", b"a\0\0\0"))


@_hostile("features: zip bomb of features")
def _bomb_of_features(root: Path, factor: float) -> Command:
    def write(archive: zipfile.ZipFile, factor: float) -> None:
        num_rows = round(3000 * _MEGABYTE * factor) // 4
        _write_array(archive, "features", (num_rows, 1), "<f4", b"\0")
        _write_array(archive, "ids", (num_rows,), "|S1", b"a")

    return _npz(write)(root, factor)


@_hostile("features: a million arrays")
def _many_arrays(root: Path, factor: float) -> Command:
    _write_members(root / "a.npz", num_members=round(10**6 * factor))
    return _import(root, root / "a.npz")


def _tensors(names: Callable[[float], Iterator[str]], *, to: str = "torch") -> Make:
    def make(root: Path, factor: float) -> Command:
        tensors = {name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in names(factor)}
        header = json.dumps(tensors).encode()
        (root / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        return ["convert", str(root / "a.safetensors"), str(root / "b.safetensors"), f"--to={to}"]

    return make


MAKERS["convert: a name inside of another"] = _tensors(lambda _: iter(["teacher/a", "teacher/a/b"]))
MAKERS["convert: a name inside of another, reversed"] = _tensors(lambda _: iter(["teacher/a/b", "teacher/a"]))
MAKERS["convert: a network without a name"] = _tensors(lambda _: iter(["teacher", "teacher/a"]))
MAKERS["convert: a network alone"] = _tensors(lambda _: iter(["teacher"]))
MAKERS["convert: a name of 20,000 parts"] = _tensors(lambda _: iter(["teacher" + "/a" * 20_000]))
MAKERS["convert: a name of 20 MB"] = _tensors(lambda factor: iter(["teacher/" + "a" * round(2e7 * factor)]))
MAKERS["convert: 500,000 names"] = _tensors(lambda factor: (f"teacher/{n}" for n in range(round(5e5 * factor))))
MAKERS["convert: 500,000 heads"] = _tensors(
    lambda factor: (f"teacher/heads/head_{n}/kernel" for n in range(round(5e5 * factor)))
)
MAKERS["convert: 500,000 foreign names"] = _tensors(lambda factor: (f"other/{n}" for n in range(round(5e5 * factor))))
MAKERS["convert: --to jax, 500,000 steps"] = _tensors(
    lambda factor: (f"teacher/step_models.{n}.a" for n in range(round(5e5 * factor))), to="jax"
)
MAKERS["convert: --to jax, a name of 20 MB"] = _tensors(
    lambda factor: iter(["teacher/" + "a" * round(2e7 * factor)]), to="jax"
)


@_hostile("convert: a pipe")
def _convert_pipe(root: Path, factor: float) -> Command:
    del factor
    return ["convert", str(_fifo("a.safetensors", root)), str(root / "b.safetensors"), "--to=torch"]


@_hostile("convert: /dev/zero")
def _convert_zero(root: Path, factor: float) -> Command:
    del factor
    (root / "a.safetensors").symlink_to("/dev/zero")
    return ["convert", str(root / "a.safetensors"), str(root / "b.safetensors"), "--to=torch"]


@_hostile("IU X-Ray: gzip bomb")
def _gzip_bomb(root: Path, factor: float) -> Command:
    import gzip

    entry = tarfile.TarInfo("1.xml")
    entry.size = round(4000 * _MEGABYTE * factor)
    path = root / "NLMCXR_reports.tgz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(entry.tobuf())
        _repeat(file, b"\0", entry.size)
    return ["data", "check", str(path), "--images=none"]


@_hostile("IU X-Ray: a header of 1 GB")
def _long_header(root: Path, factor: float) -> Command:
    entry = tarfile.TarInfo("name")
    entry.size, entry.type = round(1000 * _MEGABYTE * factor), tarfile.GNUTYPE_LONGNAME
    path = root / "NLMCXR_reports.tar"
    with path.open("wb") as file:
        file.write(entry.tobuf())
        file.truncate(entry.size + 10_240)
    return ["data", "check", str(path), "--images=none"]


_READERS: dict[str, Callable[[Path], Command]] = {
    "annotate": lambda path: ["annotate", str(path), f"--out={path.parent / 'out'}", "--annotator=rules"],
    "evaluate_replies": lambda path: ["evaluate_replies", str(path), str(path), f"--out={path.parent / 'out'}"],
    "conformance": lambda path: ["conformance", str(path)],
    "readers sample": lambda path: [
        "readers", "sample", str(path), "--readers=A,B", f"--out={path.parent / 'out'}"
    ],
    "data stats": lambda path: ["data", "stats", str(path), f"--out={path.parent / 'out'}"],
}  # fmt: skip
_SUFFIXES = {
    "annotate": (".csv", ".jsonl"),
    "evaluate_replies": (".jsonl",),
    "conformance": (".npz",),
    "readers sample": (".csv",),
    "data stats": (".csv",),
}
_STARTS = {
    ".csv": (b"id,report,image,label\n1,", b"a", b",1.png,Normal\n"),
    ".jsonl": (b'{"id": "', b"a", b'"}\n'),
    ".npz": (b"PK\3\4", b"\0", b""),
}


def _other(command: str, suffix: str, kind: str) -> Make:
    def make(root: Path, factor: float) -> Command:
        path = root / f"input{suffix}"
        if kind == "pipe":
            _fifo(path.name, root)
        elif kind == "/dev/zero":
            path.symlink_to(kind)
        else:
            start, piece, end = _STARTS[suffix]
            with path.open("wb") as file:
                file.write(start)
                _repeat(file, piece, 100 * _MEGABYTE * factor)
                file.write(end)
        return _READERS[command](path)

    return make


for _command, _endings in _SUFFIXES.items():
    for _ending in _endings:
        for _kind in ("pipe", "/dev/zero", "100 MB in one text"):
            MAKERS[f"{_command} {_ending}: {_kind}"] = _other(_command, _ending, _kind)
