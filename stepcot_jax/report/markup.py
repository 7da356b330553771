"""HTML elements from code, for the reading forms; other pages use the templates of `host.pages`."""

import html
import json
from typing import Any

from stepcot_jax.host.pages import name_unseen

_VOID = frozenset({"br", "img", "input", "meta", "link"})


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
    return Html("".join(part if isinstance(part, Html) else _escape(part) for part in parts if part is not None))


def _escape(text: str) -> str:
    return html.escape(name_unseen(text))


def _write_attribute(key: str, value: str | int | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{_escape(str(value))}"'


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
    return Html(f'<script type="application/json" id="{_escape(name)}">{text}</script>')
