"""Bounds on programs of a large policy, compiled for 8 H100 on a machine without one, and the document's tables."""

import json
import math
import os
import pathlib

import pytest

from benchmarks import compiled as command
from benchmarks.scaling_tables import fill

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL, DATA, LAYERS, WIDTH, KV_WIDTH = 4, 2, 2, 3584, 512


def figures_of(case, *, devices=DATA * MODEL, **sizes):
    folder = os.environ.get("STEPCOT_CUDA", "")
    if not folder:
        pytest.skip("needs the compiler for H100: STEPCOT_CUDA=$(bash .ci/compilers PYTHON cuda)")
    return command.compile_apart(f"h100x{devices}", case, folder, **sizes)


def compiled(case):
    figures = figures_of(case, layers=LAYERS)
    return figures["looped"], [size for size in figures["leaves"] if size > WIDTH], figures["temporary"]


def gathered(looped, leaves):
    """All-gathers in the loop whose result is a parameter, or its share along the axis `model`."""
    sizes = {size // parts for size in leaves for parts in (1, MODEL)}
    return [sizes_of for kind, sizes_of, _ in looped if kind == "all-gather" and sizes & set(sizes_of)]


@pytest.mark.slow
def test_decoding_gathers_neither_weights_nor_caches_and_sends_little():
    looped, leaves, _ = compiled("decode")
    rollouts = 128 * 8 // DATA
    caches = [rollouts * parts * slots * KV_WIDTH for slots in (300, 400) for parts in (1, DATA)]
    assert not gathered(looped, [*leaves, *caches])
    outputs = [size for kind, sizes, size in looped if kind == "all-reduce" and rollouts * WIDTH in sizes]
    assert len(outputs) == 2 * LAYERS + 1  # attention and MLP of each layer, and the embedding
    assert sum(size for _, _, size in looped) - sum(outputs) < 2e6
    assert math.isclose(sum(outputs), len(outputs) * rollouts * WIDTH * 2)  # bfloat16


@pytest.mark.slow
def test_passes_of_an_update_gather_no_weight():
    looped, leaves, _ = compiled("sft")
    assert sum(kind == "reduce-scatter" for kind, _, _ in looped)  # of the gradients: it is the loop over passes
    assert not gathered(looped, leaves)


@pytest.mark.slow
def test_all_layers_are_a_loop_and_no_second_copy():
    """The operations are what the compiler's seconds grow with."""
    figures = figures_of("sft", layers=28, vision_layers=32)
    assert figures["operations"] <= 40_000  # 35,000; 77,500 with one layer after another
    assert figures["temporary"] <= 12e9  # 12.0 with one layer after another
    leaves = [size for size in figures["leaves"] if size > WIDTH]
    assert not gathered(figures["looped"], leaves + [28 * size for size in leaves])
    gradient = WIDTH * 18_944 // (MODEL * DATA)  # of one matrix of SwiGLU: each layer sums and divides its own
    assert any(kind == "reduce-scatter" and gradient in sizes for kind, sizes, _ in figures["looped"])


@pytest.mark.slow
def test_the_joint_step_of_a_gpu_has_no_loop():
    figures = figures_of("joint", devices=1)
    assert figures["kernels"] <= 1600
    assert not figures["turn_kernels"]


@pytest.mark.slow
def test_a_chunk_of_self_checks_fits():
    """96 contexts of MEDSAGE: 1,450 tokens, and replies of 1,300."""
    assert compiled("self_check")[2] <= 12e9


def test_the_document_has_the_figures_tables():
    figures = json.loads((ROOT / "benchmarks" / "compiled.json").read_text(encoding="utf-8"))
    document = (ROOT / "docs" / "results" / "large_policies.md").read_text(encoding="utf-8")
    assert set(figures) == set(command.TARGETS)
    assert fill(document, command.make_tables(figures)) == document


def test_a_compiler_that_cannot_be_had_is_said_in_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("STEPCOT_LIBTPU", raising=False)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "compilers").write_text("echo 'note: libtpu cannot be had' >&2; exit 1", encoding="utf-8")
    assert command.main(["--target", "v5e:4x4", "--case", "joint"]) == 1
    assert capsys.readouterr().err == "v5e:4x4: note: libtpu cannot be had\n"
