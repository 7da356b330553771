"""Whole runs of "chain_grpo": what they report, that readers load them, and that a resumed run is the same."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from memory_store import put_workdir
from run.small_run import LinearEncoder, assert_same, kill_at_entry, read_log, small_run

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.evaluation.consistency import make_rules
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading import trained_model
from stepcot_jax.reading.trained_model import read_default_model
from stepcot_jax.run import stored
from stepcot_jax.systems.chain_grpo import ChainGrpo, ChainRewards
from stepcot_jax.systems.options import GrpoOptions
from stepcot_jax.training.checkpoints import restore_params
from stepcot_jax.training.state import TrainState

CHANGES = {
    "job": "chain_grpo",
    "training__teacher_job_epochs": 1,
    "grpo__epochs": 2,
    "grpo__batch_size": 8,
    "grpo__group_size": 3,
    "rewards__diagnosis_weight": 0.5,
    "rewards__steps_weight": 1.0,
}
"""One epoch of 5 updates on labels, two of 5 by rewards."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    patch, workdir = pytest.MonkeyPatch(), tmp_path_factory.mktemp("chain")
    run = small_run(workdir, patch, **CHANGES)
    report = run.execute()
    patch.undo()
    return workdir, run, report


@pytest.mark.slow
def test_a_run_reports_the_teacher_and_its_start(finished):
    workdir, run, report = finished
    assert list(report["test"]) == ["teacher", "start"]
    assert set(report["best"]) == {"teacher", "start"}
    assert run.system.score_name == "mean_reward"
    lines = read_log(workdir)
    last = [line for line in lines if line["kind"] == "train"][-1]
    wanted = {"reward", "reward_diagnosis", "reward_steps", "reward_consistent", "kl", "clipped", "equal_groups"}
    assert {f"teacher/{name}" for name in wanted | {"entropy", "gradient_norm", "total", "scored"}} <= set(last)
    assert last["teacher/kl"] > 0
    scores = [line["start/mean_reward"] for line in lines if line["kind"] == "val"]
    assert len(scores) == 3
    assert scores[1] == scores[2] == max(scores[0], lines[-1].get("start/mean_reward", scores[1]))


@pytest.mark.slow
def test_grpo_moves_the_teacher_and_the_encoder_but_not_the_start(finished):
    workdir, run, _ = finished
    before, after = (restore_params(workdir / "checkpoints", step) for step in (run.checkpoints.latest_step - 5, 15))
    assert_same(after["reference"], before["reference"])
    for name in ("teacher", "image_encoder"):
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), after[name], after["reference"][name])
        assert max(jax.tree.leaves(moved)) > 1e-4
    assert_same(after["student"], run._init().params["student"])


@pytest.mark.slow
def test_readers_load_the_refined_teacher(finished, monkeypatch):
    workdir, _, report = finished
    monkeypatch.setattr(stored, "make_resnet", lambda name: LinearEncoder())
    assert read_default_model(workdir) == "teacher"
    loaded = trained_model.load_trained(workdir).params["teacher"]
    best = restore_params(workdir / "checkpoints", report["best"]["teacher"]["step"])
    for name in ("teacher", "image_encoder"):
        assert_same(loaded[name], best[name])
    with pytest.raises(BadInput, match="has no trained 'student'; it has teacher"):
        trained_model.load_trained(workdir, names=("student",))


@pytest.mark.slow
def test_a_run_killed_within_an_epoch_of_rollouts_goes_on_to_the_same_bits(finished, tmp_path, monkeypatch):
    workdir, _, report = finished
    first = small_run(tmp_path, monkeypatch, **CHANGES, training__checkpoint_minutes=1e-9)
    assert kill_at_entry(first, 14, monkeypatch) == 12
    resumed = small_run(tmp_path, monkeypatch, **CHANGES).execute()
    assert (resumed["test"], resumed["best"]) == (report["test"], report["best"])
    found, expected = (restore_params(folder / "checkpoints", 15) for folder in (tmp_path, workdir))
    assert_same(found, expected)
    assert read_log(tmp_path) == read_log(workdir)


@pytest.mark.slow
def test_a_run_may_start_from_the_teacher_of_another_on_a_store(finished, tmp_path, monkeypatch):
    workdir, _, report = finished
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = small_run(tmp_path / "run", monkeypatch, **CHANGES, policy__start=put_workdir(workdir, monkeypatch))
    assert [phase.name for phase in run.system.phases()] == ["chain_grpo"]
    state, best = run._init(), restore_params(workdir / "checkpoints", report["best"]["teacher"]["step"])
    for name in ("teacher", "image_encoder"):
        for tree in (state.params, state.params["reference"]):
            assert_same(tree[name], best[name])


@pytest.fixture(scope="module")
def system():
    """Five updates on labels, then rewards of 0.5 for the diagnosis and 1 for the steps."""
    rewards = ChainRewards(make_rules(DEFAULT_CHAIN), diagnosis_weight=0.5, steps_weight=1.0)
    options = {"rollouts": GrpoOptions(), "refining": optax.sgd(1.0), "grpo_epochs": 2}
    return ChainGrpo(DEFAULT_CHAIN, rewards=rewards, **options, teacher_epochs=1, teacher_updates=5)


def test_the_best_epoch_of_the_first_phase_is_the_start(system):
    trained, first = ({"teacher": {"kernel": jnp.full(2, value)}, "image_encoder": {}} for value in (2.0, 1.0))
    state = TrainState(jnp.int32(0), {**trained, "reference": first}, {}, None)

    def after(step, teacher, start):
        """Values of the teacher and of its start after an epoch with these scores."""
        params = system.after_epoch(state.replace(step=jnp.int32(step)), {"teacher": teacher, "start": start}).params
        return [float(part["teacher"]["kernel"][0]) for part in (params, params["reference"])]

    assert after(4, 0.6, 0.5) == [2, 2]
    assert after(4, 0.5, 0.6) == [2, 1]
    assert after(5, 0.6, 0.5) == [2, 2]
    assert after(5, 0.5, 0.6) == [1, 1]  # the end of the phase: back to its best
    assert after(10, 0.9, 0.1) == [2, 1]  # GRPO does not change its reference


def test_the_score_is_the_mean_reward_of_the_most_probable_answers(system):
    rng = np.random.default_rng(0)
    logits = {name: rng.standard_normal((20, 7, 4)).astype(np.float32) for name in ("teacher", "start")}
    labels = rng.integers(-1, 4, (20, 7)).astype(np.int32)
    found = system.evaluate(Predictions(np.arange(20, dtype=np.int32), labels, logits))
    for name, own in logits.items():
        right, known = own.argmax(-1) == labels, labels >= 0
        rewards = [0.5 * right[case, -1] + right[case][known[case]].mean() for case in range(20) if known[case, -1]]
        assert found[name] == pytest.approx(np.mean(rewards) / 1.5)
    none = system.evaluate(Predictions(np.arange(20, dtype=np.int32), np.full_like(labels, -1), logits))
    assert all(np.isnan(score) for score in none.values())
    bad = {**logits, "start": np.full_like(logits["start"], np.nan)}
    with pytest.raises(FloatingPointError, match="start: a logit is not finite"):
        system.evaluate(Predictions(np.arange(20, dtype=np.int32), labels, bad))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grpo__epochs": 0}, r"config.grpo.epochs: 0; expected 1 or more"),
        ({"teacher__write_back": False}, r"config.teacher.memory and write_back must be True"),
        ({"rewards__diagnosis_weight": 0.0, "rewards__steps_weight": 0.0}, r"config.rewards.diagnosis_weight, .*are 0"),
    ],
)
def test_settings_that_do_not_fit_the_job_are_refused(tmp_path, monkeypatch, changes, message):
    with pytest.raises(BadInput, match=message):
        small_run(tmp_path, monkeypatch, **{**CHANGES, **changes})
