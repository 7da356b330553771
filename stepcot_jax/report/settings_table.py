"""The settings of a run, group by group."""

from collections.abc import Mapping
from typing import Any

from stepcot_jax.report.markup import Html, tag


def write_settings_table(settings: Mapping[str, Any]) -> Html:
    """Every key of the settings with its value; the keys that stand alone come first."""
    alone = {key: value for key, value in settings.items() if not isinstance(value, Mapping)}
    groups = {"run": alone} | {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    return tag("div", *(_write_group(name, group) for name, group in groups.items() if group), class_="settings")


def _write_group(name: str, group: Mapping[str, Any]) -> Html:
    rows = [tag("tr", tag("th", key, scope="row"), tag("td", _describe(value))) for key, value in group.items()]
    return tag("div", tag("h3", name), tag("table", *rows))


def _describe(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_describe(each) for each in value)
    return "(empty)" if value == "" else str(value)
