"""Values of a caller of `sc.fit` that no setting describes: a system, networks, optimizers, parts of the loss.

Their names are written next to settings.json: a resumed run is compared with them, and commands that need the values
refuse the run.
"""

import pathlib
from typing import Any

import msgspec

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.own_folder import load, save

GIVEN_FILE = "given.json"


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the caller's values; all empty for a run from settings."""

    system: str = ""  # class of the system, such as "mine.Mine"
    networks: tuple[str, ...] = ()  # whose class or encoder settings cannot name
    optimizers: tuple[str, ...] = ()  # networks with an optimizer of the caller
    parts: dict[str, float] = {}  # weights of the further parts of the loss
    rewards: dict[str, float] = {}  # weights of the caller's rewards
    features: tuple[str, ...] = ()  # "prompts" or "answer_weights" of the caller

    def __bool__(self) -> bool:
        return self != Given()


def name_class(value: Any) -> str:
    """Return module and name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def read_given(workdir: pathlib.Path) -> Given:
    """Return the caller's values of a run; an empty `Given` for a run from settings."""
    path = workdir / GIVEN_FILE
    return load(path, Given) if path.is_file() else Given()


def write_given(workdir: pathlib.Path, given: Given) -> None:
    """Write the caller's values of a run; no file if there are none."""
    path = workdir / GIVEN_FILE
    if given:
        save(path, given)
    else:
        path.unlink(missing_ok=True)


def check_same_given(workdir: pathlib.Path, given: Given) -> None:
    """Refuse to resume a run with other parts, rewards, networks or systems than it started with."""
    before = read_given(workdir)
    for kind in ("parts", "rewards"):
        old, new = getattr(before, kind), getattr(given, kind)
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                had, has = (f"weight {x[name]:g}" if name in x else "no such" for x in (old, new))
                raise BadInput(f"{workdir}: {kind}[{name!r}]: the run started with {had}, now {has}; use the same")
    for kind in ("system", "networks", "optimizers", "features"):
        old, new = getattr(before, kind), getattr(given, kind)
        if old != new:
            had, has = (value or "those of settings" for value in (old, new))
            raise BadInput(f"{workdir}: {kind}: the run started with {had}, now {has}; use the same")


def check_readable(workdir: pathlib.Path) -> None:
    """Refuse a run whose networks only its caller can make."""
    given = read_given(workdir)
    if given.system or given.networks:
        named = given.system or f"its own {' and '.join(given.networks)}"
        raise BadInput(f"{workdir}: trained by sc.fit with {named}; sc.load(workdir, system=...) reads it")
