import datetime
import sys
import zipfile

import numpy as np
import openpyxl
import pytest
from refusals import refuse

from benchmarks.hostile_tables import write_book
from stepcot_jax.data.splits.split_resolver import UNCOMPUTED, iterate_sheet, read_sheet, read_split_table

VALUES = [
    "p1", " p 2 ", "ünal <&> 胸", "", None, "1e5",
    7, -7, 0, 1613, 1613.0, 0.5, 1e20, 12345678901, True, False, "00012", "=1+1",
    datetime.datetime(2020, 1, 31, 12, 30), datetime.date(1999, 12, 31), datetime.time(8, 15),
]  # fmt: skip


def read_with_openpyxl(path):
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    rows = []
    for number, cells in enumerate(book.worksheets[0].iter_rows(values_only=True), start=1):
        exact = [int(x) if isinstance(x, float) and x.is_integer() and x < 2**53 else x for x in cells]
        texts = ["" if x is None else str(x) for x in exact]
        rows.append((number, [text.strip().removesuffix(" 00:00:00") for text in texts]))
    book.close()
    return rows


def shorten(rows):
    kept = []
    for number, cells in rows:
        while cells and not cells[-1]:
            cells = cells[:-1]
        if cells:
            kept.append((number, cells))
    return kept


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_openpyxl(tmp_path, seed):
    draw = np.random.default_rng(seed)
    book = openpyxl.Workbook()
    if seed == 2:
        book.epoch = openpyxl.utils.datetime.CALENDAR_MAC_1904
    sheet = book.worksheets[0]
    for row in draw.permutation(400)[:60].tolist():
        for column in draw.permutation(60)[:4].tolist():
            sheet.cell(row + 1, column + 1, VALUES[draw.integers(len(VALUES))])
    sheet.cell(2, 1, 45000.25).number_format = "dd/mm/yy"
    sheet.cell(3, 1, 45000.25).number_format = "0.00"
    sheet.merge_cells("A5:C9")
    book.create_sheet("second").append(["other"])
    book.save(tmp_path / "a.xlsx")
    rows = iterate_sheet(tmp_path / "a.xlsx")
    found = [(number, ["" if cell == UNCOMPUTED else cell for cell in cells]) for number, cells in rows]
    assert shorten(found) == shorten(read_with_openpyxl(tmp_path / "a.xlsx"))
    assert len(shorten(found)) > 30


def rewrite(path, **parts):
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in kept.items():
            archive.writestr(name, parts.get(name.rpartition("/")[2].partition(".")[0], content))


def test_prefixes_rich_text_phonetic_text_and_missing_places_are_read(tmp_path):
    path = tmp_path / "a.xlsx"
    write_book(path)
    rewrite(
        path,
        sharedStrings='<x:sst xmlns:x="m"><x:si><x:r><x:t>pat</x:t></x:r><x:r><x:t>ient_id</x:t></x:r><x:rPh>'
        "<x:t>no</x:t></x:rPh></x:si></x:sst>",
        sheet1='<x:worksheet xmlns:x="m"><x:sheetData><x:row><x:c t="s"><x:v>0</x:v></x:c></x:row><x:row r="4"><x:c/>'
        '<x:c t="str"><x:f>A&amp;B</x:f><x:v>p1</x:v></x:c><x:c r="C4" t="e"><x:v>#N/A</x:v></x:c></x:row>'
        "</x:sheetData></x:worksheet>",
    )
    assert shorten(iterate_sheet(path)) == [(1, ["patient_id"]), (4, ["", "p1", "#N/A"])]


FAR = '<row r="1048576"><c r="XFD1048576"><v>1</v></c></row>'


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ('<row r="1"><c r="XFE1"><v>1</v></c></row>', "a row has 16385 columns; at most 16384"),
        ('<row r="20000001"><c r="A20000001"><v>1</v></c></row>', "a row is numbered 20000001"),
        (f'<row r="1"><c r="A1"><v>1</v></c></row>{FAR}', "1048576 rows of 16384 columns; at most 2000000"),
        ("<row/>" * 20 + "<row><c/></row>" * 1200 + f"<row>{'<c/>' * 9000}</row>", "1222 rows of 9000 columns"),
    ],
)
def test_a_sheet_that_would_fill_the_memory_is_refused(tmp_path, rows, found):
    path = tmp_path / "a.xlsx"
    write_book(path)
    rewrite(path, sheet1=f"<worksheet><sheetData>{rows}</sheetData></worksheet>")
    refuse(found, lambda: list(iterate_sheet(path)))


def test_a_damaged_sheet_is_refused_by_name(tmp_path):
    path = tmp_path / "train.xlsx"
    write_book(path)
    rewrite(path, sheet1='<worksheet><sheetData><row><c t="s"><v>1</v></c></row></sheetData></worksheet>')
    refuse(r"train\.xlsx: cannot be read: CalamineError", lambda: list(read_split_table(path)))
    rewrite(path, sheet1="<!DOCTYPE a><worksheet/>")
    refuse("has a document type declaration", lambda: list(read_split_table(path)))


@pytest.mark.parametrize("read", [read_sheet, lambda path: list(read_split_table(path))])
def test_without_the_library_it_is_named_and_the_workbook_is_not_blamed(tmp_path, monkeypatch, read):
    write_book(tmp_path / "a.xlsx")
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(ModuleNotFoundError) as raised:
        read(tmp_path / "a.xlsx")
    assert raised.value.name == "python_calamine"
