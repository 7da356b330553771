from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.host.text import make_printable


@given(st.text())
def test_printable_text_is_one_line_without_controls(text):
    shown = make_printable(text)
    assert shown.isprintable()
    assert make_printable(shown) == shown
    assert shown == text or not text.isprintable()
