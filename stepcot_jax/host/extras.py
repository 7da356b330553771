"""Extras: what `stepcot_jax.contrib` or another package registers as entry points, found by kind and name.

An entry point of the group `stepcot_jax.extras` is called KIND.NAME. The kinds, and what each names:

- command: a module with `main()`, run as `stepcot NAME`;
- format: `(workdir, out, *, models, say) -> report`, a format of exports;
- output: what `predict` writes beside its readings;
- publisher: a module with `check_account`, `push_export`, `describe_address` and `main`;
- scheme: `(address) -> folder`, for addresses NAME://... of runs and exports;
- writer: `(workdir, *, project, title, mode, run_id, settings) -> training.log.Logger`.
"""

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import install_extra

GROUP = "stepcot_jax.extras"


@functools.cache
def list_extras(kind: str) -> dict[str, EntryPoint]:
    """Return the registered extras of a kind by name, without importing them."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return {point.name.partition(".")[2]: point for point in points if point.name.startswith(f"{kind}.")}


def find_extra(kind: str, name: str, *, packages: str) -> Any:
    """Import an extra.

    Args:
      packages: the optional dependencies of pyproject.toml that its own form needs, such as "onnx".
    """
    point = list_extras(kind).get(name)
    if point is None:
        raise BadInput(f"{name}: this {kind} is an extra that is not installed: {install_extra(packages)}")
    return point.load()
