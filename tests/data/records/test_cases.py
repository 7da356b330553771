import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.box import Box
from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.record_table import as_table
from stepcot_jax.record import Record

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
boxes = st.builds(Box.of_size, words, st.integers(0, 9), st.floats(0, 9), st.floats(1, 9), st.integers(1, 9), words)
FIELDS = dict.fromkeys(("patient", "image", "origin", "report", "view"), words) | {
    "answers": st.tuples(*[st.sampled_from([NOT_ANNOTATED, 0, 1, 25])] * 2), "reasoning": st.tuples(words, words),
    "boxes": st.lists(boxes, max_size=2).map(tuple), "sex": st.sampled_from(["", "F", "M"]),
    "age": st.none() | st.integers(0, 99) | st.floats(0, 99), "provenance": st.dictionaries(words, words, max_size=2),
    "uncertain": st.sampled_from([(), (3, NOT_ANNOTATED), (0, 1)]),
}  # fmt: skip
cases = st.builds(Record, **FIELDS)


@given(st.lists(cases, max_size=6))
def test_a_table_returns_its_cases_unchanged(listed):
    table = as_table(listed)
    assert (table, tuple(table)) == (listed, table[:])
    assert list(map(repr, table)) == list(map(repr, listed))  # 54 stays 54 and does not become 54.0
    assert as_table(table) is table
    assert (table.labels.shape[0], table.count_patients()) == (len(listed), len({case.patient for case in listed}))
    chosen = np.ones(len(listed), bool)
    assert sum(table.count_origins(chosen).values()) == len(listed)
    again = table.with_labels(table.labels, table.uncertain)
    assert [case.stated for case in again] == [case.stated for case in listed]
