"""The report page of a run: its sections in order, in one file that loads nothing."""

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from stepcot_jax.host.pages import make_environment, render_page

_HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
      name: id of the section, for links.
      title: its heading, also in the list of sections.
      lead: one sentence below the heading; "" for none.
    """

    name: str
    title: str
    lead: str
    body: Markup


def percent(share: float) -> str:
    """Return a share in percent; a dash where it is undefined.

    >>> percent(0.7834), percent(float("nan"))
    ('78.3', '-')
    """
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def decimal(number: float) -> str:
    """Return a number with two decimals; a dash where it is undefined."""
    return "-" if math.isnan(number) else f"{number:.2f}"


TEMPLATES = make_environment(_HERE)
TEMPLATES.filters |= {"percent": percent, "decimal": decimal}
"""The environment of this room's templates."""


def render(name: str, **values: Any) -> Markup:
    """Render one of this room's templates, in which every value is escaped."""
    return Markup(TEMPLATES.get_template(name).render(values))  # noqa: S704 - escaped by the template


def write_page(*, title: str, about: Sequence[str], sections: Sequence[Section]) -> str:
    """Write the whole page as HTML that loads nothing."""
    style, *scripts = (read_part(name) for name in ("page.css", "shared.js", "page.js", "operating.js"))
    template = TEMPLATES.get_template("report.html.j2")
    return render_page(template, style=style, script="".join(scripts), title=title, about=about, sections=sections)


def read_part(name: str) -> str:
    """Return the text of one of this room's style sheets or scripts: "page.css" and "shared.js" are for every page."""
    return (_HERE / name).read_text(encoding="utf-8")
