"""Check golden numbers: does this machine compute what the authors' code computes?

Prints one JSON line per group, at the highest precision of the device's matrix products; exits with 1 if any fails.
"""

import argparse
import functools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from stepcot_jax.export.authors import NETWORKS, to_torch_networks
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.tools.conformance.golden import Golden, Meta, groups
from stepcot_jax.tools.options import local_path

if TYPE_CHECKING:
    from stepcot_jax.tools.conformance.computation import Computation, Numbers

Pairs = Iterator[tuple[Any, Any]]


@functools.lru_cache(maxsize=8)
def _computation(meta: Meta) -> "Computation":
    # Imported here, as below: jax takes seconds, which --help does not need.
    from stepcot_jax.tools.conformance.computation import Computation

    return Computation(meta)


def _pairs(golden: Golden, numbers: "Numbers", key: str) -> Pairs:
    """Yield computed and expected numbers of a key, for a parameter tree one tensor at a time."""
    if not isinstance(numbers[key], dict):
        yield numbers[key], golden.arrays[key]
        return
    theirs = {ours: name for name, ours in NETWORKS.items()}
    for ours, tree in numbers[key].items():
        computed, prefix = to_torch_networks({ours: tree})[theirs[ours]], f"{key}/{theirs[ours]}"
        expected = golden.under(prefix)
        if missing := sorted(set(computed) - set(expected)):
            keys = ", ".join(f"{prefix}/{name}" for name in missing)
            raise BadInput(f"{golden.path} lacks the keys {keys}")
        if unused := sorted(set(expected) - set(computed)):
            raise BadInput(f"{golden.path}, {prefix}: unknown weights {', '.join(unused)}")
        yield from ((computed[name], expected[name]) for name in expected)


def max_error(pairs: Pairs) -> float:
    """Return the largest error over all pairs; infinite if shapes differ or a number is not finite."""
    worst = 0.0
    for computed, expected in pairs:
        computed, expected = np.asarray(computed, np.float64), np.asarray(expected, np.float64)
        if computed.shape != expected.shape or not (np.isfinite(computed).all() and np.isfinite(expected).all()):
            return float("inf")
        error = np.abs(computed - expected) / np.maximum(1.0, np.abs(expected))
        worst = max(worst, float(np.max(error, initial=0.0)))
    return worst


def check(path: str) -> Iterator[dict[str, Any]]:
    """Yield the result of every group of one file, as printed."""
    import jax
    import jax.numpy as jnp

    golden = Golden(path)
    computation = _computation(golden.meta)
    params, inputs = jax.tree.map(jnp.asarray, (golden.params, golden.inputs()))
    with jax.default_matmul_precision("highest"):
        numbers = computation.evaluate(params, inputs) | computation.train(params, inputs)
    numbers = jax.device_get(numbers)
    for name, tolerance, keys in groups(golden.meta):
        error = max(max_error(_pairs(golden, numbers, key)) for key in keys)
        yield {
            "file": path,
            "group": name,
            "max_error": error if np.isfinite(error) else None,
            "tolerance": tolerance,
            "ok": error <= tolerance,
        }


def main(arguments: list[str] | None = None) -> int:
    """Check the files of a command line."""
    parser = argparse.ArgumentParser(
        prog="stepcot conformance",
        description="Check this machine's numbers against golden numbers of the authors' code.",
    )
    parser.add_argument("files", nargs="+", type=local_path, metavar="FILE.npz")
    all_ok = True
    for path in parser.parse_args(arguments).files:
        for result in check(str(path)):
            print(json.dumps(result), flush=True)
            all_ok = all_ok and result["ok"]
    return 0 if all_ok else 1


if __name__ == "__main__":
    run_tool(main)
