import jax
import numpy as np
import pytest
from oracles.random_params import largest
from training import two_processes
from training.parallel_step import run

from stepcot_jax.host.errors import BadInput
from stepcot_jax.training.devices import Devices

pytestmark = pytest.mark.slow
SPREAD = {
    "pmap": {"num_devices": 8},
    "shard_map": {"transform": "shard_map", "num_devices": 4, "num_passes": 2, "remat": True},
}


def assert_same(found, expected):
    """Compare gradients and losses to 1e-5 of the largest entry of each."""
    for leaf, (path, wanted) in zip(found, jax.tree_util.tree_leaves_with_path(expected), strict=True):
        # A gradient is a difference of parameters, so the parameters' own rounding enters the tolerance.
        scale = max(np.abs(wanted).max(), 0.05)
        assert np.abs(leaf - wanted).max() <= 1e-5 * scale, jax.tree_util.keystr(path)


@pytest.mark.parametrize("name", SPREAD)
def test_losses_and_raw_gradients_are_those_of_one_device(name):
    gradients, metrics, _ = run(**SPREAD[name])
    expected, expected_metrics, _ = run()
    assert_same(jax.tree.leaves((gradients, metrics)), (expected, expected_metrics))
    for part in ("teacher", "student", "image_encoder", "student_projection"):
        assert largest(expected[part]) > 1e-3


def test_alignment_sees_the_whole_batch():
    # No device could compute this weight from its own four cases.
    weight = run(**SPREAD["pmap"])[1].losses["student"].alignment_weight
    assert (weight[:2] > 0).all()
    assert weight[2] == 0


@pytest.mark.parametrize(
    ("settings", "batch_size", "message"),
    [
        ({"num_devices": 9}, 18, r"config\.parallel\.num_devices: 9 "),
        ({"num_devices": 8}, 12, r"^config.sft.batch_size: 12 is not a multiple of 8"),
        ({"num_devices": 2, "num_passes": 4}, 12, "12 is not a multiple of 8"),
    ],
)
def test_batches_and_devices_that_do_not_fit_are_refused(settings, batch_size, message):
    with pytest.raises(BadInput, match=message):
        Devices(**settings).check_batch_size(batch_size, setting="config.sft.batch_size")


def test_two_processes_of_four_devices_find_what_one_device_finds(tmp_path):
    """And gather a tree that they divide on the first alone, which two_processes.py asserts."""
    two_processes.run_both(two_processes, "pmap", tmp_path / "found", num_devices=4)
    expected = run()[:2]
    for index in range(2):
        with np.load(tmp_path / f"found.{index}.npz") as found:
            assert_same([found[name] for name in found.files], expected)


def test_bfloat16_compute_keeps_parameters_and_losses_in_float32():
    gradients, metrics, _ = run(bfloat16=True)
    expected, expected_metrics, _ = run()
    assert {leaf.dtype for leaf in jax.tree.leaves((gradients, metrics))} == {np.dtype(np.float32)}
    assert metrics.losses["student"].total == pytest.approx(float(expected_metrics.losses["student"].total), rel=0.05)
    found, wanted = (np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in (gradients, expected))
    assert not np.array_equal(found, wanted)
    cosine = found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted)
    assert cosine > 0.98
