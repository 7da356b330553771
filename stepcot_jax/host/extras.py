"""Extras: entry points that `stepcot_jax.contrib` or another package registers, looked up by kind and name.

An entry point of the group `stepcot_jax.extras` is called KIND.NAME. The kinds, and what each names:

- command: a module with `main()`, run as `stepcot NAME`;
- engine: `(*, address, num_workers, **resources) -> MapBlocks`, processes for `--engine=NAME`;
- format: `(workdir, out, *, models, say) -> report`, a format of exports;
- output: a further output of `predict`, written with its readings;
- publisher: a module with `check_account`, `push_export`, `describe_address` and `main`;
- remote: `(address, *, say, part, only_adds)`, for a workdir or feature store NAME://..., with the attribute `folder`,
  where a run works, and three hooks: `start()` downloads the contents of the address, `saved()` uploads changes after
  a checkpoint or a shard, `finish()` at the end;
- scheme: `(address, folder) -> path`, downloads what NAME://... names to a folder, or to a cache if the folder is None;
- writer: `(workdir, *, project, title, mode, run_id, settings) -> training.log.Logger`.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
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
    """Import an extra; `packages` names the optional dependencies that ours needs, such as "onnx"."""
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
