import itertools
import json

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refuse

from stepcot_jax.data.records.json_arrays import ArraySplitter
from stepcot_jax.host.errors import BadInput


def split(content, cuts=(), **options):
    splitter = ArraySplitter(**options)
    places = [0, *sorted(cut % (len(content) + 1) for cut in cuts), len(content)]
    elements = []
    for begin, end in itertools.pairwise(places):
        elements += splitter.feed(content[begin:end])
    splitter.close()
    return elements


def expected(content):
    try:
        content.decode()
        return [bytes(raw) for raw in msgspec.json.decode(content, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def found(content, cuts):
    try:
        return split(content, cuts)
    except BadInput:
        return None


tricky = st.text(st.sampled_from('"\\[]{},: \t\näß€𝄞\u2028a1') | st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | tricky,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(tricky, inner, max_size=4),
    max_leaves=12,
)
cut_places = st.lists(st.integers(0, 10_000), max_size=12)
SEPARATORS = st.sampled_from([None, (",", ":"), (" ,\t", " : ")])
dumps = st.fixed_dictionaries(
    {"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 0]), "separators": SEPARATORS}
)


@settings(max_examples=50)
@given(st.lists(values, max_size=6), dumps, cut_places, st.sampled_from(["", " ", "\r\n\t"]))
def test_arrays_are_split_as_msgspec_splits_them(array, how, cuts, space):
    content = (space + json.dumps(array, **how) + space).encode()
    elements = split(content, cuts)
    assert (elements, [json.loads(element) for element in elements]) == (expected(content), array)
    assert elements == split(content, range(len(content)))


@settings(max_examples=50)
@given(st.lists(values, max_size=4), st.data())
@example([{"a": 'x\\"]'}], None)
def test_damaged_arrays_are_refused_as_msgspec_refuses_them(array, data):
    content = json.dumps(array, ensure_ascii=False).encode()
    if data is not None:
        begin = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(begin, min(len(content), begin + 3)))
        content = content[:begin] + data.draw(st.binary(max_size=2) | tricky.map(str.encode)) + content[end:]
    cuts = [] if data is None else data.draw(cut_places)
    assert (found(content, cuts), found(content, range(len(content)))) == (expected(content), expected(content))


@pytest.mark.parametrize("step", [1, 3, 100])
def test_an_element_that_is_too_large_is_refused_by_name(step):
    content = b'[1, "' + b"x" * 20 + b'"]'
    assert split(content, range(0, len(content), step), max_record_bytes=23)[1] == b'"' + b"x" * 20 + b'"'
    with pytest.raises(BadInput, match=r"record 1, from byte 3: larger than the accepted 22 bytes"):
        split(content, range(0, len(content), step), max_record_bytes=22)


def test_what_is_kept_of_a_file_without_end_is_bounded():
    splitter = ArraySplitter(max_record_bytes=10_000)
    splitter.feed(b'["')
    for _ in range(9):
        splitter.feed(b"\\" * 1000)
    refuse("record 0, from byte 1: larger than the accepted 10000 bytes", splitter.feed, b"\\" * 1000)
