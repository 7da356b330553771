"""Results of audits: figures as tables, and rows of pictures with what changed, for pages and files."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from stepcot_jax.data.images.image_decoding import MAX_PIXELS, decode_picture, most_bytes
from stepcot_jax.evaluation.audits import Audit, Ends
from stepcot_jax.host.files import read_file, read_json, write_whole
from stepcot_jax.host.ranges import Interval
from stepcot_jax.pages.pictures import write_picture
from stepcot_jax.pages.sheets import Table, columns, write_table
from stepcot_jax.pages.shell import SHARED, Section, render, tabulate, write_report

AUDIT_FILE, PICTURES = "audit.json", "pictures"
_EXPECTED = "expected the results of an audit"
_MOST_BYTES = 2**24


class Shown(msgspec.Struct, frozen=True):
    """A picture with the answer to it."""

    picture: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-z]{1,64}\.png$")]  # file in the folder of pictures
    variant: str
    answer: str  # in words; "" if unread
    change: str  # "changed", "unread", or "" for the same answer


class Example(msgspec.Struct, frozen=True):
    """A question with the pictures that were shown."""

    question: str
    truth: str
    shown: list[Shown]


class AuditResults(msgspec.Struct, frozen=True):
    """The content of audit.json."""

    about: str  # who answered, how many questions, and the condition of the thinking
    audits: list[Audit]
    examples: list[Example]


def tabulate_audit(audit: Audit) -> Table:
    """Return an audit as a table."""
    names = list(dict.fromkeys(name for row in audit.rows for name in row.figures))
    heads = (*columns("text", "variant"), *columns("number", "cases"), *columns("percent", *names))
    rows = tuple(
        (row.variant, row.num_cases, *(_as_interval(row.figures.get(name)) for name in names)) for row in audit.rows
    )
    return Table(f"audit_{audit.name}", audit.title, heads, rows, tuple(audit.notes))


def _as_interval(ends: Ends | None) -> Interval | None:
    return None if ends is None else Interval(*(math.nan if end is None else end for end in ends))


def write_audit(folder: Path, results: AuditResults) -> list[Table]:
    """Write audit.json, a table for each audit as CSV, Markdown and LaTeX, and index.html; return the tables."""
    write_whole(folder / AUDIT_FILE, msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    tables = [tabulate_audit(audit) for audit in results.audits]
    for table in tables:
        write_table(folder, table)
    sections = list_audit_sections(folder)
    page = write_report(
        title="Audit", about=[results.about], sections=sections, writer="stepcot evaluate_replies audit"
    )
    write_whole(folder / "index.html", page.encode())
    return tables


def list_audit_sections(folder: Path, *, with_pictures: bool = True) -> list[Section]:
    """Return the sections of the audit that a folder holds; none without one."""
    path = folder / AUDIT_FILE
    if not path.exists():
        return []
    results = read_json(path, AuditResults, accepted=_EXPECTED, max_bytes=_MOST_BYTES)
    sections = [tabulate(tabulate_audit(audit)) for audit in results.audits]
    if with_pictures and results.examples:
        examples = [(example, [_embed(folder, shown) for shown in example.shown]) for example in results.examples]
        body = render(SHARED, "audit.html.j2", examples=examples)
        lead = "Answers to the same question about each picture; those that differ from the first are marked."
        sections.append(Section("audit_pictures", "Audit: what changed", lead, body))
    return sections


def _embed(folder: Path, shown: Shown) -> str:
    content = read_file(folder / PICTURES / shown.picture, max_bytes=most_bytes(MAX_PIXELS))
    picture = decode_picture(content, name=shown.picture, max_pixels=MAX_PIXELS)
    return write_picture(np.asarray(picture.convert("RGB")))


def choose_examples(examples: Sequence[Example], *, most: int) -> list[Example]:
    """Return the examples with the most pictures, in order."""
    ranked = sorted(range(len(examples)), key=lambda place: -len(examples[place].shown))[:most]
    return [examples[place] for place in sorted(ranked)]
