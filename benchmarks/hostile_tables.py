"""Hostile tables for `hostile_files`: .csv and .xlsx with splits, and .csv with cases."""

import zipfile
from pathlib import Path

from benchmarks.hostile_inputs import MAKERS, MEGABYTE, Command, Make, hostile, repeat, split_folder, write_members

_HEAD = b"patient_id,image_path\n"
_SHEET = "xl/worksheets/sheet1.xml"


def _csv_splits(piece: bytes, megabytes: float) -> Make:
    def make(root: Path, factor: float) -> Command:
        command, table = split_folder(root)
        with table.with_suffix(".csv").open("wb") as file:
            file.write(_HEAD)
            repeat(file, piece, megabytes * MEGABYTE * factor)
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
                    repeat(file, piece.encode(), num_bytes)
                file.write(end.encode())


def _xlsx_splits(large: str, piece: str, megabytes: float) -> Make:
    def make(root: Path, factor: float) -> Command:
        command, table = split_folder(root)
        write_book(table.with_suffix(".xlsx"), large=large, piece=piece, num_bytes=megabytes * MEGABYTE * factor)
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


@hostile("split .xlsx: a million files in the archive")
def _many_members(root: Path, factor: float) -> Command:
    command, table = split_folder(root)
    write_members(table.with_suffix(".xlsx"), num_members=round(10**6 * factor))
    return command


@hostile("split .xlsx: entities that grow")
def _entities(root: Path, factor: float) -> Command:
    command, table = split_folder(root)
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
            repeat(file, piece, megabytes * MEGABYTE * factor)
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
