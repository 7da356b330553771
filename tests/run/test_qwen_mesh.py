"""Updates of a run on a mesh and in several passes: the rollouts and raw gradients of one device in one pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run.small_qwen_run import differentiate, draw_rows, make_run, roll, run_update, start, tiny_published

from stepcot_jax.policies.policy import policy_params
from stepcot_jax.policies.records import CheckMarks
from stepcot_jax.systems.grpo import NAME
from stepcot_jax.systems.sft import POLICY
from stepcot_jax.training.state import apply_gradients

pytestmark = pytest.mark.slow

MESH = {"parallel.transform": "mesh", "parallel.num_devices": 4, "parallel.model_devices": 2}
EIGHT = {"parallel.transform": "mesh", "parallel.num_devices": 8, "parallel.model_devices": 2}
PASSES = {"parallel.num_passes": 2, "parallel.remat": True}
CHECKED = {"self_check.enabled": True, "self_check.context": "first"}
LOW_RANK = {"policy.low_rank": 4, "policy.low_rank_alpha": 1.0}
HALF = {"training.compute_dtype": "bfloat16"}


@pytest.fixture(scope="module", autouse=True)
def tiny_config(tmp_path_factory):
    with tiny_published(tmp_path_factory.mktemp("config")):
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs by their changes."""
    made = {}

    def find(**changes):
        name = repr(sorted(changes.items()))
        if name not in made:
            made[name] = make_run(tmp_path_factory.mktemp("run") / "run", **changes)
        return made[name]

    return find


def errors(found, expected):
    """Norm of the difference over the norm of each gradient."""
    return jax.tree.map(
        lambda one, two: float(np.linalg.norm(one - two) / max(np.linalg.norm(two), 0.01)), found, expected
    )


@pytest.mark.parametrize("changes", [{}, LOW_RANK], ids=["all", "low rank"])
def test_fine_tuning_on_a_mesh_in_passes(runs, changes):
    alone, divided = runs(**changes), runs(**EIGHT, **PASSES, **changes)
    batch = draw_rows(alone)
    expected, wanted = differentiate(alone, "sft", start(alone), batch)
    found, numbers = differentiate(divided, "sft", start(divided), batch)
    assert max(jax.tree.leaves(errors(found, expected))) <= 1e-5
    assert numbers == pytest.approx(wanted, rel=1e-5)
    assert changes or min(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 1e-4


def test_rollouts_and_optimisation_with_self_checks_on_a_mesh_in_passes(runs):
    def start_checking(run):
        """A state that closes most of its checks, and so tries again."""
        return start(run, likely=CheckMarks.of(run.task.tokenizer).closes)

    run = runs(**CHECKED)
    batch = roll(run, start_checking(run))
    expected, wanted = differentiate(run, "grpo", start_checking(run), batch)
    run = runs(**MESH, **PASSES, **CHECKED)
    rolled = roll(run, start_checking(run))
    assert rolled.keys() == batch.keys() >= {"hidden"}
    for name in rolled.keys() - {"old_log_probs"}:
        np.testing.assert_array_equal(rolled[name], batch[name])
    np.testing.assert_allclose(rolled["old_log_probs"], batch["old_log_probs"], atol=1e-5)
    assert 0 < batch["check_success"].sum() < batch["check"].any(axis=-1).sum() < batch["check_success"].size
    assert len({row.tobytes() for row in batch["completions"].reshape(16, -1)}) > 8
    found, numbers = differentiate(run, "grpo", start_checking(run), batch)
    assert max(jax.tree.leaves(errors(found, expected))) <= 1e-5
    assert numbers == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    assert min(numbers["self_check_loss"], numbers["kl"]) > 1e-3
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 1e-4


def test_passes_in_bfloat16(runs):
    """Within 0.05 of each gradient's norm: bfloat16 has 8 bits, and each pass rounds its own sums."""
    whole, parts = runs(**EIGHT, **HALF), runs(**EIGHT, **HALF, **PASSES)
    batch = draw_rows(whole)
    expected, wanted = differentiate(whole, "sft", start(whole), batch)
    found, numbers = differentiate(parts, "sft", start(parts), batch)
    assert max(jax.tree.leaves(errors(found, expected))) <= 0.05
    assert numbers == pytest.approx(wanted, rel=1e-3)


TWICE = HALF | {"grpo.num_updates": 2, "grpo.learning_rate": 3e-3, "grpo.clip_low": 0.0, "grpo.clip_high": 0.0}
"""Two passes over the rollouts; any ratio but 1 is clipped, if the advantage has the sign of its logarithm."""


def pass_twice(update, state, batch, whole):
    """Of each of two passes, as `GrpoUpdate` makes them: log-ratios of all tokens, and the numbers."""
    batch = update.freeze(state.params, batch, whole)

    def one_pass(state, place):
        log_probs = update.log_probs(policy_params(state.params, POLICY), batch)
        numbers, gradients = update.gradients(state.params, batch, whole, is_first=place == 0)
        log_ratios = log_probs.reshape(batch["counted"].shape) - batch["old_log_probs"]
        return apply_gradients(state, NAME, update.optimizer, gradients), (log_ratios, numbers)

    return jax.lax.scan(one_pass, state, jnp.arange(2, dtype=jnp.int32))


def test_two_passes_over_the_rollouts_in_bfloat16(runs):
    """On a mesh in passes; the first has ratios of one, for any other would be clipped."""
    run = runs(**MESH, **PASSES, **TWICE)
    batch = roll(run, start(run))
    log_ratios, numbers = run_update(run, "grpo", pass_twice, start(run), batch)
    first, second = log_ratios[:, batch["counted"]]
    assert numbers["clipped"][0] == 0
    assert 0.3 < numbers["clipped"][1] < 1
    assert np.abs(first).max() < 0.05  # rounding between two programs
    assert np.abs(second).mean() > 0.1
    assert numbers["kl"][0] > 1e-3
