from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.host.text import defuse_formula, escape_markdown, list_texts, make_printable, one_line, shorten


@given(st.text())
def test_printable_text_is_one_line_without_controls(text):
    shown = make_printable(text)
    assert shown.isprintable()
    assert make_printable(shown) == shown
    assert shown == text or not text.isprintable()


def test_parts_of_messages_cells_and_markdown():
    assert [defuse_formula(cell) for cell in ("=1+1", " @x", "-3.5", "mass")] == ["'=1+1", "' @x", "-3.5", "mass"]
    assert escape_markdown("a|b <i>\n a_b _c_") == r"a\|b &lt;i> a_b \_c\_"
    assert (one_line(ValueError("a \n b")), one_line(KeyError())) == ("a b", "KeyError")
    assert (shorten("a" * 80), shorten("a" * 100)) == ("a" * 80, "a" * 80 + "…")
    assert list_texts(["Focal", "Diffuse"]) == "['Focal', 'Diffuse']"
    assert list_texts(["a"] * 28).endswith("'a', and 2 more]")
