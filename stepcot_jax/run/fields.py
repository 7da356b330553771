"""Convert nested mappings to frozen dataclasses with msgspec; every error names the setting in full."""

import contextlib
import dataclasses
import difflib
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.ranges import MOST
from stepcot_jax.host.text import shorten

Made = TypeVar("Made")


@contextlib.contextmanager
def naming(key: str) -> Iterator[None]:
    """Add the name of a setting to errors about its value."""
    try:
        yield
    except BadInput as error:
        raise type(error)(f"{key}: {error}") from None


def make(cls: type[Made], config: Any, where: str) -> Made:
    """Return a dataclass, with the dataclasses in its fields, from nested mappings."""
    plain = config.to_dict() if hasattr(config, "to_dict") else config
    _check_keys(cls, plain, where, cls)
    try:
        return msgspec.convert(plain, cls)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, BadInput):  # from a dataclass's __post_init__
            raise error.__cause__ from None
        path = re.search(r" - at `\$\.?([\w.]*)", str(error))
        names = path[1].split(".") if path else []
        value = plain
        for name in names:
            value = value[name]
        key = ".".join([where, *names])
        raise BadInput(f"{key}: {shorten(repr(value))} is not {describe_key(cls, key)}") from None


def describe_key(cls: type, key: str) -> str:
    """Return a description of the values that a setting accepts."""
    hint: Any = cls
    where, *names = key.split(".")
    for name in names:
        hints = typing.get_type_hints(hint, include_extras=True) if dataclasses.is_dataclass(hint) else {}
        if name not in hints:
            raise _unknown(name, list(hints), where, cls)
        hint, where = hints[name], f"{where}.{name}"
    return _describe(hint)


def _check_keys(cls: Any, group: Any, where: str, root: type) -> None:
    if not isinstance(group, Mapping):
        raise BadInput(f"{where}: {shorten(repr(group))} is not a group of settings")
    hints = typing.get_type_hints(cls, include_extras=True)
    for name in group:
        if name not in hints:
            raise _unknown(name, list(hints), where, root)
    for name, hint in hints.items():
        if name not in group:
            raise BadInput(f"{where}.{name} is required ({_describe(hint)})")
        if dataclasses.is_dataclass(hint):
            _check_keys(hint, group[name], f"{where}.{name}", root)


def _unknown(name: Any, siblings: list[str], where: str, root: type) -> BadInput:
    """Return the error for a key that is not one of `siblings`, the keys of the group `where`."""
    key = f"{where}.{shorten(str(name))}"
    if not siblings:
        return BadInput(f"{key} is not a setting; did you mean {where}?")
    elsewhere = [
        full_name for full_name in _all_keys(root, where.partition(".")[0]) if full_name.rpartition(".")[2] == name
    ]
    near = difflib.get_close_matches(shorten(str(name)), siblings, n=1, cutoff=0.6)
    if near or not elsewhere:
        near = near or difflib.get_close_matches(shorten(str(name)), siblings, n=1, cutoff=0.0)
        elsewhere = [f"{where}.{near[0]}"]
    return BadInput(f"{key} is not a setting; did you mean {' or '.join(elsewhere)}? ({where}: {', '.join(siblings)})")


def _all_keys(cls: Any, where: str) -> Iterator[str]:
    for name, hint in typing.get_type_hints(cls).items():
        yield f"{where}.{name}"
        if dataclasses.is_dataclass(hint):
            yield from _all_keys(hint, f"{where}.{name}")


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        values = [repr(value) for value in typing.get_args(hint)]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    if dataclasses.is_dataclass(hint):
        return "a group of settings"
    kind, *metas = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    if typing.get_origin(kind) is tuple:
        item, *rest = typing.get_args(kind)
        number = "" if rest == [...] else f" of {1 + len(rest)} items"
        most = f" of 1 to {metas[0].max_length} items" if metas else number
        return f"a tuple{most}, each item {_describe(item)}"
    words = {int: "a whole number", float: "a finite number", bool: "True or False", str: "a string"}[kind]
    bounds = {name: getattr(metas[0], name) for name in ("ge", "gt", "le")} if metas else {}
    limits = [
        f"{symbol} {bounds[name]}"
        for name, symbol in (("ge", ">="), ("gt", ">"), ("le", "<="))
        if bounds.get(name) is not None and abs(bounds[name]) != MOST
    ]
    return " ".join([words, " and ".join(limits)]).strip()
