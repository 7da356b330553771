"""CSV out to a spreadsheet and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.annotate.spreadsheets import encode_rows, is_same_cell, read_rows
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import defuse_formula

CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(st.lists(st.lists(CELLS, min_size=2, max_size=3), min_size=1, max_size=4))
def test_what_goes_out_comes_back_and_is_no_formula(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("sheet") / "form.csv"
    path.write_bytes(encode_rows([["a", "b"], *rows]))
    _, *found = read_rows(path)
    rows = [row for row in rows if any(defuse_formula(cell).strip() for cell in row)]  # empty rows are skipped
    assert [len(row) for row in found] == [len(row) for row in rows]
    for row, expected in zip(found, rows, strict=True):
        assert all(map(is_same_cell, row, expected))
        assert all(not cell.lstrip(" ").startswith(("=", "+", "-", "@")) for cell in row)


def test_other_words_are_another_cell():
    assert not is_same_cell("no mass", "mass")
    assert not is_same_cell("mass", "mass'")


def test_semicolons_separate_where_the_header_has_more_of_them_and_what_is_no_csv_is_refused(tmp_path):
    path = tmp_path / "form.csv"
    path.write_text("a;b\n\n1,5;2\n")
    assert list(read_rows(path)) == [["a", "b"], ["1,5", "2"]]
    for content, message in ((b"a,b\r\n\xff", "not UTF-8"), (b'a,b\r\n"x"y,1\r\n', "line 2")):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=rf"form\.csv.*{message}"):
            list(read_rows(path))
