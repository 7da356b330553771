"""Bounds on programs of a large policy, compiled for 8 H100 on a machine without one."""

import json
import math
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL, DATA, LAYERS, WIDTH, KV_WIDTH = 4, 2, 2, 3584, 512


def look_at(case):
    """Print each collective of a loop: kind, elements of its arrays, bytes; and the elements of all parameters."""
    import jax

    from benchmarks.compiled import Sizes, compile_case, describe_h100

    plan = compile_case(case, Sizes(layers=LAYERS), describe_h100(DATA * MODEL))
    looped = [[each.kind, each.sizes, each.num_bytes] for each in plan.collectives if each.in_loop]
    leaves = [leaf.size for leaf in jax.tree.leaves(plan.params) if leaf.ndim > 1 and leaf.size > WIDTH]
    print(json.dumps([looped, leaves]))


def compiled(case):
    folder = os.environ.get("STEPCOT_CUDA", "")
    if not folder:
        pytest.skip("needs the compiler for H100: STEPCOT_CUDA=$(bash .ci/compilers PYTHON cuda)")
    variables = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    variables |= {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    variables["PYTHONPATH"] = os.pathsep.join([folder, str(pathlib.Path(__file__).parent), str(ROOT)])
    code = f"from test_compiled import look_at; look_at({case!r})"
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    looped, leaves = json.loads(done.stdout.splitlines()[-1])
    return looped, leaves


def gathered(looped, leaves):
    """All-gathers in the loop whose result is a parameter, or its share along the axis `model`."""
    sizes = {size // parts for size in leaves for parts in (1, MODEL)}
    return [sizes_of for kind, sizes_of, _ in looped if kind == "all-gather" and sizes & set(sizes_of)]


@pytest.mark.slow
def test_decoding_gathers_neither_weights_nor_caches_and_sends_little():
    looped, leaves = compiled("decode")
    rollouts = 128 * 8 // DATA
    caches = [rollouts * parts * slots * KV_WIDTH for slots in (300, 400) for parts in (1, DATA)]
    assert not gathered(looped, [*leaves, *caches])
    outputs = [size for kind, sizes, size in looped if kind == "all-reduce" and rollouts * WIDTH in sizes]
    assert len(outputs) == 2 * LAYERS + 1  # attention and MLP of each layer, and the embedding
    assert sum(size for _, _, size in looped) - sum(outputs) < 2e6
    assert math.isclose(sum(outputs), len(outputs) * rollouts * WIDTH * 2)  # bfloat16


@pytest.mark.slow
def test_passes_of_an_update_gather_no_weight():
    looped, leaves = compiled("sft")
    assert sum(kind == "reduce-scatter" for kind, _, _ in looped)  # of the gradients: it is the loop over passes
    assert not gathered(looped, leaves)
