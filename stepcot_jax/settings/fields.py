"""Nested mappings into frozen dataclasses whose fields say what they accept; every refusal names the key in full."""

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from stepcot_jax.host.errors import BadInput

Made = TypeVar("Made")


def number(*, least: float | None = None, above: float | None = None, most: float | None = None) -> Any:
    """A field whose number, or each of whose numbers, has bounds."""
    return dataclasses.field(metadata={"least": least, "above": above, "most": most})


def share() -> Any:
    """A field for a number from 0 to 1."""
    return number(least=0, most=1)


def seed() -> Any:
    """A field for a random seed."""
    return number(least=0, most=2**32 - 1)  # beyond, two seeds give the same random numbers


def make(cls: type[Made], found: Any, where: str) -> Made:
    """An instance of a dataclass from a mapping, and of its dataclass fields from the mappings below.

    Args:
      cls: the dataclass; its fields are numbers, texts, booleans, Literals, tuples of these, or dataclasses.
      found: a ConfigDict or any mapping.
      where: the full name of what `found` stands for, such as "config.data".

    Raises:
      BadInput: a key is unknown or missing, or a value has the wrong type or is out of range.
    """
    return _make(cls, found, where, cls)


def describe_key(cls: type, key: str) -> str:
    """What a key accepts, in words.

    Args:
      cls: the dataclass of all settings.
      key: its full name, such as "config.training.batch_size".

    Raises:
      BadInput: there is no such key; the nearest is named.
    """
    hint: Any = cls
    metadata: Mapping[str, Any] = {}
    where, *names = key.split(".")
    for name in names:
        fields = {field.name: field for field in dataclasses.fields(hint)} if dataclasses.is_dataclass(hint) else {}
        if name not in fields:
            raise _unknown(name, fields, where, cls)
        hint, metadata, where = typing.get_type_hints(hint)[name], fields[name].metadata, f"{where}.{name}"
    return _describe(hint, metadata)


def _unknown(name: Any, accepted: Iterable[str], where: str, root: type) -> BadInput:
    """The refusal of a key that is not among those accepted below `where`."""
    accepted = list(accepted)
    if not accepted:
        return BadInput(f"{where}.{name}: found an unknown key, accepted is {where} alone; nearest: {where}")
    elsewhere = [key for key in _all_keys(root, where.partition(".")[0]) if key.rpartition(".")[2] == name]
    near = difflib.get_close_matches(str(name), accepted, n=1, cutoff=0.6)
    if near or not elsewhere:
        near = near or difflib.get_close_matches(str(name), accepted, n=1, cutoff=0.0)
        elsewhere = [f"{where}.{near[0]}"]
    return BadInput(
        f"{where}.{name}: found an unknown key, accepted are {', '.join(accepted)}; nearest: {' or '.join(elsewhere)}"
    )


def _all_keys(cls: Any, where: str) -> Iterator[str]:
    for name, hint in typing.get_type_hints(cls).items():
        yield f"{where}.{name}"
        if dataclasses.is_dataclass(hint):
            yield from _all_keys(hint, f"{where}.{name}")


def _make(cls: type, found: Any, where: str, root: type) -> Any:
    if not isinstance(found, Mapping) and not hasattr(found, "items"):
        raise BadInput(f"{where}: found {found!r}, accepted is a group of keys")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name in found:
        if name not in fields:
            raise _unknown(name, fields, where, root)
    hints = typing.get_type_hints(cls)
    values = {}
    for name, field in fields.items():
        if name not in found:
            raise BadInput(f"{where}.{name}: found nothing, accepted is {_describe(hints[name], field.metadata)}")
        if dataclasses.is_dataclass(hints[name]):
            values[name] = _make(hints[name], found[name], f"{where}.{name}", root)
        else:
            values[name] = _check(found[name], hints[name], field.metadata, f"{where}.{name}")
    return cls(**values)


def _check(found: Any, hint: Any, bounds: Mapping[str, Any], where: str) -> Any:
    """`found` as the hinted type, within its bounds."""
    refused = BadInput(f"{where}: found {found!r}, accepted is {_describe(hint, bounds)}")
    if typing.get_origin(hint) is tuple:
        if isinstance(found, str | bytes) or not isinstance(found, tuple | list):
            raise refused
        item = typing.get_args(hint)[0]
        try:
            return tuple(_check(value, item, bounds, where) for value in found)
        except BadInput:
            raise refused from None
    if typing.get_origin(hint) is Literal:
        if found in typing.get_args(hint):
            return found
        raise refused
    if hint is float and isinstance(found, int) and not isinstance(found, bool):
        found = float(found)
    if type(found) is not hint or (hint is float and not math.isfinite(found)):
        raise refused
    least, above, most = (bounds.get(name) for name in ("least", "above", "most"))
    if (least is not None and not found >= least) or (above is not None and not found > above):
        raise refused
    if most is not None and not found <= most:
        raise refused
    return found


def _describe(hint: Any, bounds: Mapping[str, Any]) -> str:
    """What a field accepts, in words."""
    if typing.get_origin(hint) is Literal:
        return " or ".join(repr(value) for value in typing.get_args(hint))
    if dataclasses.is_dataclass(hint):
        return "a group of keys"
    if typing.get_origin(hint) is tuple:
        return f"a tuple, each item {_describe(typing.get_args(hint)[0], bounds)}"
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
    words = {"least": "at least", "above": "above", "most": "at most"}
    limits = [f"{words[name]} {bounds[name]}" for name in words if bounds.get(name) is not None]
    return " ".join([names[hint], " and ".join(limits)]).strip()
