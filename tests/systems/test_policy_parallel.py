"""Updates of a policy on one device, several devices and several passes: the same rollouts, numbers and gradients."""

import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from systems.policy_step import run, sample
from systems.two_policy_processes import CHOICES

SPREAD = {
    "pmap": {"num_devices": 8},
    "devices and passes": {"transform": "shard_map", "num_devices": 2, "num_passes": 2},
}
NAMED = {"sft": {"reduction": "parts", "pack_length": 0}, "grpo": {"scale": "batch", "length_norm": "token_mean"}}


def assert_same(found, expected):
    """Compare gradients to 1e-5 of the norm of each; those of float64 differ by up to 1e-5 of the largest entry."""
    for (path, wanted), leaf in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True):
        norm = max(np.linalg.norm(wanted), 0.01)
        assert np.linalg.norm(leaf - wanted) <= 1e-5 * norm, jax.tree_util.keystr(path)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["sft", "grpo"])
@pytest.mark.parametrize("name", SPREAD)
def test_raw_gradients_are_those_of_one_device(job, name):
    gradients, numbers = run(job, **SPREAD[name])
    expected, wanted = run(job)
    assert_same(gradients, expected)
    assert numbers == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    for part, leaves in expected.items():
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(leaves)) > 1e-3, part


@pytest.mark.slow
@pytest.mark.parametrize("job", ["sft", "grpo"])
def test_other_reductions_span_the_global_batch(job):
    gradients, numbers = run(job, num_devices=4, num_passes=2, **NAMED[job])
    expected, wanted = run(job, **NAMED[job])
    assert_same(gradients, expected)
    assert numbers == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    assert numbers["loss"] != pytest.approx(run(job)[1]["loss"], rel=1e-2)


def test_rollouts_are_those_of_one_device():
    batch, numbers = sample("shard_map", 8)
    expected, wanted = sample()
    for name in ("completions", "counted", "advantages", "prompts", "lengths", "images"):
        np.testing.assert_array_equal(batch[name], expected[name])
    np.testing.assert_allclose(batch["old_log_probs"], expected["old_log_probs"], atol=1e-5)
    assert numbers == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
def test_two_processes_roll_out_and_learn_as_one_device_does(tmp_path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    environment = {**os.environ, "XLA_FLAGS": " ".join(["--xla_force_host_platform_device_count=2", *flags])}
    script = pathlib.Path(__file__).with_name("two_policy_processes.py")
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(port), str(index), "shard_map", tmp_path / "found"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    outputs = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    halves = [dict(np.load(tmp_path / f"found.{index}.npz")) for index in range(2)]
    for choice, changes in CHOICES.items():
        expected, numbers = sample(**changes)
        found = {
            name: np.concatenate([half[f"{choice}/{name}"] for half in halves])
            for name in ("completions", "counted", "old_log_probs", "advantages")
        }
        for name in ("completions", "counted"):
            np.testing.assert_array_equal(found[name], expected[name])
        for name in ("old_log_probs", "advantages"):
            np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
        for half in halves:  # each process has the mean over all prompts
            assert half[f"{choice}/reward"] == pytest.approx(numbers["rollouts/reward/total"], rel=1e-6)
    gradients, numbers = run("grpo")
    for half in halves:
        assert half["loss"] == pytest.approx(numbers["loss"], rel=1e-5)
        for place, wanted in enumerate(jax.tree.leaves(gradients)):
            norm = max(np.linalg.norm(wanted), 0.01)
            assert np.linalg.norm(half[f"gradient/{place}"] - wanted) <= 1e-5 * norm, place
