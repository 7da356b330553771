"""Until which release JAX promises to read the programs of an export.

https://docs.jax.dev/en/latest/export/export.html#compatibility-guarantees: a program runs with releases up to six
months newer and three weeks older than the one that wrote it. What counts is the day on which jaxlib was released.
"""

import datetime
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.export
import jaxlib

MONTHS_LATER, WEEKS_EARLIER = 6, 3
"""JAX's promise: newest and oldest release that reads a program, counted from the release that wrote it."""

RELEASES = {
    "0.10.2": "2026-06-17",
    "0.11.0": "2026-07-16",
    "0.11.1": "2026-08-17",
    "0.11.2": "2026-09-17",
    "0.12.0": "2026-10-19",
    "0.12.0.1": "2026-10-21",
}
"""Days on which jaxlib was released on PyPI, for the versions that this package accepts."""

HEADING = "## Lifetime"

_SECTION = re.compile(rf"^{HEADING}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def describe_lifetime(version: str = jaxlib.__version__) -> dict[str, Any]:
    """Return which releases of jaxlib are promised to read what this one exports, for export.json.

    Args:
      version: of jaxlib. One that is newer than `RELEASES` is dated as the newest known release before it, since it
        came later: the promise then lasts longer than stated.

    >>> describe_lifetime("0.11.0")["read_by_jaxlib_until"]
    '2027-01-16'
    """
    known = max((each for each in RELEASES if _numbers(each) <= _numbers(version)), key=_numbers, default="0.10.2")
    released = datetime.date.fromisoformat(RELEASES[known])
    return {
        "jax": jax.__version__,
        "jaxlib": version,
        "jaxlib_released": released.isoformat(),
        "read_by_jaxlib_from": (released - datetime.timedelta(weeks=WEEKS_EARLIER)).isoformat(),
        "read_by_jaxlib_until": _add_months(released, MONTHS_LATER).isoformat(),
        "calling_convention": jax.export.maximum_supported_calling_convention_version,
    }


def write_lifetime(lifetime: Mapping[str, Any]) -> str:
    """Return the section of the card that says until when the programs are read."""
    since = "" if lifetime["jaxlib"] in RELEASES else " or later"
    return (
        f"{HEADING}\n\n"
        f"JAX promises to read the programs (`*.stablehlo`) with every jaxlib that is released until "
        f"**{lifetime['read_by_jaxlib_until']}**, and with those released since {lifetime['read_by_jaxlib_from']}: six "
        f"months newer and three weeks older than jaxlib {lifetime['jaxlib']}, released {lifetime['jaxlib_released']}"
        f"{since}, which wrote them (jax {lifetime['jax']}, calling convention {lifetime['calling_convention']}; "
        "[the promise](https://docs.jax.dev/en/latest/export/export.html#compatibility-guarantees)). The release of "
        "the jaxlib counts, not the day of use. Before updating past that date, "
        "`python -m stepcot_jax.export renew FOLDER` writes the programs anew from the tensors, which are plain "
        "safetensors and stay readable.\n"
    )


def replace_lifetime(card: str, lifetime: Mapping[str, Any]) -> str:
    """Return a card with its section on the lifetime replaced, or added at the end if it has none."""
    section = write_lifetime(lifetime)
    if _SECTION.search(card) is None:
        return f"{card.rstrip()}\n\n{section}"
    return _SECTION.sub(lambda _: f"{section}\n", card, count=1).rstrip() + "\n"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version; those of a development version are of the release that follows it."""
    return tuple(int(part) for part in re.match(r"[0-9.]*[0-9]", version)[0].split("."))  # type: ignore[index]


def _add_months(day: datetime.date, months: int) -> datetime.date:
    years, month = divmod(day.month - 1 + months, 12)
    first = day.replace(year=day.year + years, month=month + 1, day=1)
    last = (first.replace(day=28) + datetime.timedelta(days=4)).replace(day=1) - datetime.timedelta(days=1)
    return first.replace(day=min(day.day, last.day))
