"""Self-contained HTML pages from Jinja templates: every value is escaped, and the page may load nothing."""

import base64
import dataclasses
import hashlib
import math
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from stepcot_jax.pages.sheets import Table

_HERE = Path(__file__).parent
_UNSEEN = ("Cc", "Cf", "Co", "Cs")  # Unicode categories: control, format, private use, surrogate


def name_unseen(text: str) -> str:
    r"""Return `text` with invisible characters, and those that reverse the text around them, written as code points.

    >>> name_unseen("a < b\u202e")
    'a < b[U+202E]'
    """
    return "".join(
        f"[U+{ord(character):04X}]"
        if unicodedata.category(character) in _UNSEEN and character not in "\n\r\t"
        else character
        for character in text
    )


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page."""

    name: str  # id of the section, for links
    title: str  # its heading
    lead: str  # one sentence below the heading; "" for none
    body: Markup
    link: str = ""  # its name in the list of sections; "" for the heading
    style: str = ""  # style sheet and script that its content needs
    script: str = ""


def percent(share: float) -> str:
    """Return a share in percent; a dash where it is undefined.

    >>> percent(0.7834), percent(float("nan"))
    ('78.3', '-')
    """
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def make_environment(folder: Path) -> jinja2.Environment:
    """Return an environment for the `*.html.j2` templates of a folder, which may extend and include those of `pages`.

    Every value is escaped unless it is `markupsafe.Markup`; `name_unseen` is applied first. An undefined name is an
    error. `tojson` writes compact JSON that cannot end its script element and refuses numbers that are not finite.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: name_unseen(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


SHARED = make_environment(_HERE)
"""The environment of this room's templates."""


def render(environment: jinja2.Environment, name: str, **values: Any) -> Markup:
    """Render a template, in which every value is escaped."""
    return Markup(environment.get_template(name).render(values))  # noqa: S704 - escaped by the template


def render_page(template: jinja2.Template, *, style: str, script: str = "", **values: Any) -> str:
    """Render a template that extends `page.html.j2`: one style sheet, at most one script, nothing loaded.

    The content security policy names style and script by their SHA-256; any other, inline attributes included, is
    blocked by the browser.
    """
    scripts = _digest(script) if script else "'none'"
    policy = (
        f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {scripts}; "
        "base-uri 'none'; form-action 'none'"
    )
    return template.render(policy=policy, style=style, script=script, **values)


def write_report(*, title: str, about: Sequence[str], sections: Sequence[Section], writer: str) -> str:
    """Return a page of sections with links to each, as HTML that loads nothing."""
    return render_page(
        SHARED.get_template("report.html.j2"),
        style="".join([read_part("page.css"), *(section.style for section in sections)]),
        script="".join([read_part("shared.js"), *(section.script for section in sections)]),
        title=title,
        about=about,
        sections=sections,
        writer=writer,
    )


def tabulate(table: Table) -> Section:
    """Return a table as a section of the page."""
    link = table.name.replace("_", " ").capitalize()
    return Section(table.name, table.title, "", render(SHARED, "table.html.j2", table=table), link)


def read_part(name: str) -> str:
    """Return the text of a style sheet or script of this room; "page.css" and "shared.js" are for every page."""
    return (_HERE / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
