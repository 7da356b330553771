"""CSV out to a spreadsheet and back."""

from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.data.delimited import encode_rows, is_same_cell, read_sheet_rows
from stepcot_jax.host.text import defuse_formula

CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(st.lists(st.lists(CELLS, min_size=2, max_size=3), min_size=1, max_size=4))
def test_what_goes_out_comes_back_and_is_no_formula(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("sheet") / "form.csv"
    path.write_bytes(encode_rows([["a", "b"], *rows]))
    _, *found = read_sheet_rows(path)
    rows = [row for row in rows if any(defuse_formula(cell).strip() for cell in row)]  # empty rows are skipped
    assert [len(row) for row in found] == [len(row) for row in rows]
    for row, expected in zip(found, rows, strict=True):
        assert all(map(is_same_cell, row, expected))
        assert all(not cell.lstrip(" ").startswith(("=", "+", "-", "@")) for cell in row)
