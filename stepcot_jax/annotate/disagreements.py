"""Where annotators disagree, side by side for a reviewer: one HTML file that loads nothing and runs nothing."""

import dataclasses
import html
import json
import math
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stepcot_jax.annotate.agreement import StepComparison, as_markdown, show_figure
from stepcot_jax.annotate.alignment import Aligned, Unit
from stepcot_jax.chain import NOT_ANNOTATED, Step
from stepcot_jax.host.errors import make_workdir
from stepcot_jax.host.files import write_whole

PAGE_NAME = "disagreements.html"

# Nothing of a report can be run even if it were not escaped: the page may load and run nothing at all.
_HEAD = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>Disagreements of annotators</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; }
table { border-collapse: collapse; width: 100%; margin: .6em 0 2em; }
th, td { border: 1px solid #bbb; padding: .3em .5em; text-align: left; vertical-align: top; }
pre { white-space: pre-wrap; background: #f4f4f4; padding: .7em; }
tr.differs td, tr.differs th { background: #fff3c4; }
small { color: #555; }
</style>
</head>
<body>
"""


def write_agreement(folder: Path, aligned: Aligned, comparison: Sequence[StepComparison]) -> None:
    """Write `agreement.json`, `agreement.md` and the page.

    Raises:
      BadInput: the folder cannot be written to.
    """
    make_workdir(folder)
    figures = {
        "annotators": list(aligned.names),
        "num_reports": len(aligned.units),
        "num_missing": dict(zip(aligned.names, aligned.num_missing, strict=True)),
        "steps": [_null_if_nan(dataclasses.asdict(step)) for step in comparison],
    }
    write_whole(folder / "agreement.json", json.dumps(figures, indent=1, ensure_ascii=False).encode() + b"\n")
    write_whole(folder / "agreement.md", as_markdown(comparison).encode())
    write_whole(folder / PAGE_NAME, "".join(_write_page(aligned, comparison)).encode())


def find_disagreements(aligned: Aligned) -> list[Unit]:
    """The reports of which not all annotators answer every step alike."""
    return [unit for unit in aligned.units if len({case.labels for case in unit.cases}) > 1]


def show_answer(step: Step, label: int) -> str:
    """An answer as a person reads it."""
    return "not answered" if label == NOT_ANNOTATED else step.lettered_options[label]


def escape(text: str) -> str:
    r"""Any text as HTML that shows it; characters that cannot be seen, or turn others around, are named.

    >>> escape('<b>\u202e"')
    '&lt;b&gt;[U+202E]&quot;'
    """
    visible = "".join(
        f"[U+{ord(character):04X}]"
        if unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs") and character not in "\n\r\t"
        else character
        for character in text
    )
    return html.escape(visible)


def _write_page(aligned: Aligned, comparison: Sequence[StepComparison]) -> Iterator[str]:
    units = find_disagreements(aligned)
    yield _HEAD
    yield f"<h1>{len(units)} of {len(aligned.units)} reports with a disagreement</h1>\n"
    yield "<table><tr><th>Step</th><th>Reports</th><th>All agree</th><th>Kappa</th></tr>\n"
    for step in comparison:
        figures = f"<td>{step.num_cases}</td><td>{show_figure(step.agreement)}</td><td>{show_figure(step.kappa)}</td>"
        yield f"<tr><th>{escape(step.step)}</th>{figures}</tr>\n"
    yield "</table>\n"
    for number, unit in enumerate(units, start=1):
        yield from _write_unit(aligned, unit, number)
    yield "</body>\n</html>\n"


def _write_unit(aligned: Aligned, unit: Unit, number: int) -> Iterator[str]:
    case = unit.cases[0]
    yield f"<h2>{number}. Patient {escape(case.patient_id)} <small>{escape(', '.join(unit.image_paths))}</small></h2>\n"
    yield f"<pre>{escape(case.report)}</pre>\n<table><tr><th>Step</th>"
    yield "".join(f"<th>{escape(name)}</th>" for name in aligned.names) + "</tr>\n"
    for place, step in enumerate(aligned.chain.steps):
        differs = len({each.labels[place] for each in unit.cases}) > 1
        yield f"{'<tr class=differs>' if differs else '<tr>'}<th>{escape(step.name)}</th>"
        for each in unit.cases:
            answer = escape(show_answer(step, each.labels[place]))
            yield f"<td>{answer}<br><small>{escape(each.reasoning[place])}</small></td>"
        yield "</tr>\n"
    yield "</table>\n"


def _null_if_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _null_if_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_null_if_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value
