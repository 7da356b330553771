"""HTML that is safe by construction: what is not markup already is escaped, wherever it comes from."""

import base64
import hashlib
import html
import json
import pathlib
from typing import Any

from stepcot_jax.annotate.disagreements import escape

_VOID = frozenset({"br", "img", "input", "meta", "link"})
_HERE = pathlib.Path(__file__).parent


class Html(str):
    """Text that is markup already and is not escaped again; only this module makes it."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | int | float | bool | None) -> Html:
    """An element with its children, each escaped unless it is markup.

    Args:
      name: of the element.
      children: text or markup, in order; None is left out.
      attributes: a trailing underscore is dropped and others become hyphens; True is an attribute without a value,
        None and False are none.

    >>> tag("td", "<b>", class_="right")
    '<td class="right">&lt;b&gt;</td>'
    """
    written = "".join(_write_attribute(key, value) for key, value in attributes.items())
    inside = join(*children)
    return Html(f"<{name}{written}>" if name in _VOID else f"<{name}{written}>{inside}</{name}>")


def join(*parts: str | None) -> Html:
    """Parts one after another, each escaped unless it is markup."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts if part is not None))


def _write_attribute(key: str, value: str | int | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def show(text: str) -> str:
    r"""Text for a script that shows it as text: unseen characters are named, as in `escape`.

    >>> show("a < b\u202e")
    'a < b[U+202E]'
    """
    return html.unescape(escape(text))


def embed_json(value: Any, *, name: str) -> Html:
    r"""A data block that a script of the page reads by its id; nothing in it can end the block.

    Args:
      value: plain types with finite numbers.
      name: id of the block.

    Raises:
      ValueError: a number is not finite.

    >>> embed_json("</script>", name="cases")
    '<script type="application/json" id="cases">"\\u003c/script\\u003e"</script>'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" id="{escape(name)}">{text}</script>')


def read_part(name: str) -> str:
    """A style sheet or script that lies beside this module."""
    return (_HERE / name).read_text(encoding="utf-8")


def write_document(*, title: str, body: Html, style: str, script: str) -> str:
    """A page that may load nothing and run nothing but its own script, which the policy names by its digest.

    Args:
      title: of the page.
      body: markup of the page.
      style: the one style sheet.
      script: the one script, run when the body is there.
    """
    policy = (
        f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        # An icon of no bytes: else a browser that opens the page from a server asks it for one.
        tag("link", rel="icon", href="data:,"),
        Html(f"<style>{style}</style>"),
    )
    whole = join(head, tag("body", body, Html(f"<script>{script}</script>")))
    return f"<!DOCTYPE html>\n{tag('html', whole, lang='en')}\n"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
