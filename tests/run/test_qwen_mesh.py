import jax
import numpy as np
import pytest
from oracles.random_params import largest
from run.small_qwen_run import differentiate, draw_rows, make_run, roll, start, tiny_published

from stepcot_jax.models import stacked_layers
from stepcot_jax.policies.records import CheckMarks

pytestmark = pytest.mark.slow
MESH = {"parallel.transform": "mesh", "parallel.num_devices": 4, "parallel.model_devices": 2}
EIGHT = {"parallel.transform": "mesh", "parallel.num_devices": 8, "parallel.model_devices": 2}
PASSES = {"parallel.num_passes": 2, "parallel.remat": True}
CHECKED = {"self_check.enabled": True, "self_check.context": "first"}
EVERY_PASS = {"parallel.gather_once": False, "parallel.scan_layers": False}
ONE_BY_ONE = {"parallel.scan_layers": False}
LOW_RANK = {"policy.low_rank": 4, "policy.low_rank_alpha": 1.0}


@pytest.fixture(scope="module", autouse=True)
def tiny_config(tmp_path_factory):
    """Three layers each, which are scanned; that of the tower in the middle has no windows."""
    with pytest.MonkeyPatch.context() as patch, tiny_published(tmp_path_factory.mktemp("config"), num_hidden_layers=3):
        patch.setattr(stacked_layers, "LEAST", 3)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made = {}

    def find(**changes):
        name = repr(sorted(changes.items()))
        if name not in made:
            made[name] = make_run(tmp_path_factory.mktemp("run") / "run", **changes)
        return made[name]

    return find


def errors(found, expected):
    return jax.tree.map(
        lambda one, two: float(np.linalg.norm(one - two) / max(np.linalg.norm(two), 0.01)), found, expected
    )


def of_projection(name, tree):
    """Return the kernel and the bias of the projection that a leaf's name is in."""
    for key in name[:-1]:
        tree = tree[key.key]
    return tree["kernel"], tree["bias"]


@pytest.mark.parametrize("meshes", [[{}, EVERY_PASS], [LOW_RANK]], ids=["all, or gathered in every pass", "low rank"])
def test_fine_tuning_on_a_mesh_in_passes(runs, meshes):
    alone = runs(**ONE_BY_ONE, **meshes[0])
    batch = draw_rows(alone)
    expected, wanted = differentiate(alone, "sft", start(alone), batch)
    assert LOW_RANK in meshes or min(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 1e-4
    for changes in meshes:
        divided = runs(**EIGHT, **PASSES, **changes)
        found, numbers = differentiate(divided, "sft", start(divided), batch)
        assert largest(errors(found, expected)) <= 1e-5
        assert numbers == pytest.approx(wanted, rel=1e-5)


def test_rollouts_and_optimisation_with_self_checks_on_a_mesh_in_passes(runs):
    def start_checking(run):
        """A state that closes most of its checks, and so tries again, sometimes with success."""
        return start(run, likely=CheckMarks.of(run.task.tokenizer).closes, seed=6)

    run = runs(**CHECKED, **ONE_BY_ONE)
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
    assert largest(errors(found, expected)) <= 1e-5
    assert numbers == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    assert min(numbers["self_check_loss"], numbers["kl"]) > 1e-3
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 1e-4


def test_preferences_on_a_mesh_in_passes(runs):
    """The replies of GRPO in pairs."""
    alone, divided = runs(**ONE_BY_ONE), runs(**MESH, **PASSES)
    rolled = roll(alone, start(alone))
    batch = {name: rolled[name] for name in ("images", "prompts", "lengths", "completions", "counted")}
    batch["paired"] = np.arange(len(batch["lengths"])) > 0
    expected, wanted = differentiate(alone, "dpo", start(alone), batch)
    found, numbers = differentiate(divided, "dpo", start(divided), batch)
    for name, error in jax.tree_util.tree_leaves_with_path(errors(found, expected)):
        if jax.tree_util.keystr(name).endswith("['bias']"):
            # Its gradient is what the terms of the kernel's leave of each other (next to nothing of a bias of all keys,
            # which a softmax hardly sees): its rounding is theirs.
            kernel, bias = (np.linalg.norm(leaf) for leaf in of_projection(name, expected))
            error *= max(bias, 0.01) / max(kernel, bias, 0.01)
        assert error <= 1e-5, name
    # A margin has the rounding of the sums that it subtracts.
    assert numbers == pytest.approx(wanted, rel=1e-5, abs=2e-5)
    assert largest(expected) > 1e-4
