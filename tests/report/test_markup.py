import html.parser
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.host.pages import name_unseen
from stepcot_jax.report.markup import Html, embed_json, join, tag

EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><b>",
    "' onload='x",
    "<!--",
    "]]>",
    "&lt;",
]


class Seen(html.parser.HTMLParser):
    """What a parser, not ours, makes of markup."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.text, self.attributes = [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        self.attributes += attributes

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("text", EVIL)
def test_text_stays_text_in_children_and_attributes(text):
    seen = Seen(tag("p", text, title=text))
    assert seen.tags == ["p"]
    assert seen.text == text
    assert seen.attributes == [("title", text)]


@given(st.text())
def test_any_text_is_shown_whole(text):
    seen = Seen(join("(", text, ")"))
    assert seen.tags == []
    # A parser reads every line end as "\n"; nothing else is changed or lost.
    assert seen.text.replace("\r", "\n") == f"({name_unseen(text)})".replace("\r", "\n")


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
def test_embedded_data_comes_back_and_cannot_end_its_block(value):
    block = embed_json(value, name="data")
    inside = re.fullmatch(r'<script type="application/json" id="data">(.*)</script>', block, re.DOTALL)[1]
    assert not set("<>&") & set(inside)
    assert inside.isascii()
    assert json.loads(inside) == value


def test_embedded_numbers_are_finite():
    with pytest.raises(ValueError, match="JSON"):
        embed_json([float("nan")], name="data")


def test_attributes():
    assert tag("input", type="radio", checked=True, hidden=False, value=0) == '<input type="radio" checked value="0">'
    assert tag("a", "x", aria_label="y", class_="z") == '<a aria-label="y" class="z">x</a>'
    assert tag("p", None, Html("<b>x</b>"), "<") == "<p><b>x</b>&lt;</p>"
