"""Write the agreement of annotators and a page with their disagreements side by side."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepcot_jax.annotate.agreement import StepComparison, as_markdown, show_figure
from stepcot_jax.annotate.alignment import Aligned, Unit
from stepcot_jax.chain import NOT_ANNOTATED, Step
from stepcot_jax.host.errors import make_workdir
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.pages import make_environment, render_page

PAGE_NAME = "disagreements.html"

_HERE = Path(__file__).parent


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


def _render(aligned: Aligned, comparison: Sequence[StepComparison]) -> str:
    return render_page(
        make_environment(_HERE).get_template("disagreements.html.j2"),
        style=(_HERE / "disagreements.css").read_text(encoding="utf-8"),
        title="Disagreements of annotators",
        aligned=aligned,
        comparison=comparison,
        units=find_disagreements(aligned),
        show_figure=show_figure,
        show_answer=show_answer,
    )


def _null_if_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _null_if_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_null_if_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value
