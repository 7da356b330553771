"""The report page of a run: its sections in order, in one file."""

import dataclasses
from collections.abc import Sequence

from stepcot_jax.report.markup import Html, join, read_part, tag, write_document

_DISCLAIMER = "For research. Not a medical device: nothing here may decide about a patient."


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
      name: id of the section, for links.
      title: its heading, also in the list of sections.
      lead: what there is to see, in a sentence; "" for none.
      body: markup.
    """

    name: str
    title: str
    lead: str
    body: Html


def write_page(*, title: str, about: Sequence[str], sections: Sequence[Section]) -> str:
    """The whole page.

    Args:
      title: of the page, such as the run's name.
      about: what the run was, one sentence each, below the title.
      sections: in order.

    Returns:
      HTML that loads nothing from anywhere.
    """
    links = [tag("li", tag("a", section.title, href=f"#{section.name}")) for section in sections]
    header = tag(
        "header",
        tag("h1", title),
        *(tag("p", line, class_="lead") for line in about),
        tag("p", _DISCLAIMER, class_="note"),
        class_="page",
    )
    body = join(
        header,
        tag("nav", tag("ul", *links), aria_label="Sections"),
        tag("main", *(_write_section(section) for section in sections)),
        tag("footer", tag("p", "Written by stepcot_jax.report.__main__. ", _DISCLAIMER)),
    )
    return write_document(title=title, body=body, style=read_part("page.css"), script=read_part("page.js"))


def _write_section(section: Section) -> Html:
    lead = tag("p", section.lead, class_="lead") if section.lead else None
    heading = tag("h2", section.title, id=f"{section.name}-title")
    return tag("section", heading, lead, section.body, id=section.name, aria_labelledby=f"{section.name}-title")
