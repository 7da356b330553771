"""The scaling benchmark: its numbers against other derivations, and its tables against the document."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from benchmarks import scaling
from benchmarks.communication import read_collectives, totals
from benchmarks.scaling_sizes import Traffic, measure_store, read_result
from benchmarks.scaling_steps import SIZES, Problem, Size, measure_communication
from benchmarks.scaling_tables import fill, make_tables
from stepcot_jax.training.devices import AXIS, ONE_DEVICE, GlobalBatch
from stepcot_jax.training.state import TrainState

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "scaling.md"
NUMBERS = ROOT / "benchmarks" / "scaling.json"
TINY = Size("tiny", teacher_width=8, student_width=8, projection_width=4, image_width=6, text_width=8)


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
    """Optax adds integers to floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


class Toy(Problem):
    """A problem whose step compiles at once."""

    def make_state(self, key):
        return TrainState(step=jnp.int32(0), params={"x": jnp.ones(3)}, optimizers={}, key=jax.random.key_data(key))

    def make_update(self):
        def update(state, batch, whole=ONE_DEVICE):
            found = jnp.sum(whole.gather(batch["image_features"]) @ jnp.ones((6, 8)) @ batch["text_features"].T)
            params = {"x": state.params["x"] + whole.add_up(found)}
            return state.replace(step=state.step + 1, params=params), found

        return update

    trained_parameters = 3


@pytest.mark.parametrize("transform", ["pmap", "shard_map"])
def test_what_a_compiled_step_sends_is_counted(transform):
    row = measure_communication(Toy(TINY, answers=(3, 2), batch_size=8), transform=transform, num_devices=4)
    assert (row["transform"], row["num_devices"], row["batch_size"], row["num_steps"]) == (transform, 4, 8, 2)
    assert set(row["kinds"]) == {"all-gather", "all-reduce"}
    assert row["kinds"]["all-gather"]["bytes"] == 8 * 6 * 4
    assert row["kinds"]["all-reduce"]["bytes"] == 4


def test_traffic_of_two_devices_by_hand():
    """One of two sends half of what it has to reduce and half of what it has to return; the same for a gather."""
    traffic = Traffic(10, num_steps=3, projection_width=2)
    assert traffic.sent_gradient_bytes(2) == 40
    one_case = 4 * ((3 + 1) * 2 + 3) + 4 * 2  # four projections and three labels there, one gradient back
    assert traffic.sent_alignment_bytes(2, 6) == 3 * one_case
    assert traffic.gram_bytes(4) == 2 * 3 * 16 * 4
    assert traffic.alignment_flop(4) == (2 * 3 + 3 * 2) * (2 * 4 * 4 * 2)


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


def test_a_stored_feature_is_its_numbers_and_its_key_and_a_result_is_read_from_its_row(tmp_path):
    cost = measure_store(num_images=2000, width=64)
    assert 64 * 4 + 32 < cost.file_bytes < 64 * 4 + 32 + 2
    assert 100 < cost.index_bytes < 600
    assert read_result(ROOT / "benchmarks" / "RESULTS.md", "clip_images_per_second") > 0
    (tmp_path / "results.md").write_text("| `a` | 4.5 | |\n")
    assert read_result(tmp_path / "results.md", "a") == 4.5
    with pytest.raises(ValueError, match="no row of 'b'"):
        read_result(tmp_path / "results.md", "b")


def test_a_document_is_filled_and_filled_again():
    document = "a\n<!-- table: x -->\nold\n<!-- end -->\nb\n<!-- table: y -->\n<!-- end -->\n"
    filled = fill(document, {"x": r"| \1 |" + "\n"})
    assert filled == document.replace("old", r"| \1 |")
    assert fill(filled, {"x": "old\n"}) == document
    with pytest.raises(ValueError, match="has 0 places for table 'z'"):
        fill(document, {"z": ""})


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


def test_numbers_of_other_parts_stay_and_tables_are_written(tmp_path, monkeypatch):
    numbers, document = tmp_path / "numbers.json", tmp_path / "scaling.md"
    before = json.loads(NUMBERS.read_text(encoding="utf-8"))
    numbers.write_text(json.dumps(before))
    document.write_text(DOCUMENT.read_text(encoding="utf-8"))
    monkeypatch.setitem(scaling.PARTS, "store", lambda options: {"file_bytes": 4000.0, "index_bytes": 1.0})
    scaling.main(["--only", "store", "--json", str(numbers), "--tables", str(document)])
    found = json.loads(numbers.read_text())
    assert found.pop("machine")
    assert found | {"machine": before["machine"]} == {**before, "store": {"file_bytes": 4000.0, "index_bytes": 1.0}}
    assert "| 10,000 | 40 MB |" in document.read_text()
