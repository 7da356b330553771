"""Projections by their names in headers and tables, and lateral views among frontal ones."""

import functools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

Projection = Literal["frontal", "lateral", "oblique", "decubitus", ""]
"""The projection that a header names; "" if it names none, or an unknown one."""

VIEWS: dict[str, dict[Projection, list[str]]] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)
"""Words of `ViewPosition`, the deciding ones first ("AP LLD" is a decubitus view), and codes of SNOMED CT and RT."""

LATERAL = "is a lateral view; expected frontal ones, as others here are"
"""Why a record is set aside by `is_frontal_task`; not a bad record."""


@functools.lru_cache(4096)
def name_projection(written: str) -> Projection:
    """Return the projection that a view position names.

    >>> name_projection("AP_horizontal"), name_projection("LL"), name_projection("")
    ('frontal', 'lateral', '')
    """
    words = set(re.findall("[A-Z]+", written[:80].upper()))
    named = [projection for projection, known in VIEWS["words"].items() if words & {*known}]
    if "decubitus" in named:
        return "decubitus"
    if "frontal" in named and "lateral" in named:
        return ""
    return named[0] if named else ""


def is_frontal_task(views: Iterable[str]) -> bool:
    """Whether lateral views are set aside: unless the source states a lateral view for every record."""
    return any(name_projection(view) != "lateral" for view in views)
