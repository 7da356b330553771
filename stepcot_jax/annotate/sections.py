"""The sections of a report, so that only what the radiologist saw and concluded counts as evidence.

An indication ("rule out pneumonia") names what was asked, a comparison or a history what was once there: neither says
what this radiograph shows.
"""

import dataclasses
import re
from typing import Literal

Role = Literal["findings", "impression", "context"]

HEADINGS: dict[str, Role] = {
    "findings": "findings",
    "finding": "findings",
    "report": "findings",
    "description": "findings",
    "chest": "findings",
    "chest x-ray": "findings",
    "impression": "impression",
    "impressions": "impression",
    "conclusion": "impression",
    "conclusions": "impression",
    "opinion": "impression",
    "summary": "impression",
    "interpretation": "impression",
    "indication": "context",
    "indications": "context",
    "reason for exam": "context",
    "reason for examination": "context",
    "comparison": "context",
    "comparisons": "context",
    "history": "context",
    "clinical history": "context",
    "clinical information": "context",
    "clinical indication": "context",
    "technique": "context",
    "procedure": "context",
    "examination": "context",
    "exam": "context",
    "study": "context",
    "views": "context",
    "recommendation": "context",
    "recommendations": "context",
}
"""Headings that open a section, in lower case, with what the section is: evidence or context."""

# A heading stands in capitals anywhere, or capitalised at the start of a line; "; impression: mass" is no heading.
_NAMES = "|".join(sorted((re.escape(name) for name in HEADINGS), key=len, reverse=True))
_HEADING = re.compile(rf"(?:(?<![^\s.;])(?P<capitals>{_NAMES.upper()})|^[ \t]*(?P<line>(?i:{_NAMES})))[ \t]*:", re.M)


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
      role: "findings" and "impression" assert, "context" does not.
      start: first character of its text in the report, after the heading.
      end: one past its last character.
    """

    role: Role
    start: int
    end: int


def find_sections(text: str) -> tuple[Section, ...]:
    """The sections of a report in its order; text before the first heading, or without any, counts as findings.

    >>> [section.role for section in find_sections("INDICATION: cough. FINDINGS: Clear lungs.")]
    ['context', 'findings']
    """
    sections: list[Section] = []
    role: Role = "findings"
    start = 0
    for heading in _HEADING.finditer(text):
        sections.append(Section(role, start, heading.start()))
        role = HEADINGS[(heading["capitals"] or heading["line"]).lower()]
        start = heading.end()
    sections.append(Section(role, start, len(text)))
    return tuple(section for section in sections if text[section.start : section.end].strip())
