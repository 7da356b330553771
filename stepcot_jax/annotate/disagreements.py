"""Write the agreement of annotators and a page with their disagreements side by side."""

import dataclasses
import html
import json
import math
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepcot_jax.annotate.agreement import StepComparison, as_markdown, show_figure
from stepcot_jax.annotate.alignment import Aligned, Unit
from stepcot_jax.chain import NOT_ANNOTATED, Step
from stepcot_jax.host.errors import make_workdir
from stepcot_jax.host.files import write_whole

PAGE_NAME = "disagreements.html"

# The policy is a second line of defence behind escaping: the page can load and run nothing.
_PAGE = """\
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
<h1>{{ units|length }} of {{ aligned.units|length }} reports with a disagreement</h1>
<table><tr><th>Step</th><th>Reports</th><th>All agree</th><th>Kappa</th></tr>
{% for step in comparison %}
<tr><th>{{ step.step }}</th><td>{{ step.num_cases }}</td><td>{{ show_figure(step.agreement) }}</td>\
<td>{{ show_figure(step.kappa) }}</td></tr>
{% endfor %}
</table>
{% for unit in units %}
<h2>{{ loop.index }}. Patient {{ unit.cases[0].patient_id }} <small>{{ unit.image_paths|join(", ") }}</small></h2>
<pre>{{ unit.cases[0].report }}</pre>
<table><tr><th>Step</th>{% for name in aligned.names %}<th>{{ name }}</th>{% endfor %}</tr>
{% for step in aligned.chain.steps %}
{% set place = loop.index0 %}
<tr{% if unit.cases|map(attribute="labels")|map(attribute=place)|unique|list|length > 1 %} class=differs{% endif %}>\
<th>{{ step.name }}</th>\
{% for case in unit.cases %}<td>{{ show_answer(step, case.labels[place]) }}<br>\
<small>{{ case.reasoning[place] }}</small></td>{% endfor %}</tr>
{% endfor %}
</table>
{% endfor %}
</body>
</html>
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
    write_whole(folder / PAGE_NAME, _render(aligned, comparison).encode())


def find_disagreements(aligned: Aligned) -> list[Unit]:
    """Return the reports on which annotators differ in at least one step."""
    return [unit for unit in aligned.units if len({case.labels for case in unit.cases}) > 1]


def show_answer(step: Step, label: int) -> str:
    """Return an answer as shown to people."""
    return "not answered" if label == NOT_ANNOTATED else step.lettered_options[label]


def name_invisible(value: Any) -> str:
    r"""Replace control, formatting and private characters, which can hide or reorder text, by their code points.

    >>> name_invisible("a\u202eb")
    'a[U+202E]b'
    """
    return "".join(
        f"[U+{ord(character):04X}]"
        if unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs") and character not in "\n\r\t"
        else character
        for character in str(value)
    )


def escape(text: str) -> str:
    r"""Escape text for HTML, with invisible characters named.

    >>> escape('<b>\u202e"')
    '&lt;b&gt;[U+202E]&quot;'
    """
    return html.escape(name_invisible(text))


def _render(aligned: Aligned, comparison: Sequence[StepComparison]) -> str:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=name_invisible,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(show_figure=show_figure, show_answer=show_answer)
    page = environment.from_string(_PAGE)
    return page.render(aligned=aligned, comparison=comparison, units=find_disagreements(aligned))


def _null_if_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _null_if_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_null_if_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value
