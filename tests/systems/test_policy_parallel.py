import jax
import numpy as np
import pytest
from oracles.random_params import largest
from systems import two_policy_processes
from systems.policy_step import run, sample
from systems.test_self_check import UNEVEN, attempts
from systems.two_policy_processes import CHOICES
from training.two_processes import run_both

NAMED = {"sft": {"reduction": "parts", "pack_length": 0}, "grpo": {"scale": "batch", "length_norm": "token_mean"}}
"""Other reductions than the default ones, which span the global batch too."""
SPREAD = {"sft": {"num_devices": 8}, "grpo": {"transform": "shard_map", "num_devices": 8}}
PASSES = {"num_devices": 2, "num_passes": 2}


def assert_same(found, expected):
    """Compare gradients to 1e-5 of the norm of each; those of float64 differ by up to 1e-5 of the largest entry."""
    for (path, wanted), leaf in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True):
        norm = max(np.linalg.norm(wanted), 0.01)
        assert np.linalg.norm(leaf - wanted) <= 1e-5 * norm, jax.tree_util.keystr(path)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["sft", "grpo"])
def test_raw_gradients_are_those_of_one_device(job):
    gradients, numbers = run(job, **SPREAD[job])
    expected, wanted = run(job)
    assert_same(gradients, expected)
    assert numbers == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    for part, leaves in expected.items():
        assert largest(leaves) > 1e-3, part


@pytest.mark.slow
@pytest.mark.parametrize("job", ["sft", "grpo"])
def test_other_reductions_in_passes_span_the_global_batch(job):
    transform = "shard_map" if job == "sft" else "pmap"
    gradients, numbers = run(job, transform, **PASSES, **NAMED[job])
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
    run_both(two_policy_processes, "shard_map", tmp_path / "found", num_devices=2)
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
    checked = attempts(UNEVEN, self_check__context="first")
    for name in ("tokens", "kinds"):
        both = np.concatenate([half[f"checks/{name}"] for half in halves])
        np.testing.assert_array_equal(both, getattr(checked, name))
    gradients, numbers = run("grpo")
    for half in halves:
        assert half["loss"] == pytest.approx(numbers["loss"], rel=1e-5)
        for place, wanted in enumerate(jax.tree.leaves(gradients)):
            norm = max(np.linalg.norm(wanted), 0.01)
            assert np.linalg.norm(half[f"gradient/{place}"] - wanted) <= 1e-5 * norm, place
