import base64
import hashlib
import html
import html.parser
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.report.markup import Html, embed_json, join, read_part, show, tag, write_document

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
    assert seen.text.replace("\r", "\n") == f"({show(text)})".replace("\r", "\n")


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


def test_unseen_characters_are_named():
    assert show("left\u202eright\x00") == "left[U+202E]right[U+0000]"
    assert show("&amp; <b>") == "&amp; <b>"
    assert "[U+202E]" in tag("p", "\u202e")


def test_attributes():
    assert tag("input", type="radio", checked=True, hidden=False, value=0) == '<input type="radio" checked value="0">'
    assert tag("a", "x", aria_label="y", class_="z") == '<a aria-label="y" class="z">x</a>'
    assert tag("p", None, Html("<b>x</b>"), "<") == "<p><b>x</b>&lt;</p>"


def test_the_policy_names_exactly_the_pages_own_style_and_script():
    style, script = read_part("page.css"), read_part("page.js")
    document = write_document(title="<t>", body=tag("main", "body"), style=style, script=script)
    policy = html.unescape(re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', document)[1])
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for rule, text in (("script-src", script), ("style-src", style)):
        inside = re.search(rf"<{'script' if rule == 'script-src' else 'style'}>(.*?)</", document, re.DOTALL)[1]
        assert inside == text
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert "<title>&lt;t&gt;</title>" in document


def test_the_style_and_the_script_load_nothing():
    for name in ("page.css", "page.js"):
        text = read_part(name)
        assert not re.search(
            r"https?:|//[a-z]|url\(|@import|fetch\(|XMLHttp|innerHTML|insertAdjacent|document\.write", text
        )
