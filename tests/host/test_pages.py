import base64
import hashlib
import html
import html.parser
import json
import re

import jinja2
import markupsafe
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.pages.shell import make_environment, name_unseen, render_page

EVIL = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</script><b>", "' onload='x", "<!--", "&lt;")


class Seen(html.parser.HTMLParser):
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


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("templates")
    (folder / "own.html.j2").write_text(
        '{% extends "page.html.j2" %}{% block body %}<main>{{ text }}</main>{% endblock %}'
    )
    return make_environment(folder)


@given(text=st.text() | st.sampled_from(EVIL))
def test_text_stays_text_in_children_and_attributes_and_is_shown_whole(environment, text):
    seen = Seen(environment.from_string('<p title="{{ text }}">{{ text }}</p>').render(text=text))
    assert seen.tags == ["p"]
    ((name, value),) = seen.attributes
    # HTML parsers normalize line ends to "\n"; all other characters are preserved.
    expected = name_unseen(text).replace("\r", "\n")
    assert (name, value.replace("\r", "\n"), seen.text.replace("\r", "\n")) == ("title", expected, expected)


@given(value=st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
def test_embedded_data_comes_back_and_cannot_end_its_block(environment, value):
    inside = environment.from_string("{{ value|tojson }}").render(value=value)
    assert not set("<>&") & set(inside)
    assert inside.isascii()
    assert json.loads(inside) == value


def test_unseen_characters_are_named_and_nan_and_unknown_names_are_errors(environment):
    assert name_unseen("left\u202eright\x00") == "left[U+202E]right[U+0000]"
    with pytest.raises(ValueError, match="JSON"):
        environment.from_string("{{ value|tojson }}").render(value=[float("nan")])
    assert environment.from_string("{{ text }}").render(text=markupsafe.Markup("<b>x</b>")) == "<b>x</b>"
    with pytest.raises(jinja2.UndefinedError, match="nowhere"):
        environment.from_string("{{ nowhere }}").render()


@pytest.mark.parametrize("script", ["", "document.title = '<b>';"])
def test_the_policy_names_exactly_the_pages_own_style_and_script(environment, script):
    style = "p > b { color: red; }\n"
    template = environment.get_template("own.html.j2")
    page = render_page(template, style=style, script=script, title="<t>", text="<x>")
    policy = html.unescape(re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1])
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert (rules["default-src"], rules["img-src"]) == ("'none'", "data:")
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    found = {name: re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL) for name in ("style", "script")}
    assert (found, rules["style-src"]) == ({"style": [style], "script": [script] if script else []}, _digest(style))
    assert rules["script-src"] == (_digest(script) if script else "'none'")
    assert "<title>&lt;t&gt;</title>" in page
    assert "<main>&lt;x&gt;</main>" in page


def _digest(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
