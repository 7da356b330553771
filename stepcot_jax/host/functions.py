"""Whether a caller's function takes what it will be given, told from its parameters before the first call."""

import inspect
from collections.abc import Collection, Sequence
from typing import Any

_NOT_PLAIN = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)


def find_misfit(
    function: Any, expected: Sequence[str], *, foreign: Collection[str] = (), by_keyword: bool = False
) -> str:
    """Return why a function cannot be called with these arguments, or must not; "" if it can or nothing is known.

    Parameters may have any names, except those in `foreign` and those of `expected` in another order.
    """
    if not callable(function) or isinstance(function, type):
        return f"is {function!r:.80}, no function"
    if any(is_kind(function) or is_kind(getattr(function, "__call__", None)) for is_kind in _NOT_PLAIN):  # noqa: B004
        return "is async or a generator, no plain function"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin
        return ""
    nothing = inspect.Parameter.empty
    plain = [each.replace(annotation=nothing) for each in signature.parameters.values()]
    taken = f"takes {signature.replace(parameters=plain, return_annotation=nothing)}"
    try:
        bound = signature.bind(**dict.fromkeys(expected)) if by_keyword else signature.bind(*expected)
    except TypeError:
        return taken
    stems = [name[:4] for name in expected]  # "reply" and "replies" are one name
    for position, each in enumerate(signature.parameters[name] for name in bound.arguments):
        name = each.name.strip("_").lower()
        is_elsewhere = name[:4] in stems and stems.index(name[:4]) != position
        is_option = each.default is not None and each.default is not nothing
        if not by_keyword and (name in foreign or is_elsewhere or is_option):
            return taken
    return ""
