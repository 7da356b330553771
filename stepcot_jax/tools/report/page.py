"""The report page of a run: its sections in order, in one file that loads nothing."""

import pathlib
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from stepcot_jax.pages import shell
from stepcot_jax.pages.shell import Section, make_environment, read_part, render_page

_HERE = pathlib.Path(__file__).parent
_TEMPLATES = make_environment(_HERE)


def render(name: str, **values: Any) -> Markup:
    """Render one of this folder's templates."""
    return shell.render(_TEMPLATES, name, **values)


def write_page(*, title: str, about: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the page as HTML that loads nothing."""
    style, shared = read_part("page.css"), read_part("shared.js")
    scripts = (shared, *((_HERE / name).read_text(encoding="utf-8") for name in ("page.js", "operating.js")))
    template = _TEMPLATES.get_template("report.html.j2")
    return render_page(template, style=style, script="".join(scripts), title=title, about=about, sections=sections)
