"""Every setting of a run as a table."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from stepcot_jax.report.page import render
from stepcot_jax.settings.run_settings import Settings


def write_settings(settings: Settings, report: Mapping[str, Any]) -> Markup:
    """Return the settings by section, and the time that the run took if its report has it."""
    groups: dict[str, dict[str, Markup]] = {"run": {}}
    for key, value in dataclasses.asdict(settings).items():
        if isinstance(value, dict):
            groups[key] = {name: _breakable(_describe_value(each)) for name, each in value.items()}
        else:
            groups["run"][key] = _breakable(_describe_value(value))
    seconds = report.get("wall_seconds")
    return render("settings.html.j2", groups=groups, seconds=seconds if isinstance(seconds, int | float) else None)


def _breakable(value: str) -> Markup:
    """Return text that breaks after the signs of paths and patterns rather than within words."""
    return Markup(re.sub(r"([/|.(_=])", r"\1<wbr>", str(escape(value))))  # noqa: S704 - escaped here


def _describe_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_describe_value, value))
    return "(empty)" if value == "" else str(value)
