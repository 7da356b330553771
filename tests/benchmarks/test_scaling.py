"""The scaling benchmark: its numbers against other derivations, and its tables against the document."""

import json
import pathlib

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from benchmarks.communication import read_collectives, totals
from benchmarks.scaling_sizes import Traffic
from benchmarks.scaling_steps import SIZES, Problem, Size
from benchmarks.scaling_tables import fill, make_tables
from stepcot_jax.training.devices import AXIS, GlobalBatch

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "results" / "scaling_notes.md"
NUMBERS = ROOT / "benchmarks" / "scaling.json"
TINY = Size("tiny", teacher_width=8, student_width=8, projection_width=4, image_width=6, text_width=8)


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
    """Optax adds integers to floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def check_sent(row, traffic):
    """That a program sends what `Traffic` says, to the byte, but for some losses that go with the gradients."""
    kinds, batch = row["kinds"], row["batch_size"]
    assert set(kinds) == {"all-reduce", "all-gather", "reduce-scatter"}
    assert 0 <= kinds["all-reduce"]["bytes"] - traffic.gradient_bytes < 1000
    sent = kinds["all-gather"]["sent_bytes"] + kinds["reduce-scatter"]["sent_bytes"]
    assert sent == traffic.sent_alignment_bytes(row["num_devices"], batch)


@pytest.mark.slow
def test_the_joint_step_sends_what_is_computed():
    """Before XLA has compiled it, which takes a quarter of a minute and changes nothing here."""
    problem, num_devices = Problem(TINY, answers=(3, 2), batch_size=4), 2
    mesh = Mesh(np.array(jax.devices()[:num_devices]), (AXIS,))
    update, (rows, text_features) = problem.make_update(), problem.make_batch()
    step = jax.shard_map(
        lambda state, rows, text: update(state, {**rows, "text_features": text}, GlobalBatch(AXIS)),
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(AXIS), PartitionSpec()),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    state = jax.eval_shape(problem.make_state, jax.random.key(0))
    program = jax.jit(step).lower(state, rows, text_features).compiler_ir("hlo").as_hlo_text()
    row = {"kinds": totals(read_collectives(program)), "num_devices": num_devices, "batch_size": 4}
    check_sent(row, Traffic(problem.trained_parameters, num_steps=2, projection_width=TINY.projection_width))


def test_the_document_is_what_the_numbers_make():
    if not NUMBERS.exists():
        pytest.skip("the benchmark has not been run")
    document = DOCUMENT.read_text(encoding="utf-8")
    assert fill(document, make_tables(json.loads(NUMBERS.read_text(encoding="utf-8")))) == document


def test_what_was_measured_to_be_sent_is_what_was_computed():
    rows = json.loads(NUMBERS.read_text(encoding="utf-8")).get("communication") if NUMBERS.exists() else None
    if rows is None:
        pytest.skip("the benchmark has not been run")
    assert {row["size"] for row in rows} == set(SIZES)
    for row in rows:
        width = SIZES[row["size"]].projection_width
        check_sent(row, Traffic(row["trained_parameters"], num_steps=row["num_steps"], projection_width=width))
