"""Parameters and best steps from checkpoints, without the run that wrote them."""

import contextlib
import math
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from stepcot_jax.host.errors import BadInput
from stepcot_jax.training.checkpoints import Best, describe_damage, saved_steps
from stepcot_jax.training.state import Params

MOST_BYTES = 4 * 2**30
"""Largest size of parameters: ten times that of the largest network that is trained from random weights."""


def read_best(folder: pathlib.Path) -> tuple[int, dict[str, Best]]:
    """Return the latest saved step below a folder, and the best of each network until then."""
    steps = saved_steps(folder)
    if not steps:
        raise BadInput(f"{folder}: no checkpoints; expected the workdir of a run that has finished an epoch")
    latest = folder.resolve() / str(steps[-1])
    try:
        progress = ocp.JsonCheckpointHandler().restore(latest / "progress")
        best = {name: Best(float(entry["score"]), int(entry["step"])) for name, entry in progress["best"].items()}
    except Exception as error:  # Orbax raises many kinds on damaged files
        raise BadInput(describe_damage(latest, error)) from None
    return steps[-1], best


def restore_params(
    folder: pathlib.Path,
    step: int,
    *,
    parts: tuple[str, ...] | None = None,
    like: Any = None,
    most_bytes: int = MOST_BYTES,
) -> Params:
    """Return the parameters of a saved step, without the optimizer states.

    Args:
      like: shapes and places of all parts, which are then put on those devices; None for NumPy arrays.
    """
    if step not in saved_steps(folder):
        raise BadInput(f"{folder}: there is no checkpoint {step}; found {saved_steps(folder)}")
    checkpoint = folder.resolve() / str(step)
    handler = ocp.PyTreeCheckpointHandler()
    try:
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
            handler.metadata(checkpoint / "state").tree["params"],
        )
        if parts is not None:
            shapes = _pick(checkpoint, shapes, parts)
        if like is None:
            _check_bytes(checkpoint, shapes, most_bytes)
        wanted = {"params": shapes if like is None else like}
        restore = jax.tree.map(
            lambda leaf: (
                ocp.RestoreArgs(restore_type=np.ndarray)
                if like is None
                else ocp.ArrayRestoreArgs(sharding=leaf.sharding, dtype=leaf.dtype)
            ),
            wanted,
        )
        arguments = ocp.args.PyTreeRestore(item=wanted, restore_args=restore, partial_restore=True)
        with _quiet_if_failing():
            params: Params = handler.restore(checkpoint / "state", args=arguments)["params"]
    except BadInput:
        raise
    except Exception as error:  # Orbax and TensorStore raise many kinds on damaged files
        raise BadInput(describe_damage(checkpoint, error)) from None
    finally:
        handler.close()
    return params


def _pick(checkpoint: pathlib.Path, shapes: Params, parts: tuple[str, ...]) -> Params:
    missing = [name for name in parts if name not in shapes]
    if missing:
        raise BadInput(f"{checkpoint}: there is no part {missing[0]!r}; found {', '.join(sorted(shapes))}")
    return {name: shapes[name] for name in parts}


@contextlib.contextmanager
def _quiet_if_failing() -> Iterator[None]:
    """Silence the tracebacks of reads that outlive a failed one.

    TensorStore reports them to an event loop that Orbax has closed by then. After a failure the hook stays, since the
    end of the last read is unknown.
    """
    tell = sys.unraisablehook

    def tell_others(found: Any) -> None:
        if not (isinstance(found.exc_value, RuntimeError) and str(found.exc_value) == "Event loop is closed"):
            tell(found)

    sys.unraisablehook = tell_others
    yield
    sys.unraisablehook = tell


def _check_bytes(checkpoint: pathlib.Path, shapes: Params, most_bytes: int) -> None:
    num_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    if num_bytes > most_bytes:
        raise BadInput(f"{checkpoint}: the parameters take {num_bytes} bytes; the limit is {most_bytes}")
