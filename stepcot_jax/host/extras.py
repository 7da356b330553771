"""Extras: entry points that `stepcot_jax.extras` or another package registers, looked up by kind and name.

An entry point of the group `stepcot_jax.extras` is called KIND.NAME. The kinds, and what each names:

- command: a module with `main()`, run as `stepcot NAME`;
- engine: `(*, address, num_workers, **resources) -> MapBlocks`, processes for `--engine=NAME`;
- publisher: a module with `check_account`, `push_export`, `describe_address` and `main`;
- remote: `(address, *, say, part, only_adds)`, for a workdir or feature store NAME://..., with the attribute `folder`,
  where a run works, and three hooks: `start()` downloads the contents of the address, `saved()` uploads changes after
  a checkpoint or a shard, `finish()` at the end;
- scheme: `(address) -> path`, downloads what NAME://... names to a cache;
- writer: `(workdir, *, project, title, is_offline, run_id, settings) -> training.log.Logger`.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeAlias

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import install_extra, one_line

GROUP = "stepcot_jax.extras"

MapBlocks: TypeAlias = Callable[[Sequence[Any], Callable[[], Callable[[Any], Any]]], Iterator[tuple[int, Any]]]
"""(blocks, factory) -> the position and result of each block of rows, as blocks finish.

The factory makes the function for a block and is called once in each process; both are pickled. A block may be
processed twice, after a process has died."""


_OURS = "stepcot_jax."
_LOG = logging.getLogger(__name__)


@functools.cache
def list_extras(kind: str) -> dict[str, EntryPoint]:
    """Return the registered extras of a kind by name, without importing them; of one name ours, else the first."""
    listed: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: (not point.value.startswith(_OURS), point.value)):
        of_kind, _, name = point.name.partition(".")
        if of_kind != kind:
            continue
        if name in listed or not name or not name.isprintable():
            _LOG.warning("the extra %r of %s is passed over: the name is taken, or no name", name, name_package(point))
        else:
            listed[name] = point
    return dict(sorted(listed.items()))


def name_package(point: EntryPoint) -> str:
    """Return the package that registers an extra."""
    return f"the package {point.dist.name}" if point.dist is not None else repr(point.value[:80])


def find_extra(kind: str, name: str, *, packages: str) -> Any:
    """Import an extra; `packages` names the optional dependencies that ours needs, such as "hub"."""
    point = list_extras(kind).get(name)
    if point is None:
        raise BadInput(f"{name}: this {kind} is an extra that is not installed: {install_extra(packages)}")
    try:
        return point.load()
    except BadInput:
        raise
    except (Exception, SystemExit) as error:  # another package's code
        advice = f"; {install_extra(packages)}" if point.value.startswith(_OURS) else ""
        problem = f"{type(error).__name__}: {one_line(error)}"
        raise BadInput(f"{name}: this {kind} of {name_package(point)} cannot be loaded ({problem}){advice}") from error


# Functions that a caller brings: whether they take what they will be given, told before the first call.


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
