import json
import signal

import jax
import pytest
from oracles.random_params import apart
from run.small_policy_run import read_results, small_run
from run.small_run import Killed, read_log, stop_at, train

from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.host.errors import Preempted
from stepcot_jax.policies.policy_files import read_lengths
from stepcot_jax.run import results
from stepcot_jax.run.networks import read_tokenizer
from stepcot_jax.run.training_run import Run
from stepcot_jax.systems.grpo import Rollouts
from stepcot_jax.training.checkpoints import restore_params, saved_steps

pytestmark = pytest.mark.slow
CHANGES = {"vqa__dialect": "lvkc", "self_check__enabled": True, "self_check__alpha": 0.2, "grpo__updates_per_epoch": 2}
SFT_UPDATES, UPDATES = 6, 10
"""Updates of fine-tuning, and of the run: two epochs of 3, then two of 2."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    patch, workdir, states = pytest.MonkeyPatch(), tmp_path_factory.mktemp("policy"), {}
    run = small_run(workdir, patch, **CHANGES)
    validate, compile_update, sample = run.task.validate, Run._compile, Rollouts.sample
    compiled, samplers = [], []

    def remember(state):
        states[int(state.step)] = jax.device_get(state.params)
        return validate(state)

    patch.setattr(run.task, "validate", remember)
    patch.setattr(
        Run, "_compile", lambda run, phase, *given: compiled.append(phase.name) or compile_update(run, phase, *given)
    )
    patch.setattr(Rollouts, "sample", lambda own, *given: samplers.append(own._sample) or sample(own, *given))
    run.execute()
    # Each phase compiles one update and one sampler.
    assert compiled == ["sft", "grpo"]
    assert len(samplers) == UPDATES - SFT_UPDATES
    assert len(set(map(id, samplers))) == samplers[0]._cache_size() == 1
    assert run.task.predict._cache_size() == 2  # for the questions of validation and of test
    patch.undo()
    return run, states, read_results(workdir)


def test_the_reference_is_the_policy_at_the_end_of_fine_tuning(whole):
    run, states, _ = whole
    assert sorted(states) == [3, 6, 8, 10]
    for step in (8, 10):
        assert apart(states[step]["reference"], states[SFT_UPDATES]["policy"]) == 0
        assert apart(states[step]["policy"], states[step]["reference"]) > 1e-4
    assert apart(states[3]["reference"], states[SFT_UPDATES]["policy"]) > 1e-4  # random until then
    saved = restore_params(run.workdir / "checkpoints", UPDATES)
    assert apart(saved["reference"], states[SFT_UPDATES]["policy"]) == 0
    assert apart(saved["policy"], states[UPDATES]["policy"]) == 0


def test_rewards_and_losses_are_logged(whole):
    log = read_log(whole[0].workdir)
    train = [entry for entry in log if entry["kind"] == "train"]
    assert [entry["step"] for entry in train] == [2, 3, 5, 6, 8, 10]
    assert {"sft/loss", "sft/gradient_norm"} <= train[0].keys()
    for entry in train[4:]:
        assert {"grpo/loss", "grpo/kl", "rollouts/reward/total", "rollouts/length"} <= entry.keys()
        assert entry["grpo/gradient_norm"] > 1e-3
    scores = [
        (entry["step"], [name for name in entry if name.endswith("score")]) for entry in log if "val" in entry["kind"]
    ]
    assert scores == [(3, ["sft/score"]), (6, ["sft/score"]), (8, ["grpo/score"]), (10, ["grpo/score"])]
    unread = [name for entry in log for name in entry if name.endswith("unread_answers")]
    assert sorted(unread) == sorted(2 * [f"{name}/unread_answers" for name in ("sft", "grpo", "rollouts")])
    assert max(entry.get("rollouts/self_check_rate", 0) for entry in log) > 0  # some first attempts were checked


def test_the_workdir_has_what_readers_need(whole):
    run = whole[0]
    lengths = read_lengths(run.workdir)
    tokenizer = read_tokenizer(run.workdir, run.settings)
    assert tokenizer.num_words == lengths.num_words
    dataset = run.task.data.open_test().dataset
    tests = [dataset.records[place] for place in dataset.splits.test]
    assert read_vqa_records(run.workdir / "records" / "test.jsonl").records == tuple(tests)
    for phase in ("sft", "grpo"):
        lines = [json.loads(line) for line in (run.workdir / f"replies/{phase}_test.jsonl").read_text().splitlines()]
        assert [line["id"] for line in lines] == [record.id for record in tests]
    report = json.loads((run.workdir / "report.json").read_text())
    assert report["best"].keys() == report["test"].keys() == {"sft", "grpo"}
    assert report["num_questions"] == len(tests)
    best = report["best"]["sft"]["step"]
    assert [f"its best (update {best})" in note for note in report["notes"]] == [True] * (best != SFT_UPDATES)
    for step in (3, 6, 8, 10):
        assert (run.workdir / "examples" / f"{step:06}.png").stat().st_size > 0
    board = b"".join(path.read_bytes() for path in (run.workdir / "tensorboard").iterdir())
    for path in (run.workdir / "examples").glob("*.png"):
        assert path.read_bytes() in board


@pytest.mark.parametrize("phase", ["sft", "grpo"])
def test_test_replies_are_those_of_the_best_weights(whole, phase):
    run, states, results = whole
    best = results["report"]["best"][phase]["step"]
    texts = run.task.reply(run.devices.replicate(states[best]), run.task.dataset.splits.test, run.task.data.open_test())
    lines = (run.workdir / f"replies/{phase}_test.jsonl").read_text().splitlines()
    assert [json.loads(line)["reply"] for line in lines] == texts
    assert len(set(texts)) > 1


def test_a_best_row_of_fine_tuning_before_its_end_is_noted():
    assert results._note_start(4, 4) == ""
    assert "last weights of SFT (update 4); the row of SFT is of its best (update 2)" in results._note_start(2, 4)


def stop(workdir, error, where, name, number, stop=None, **changes):
    """Stop a run at the n-th call of a method of its task or of another object."""
    with pytest.MonkeyPatch.context() as patch:
        run = small_run(workdir, patch, **CHANGES, **changes)
        stop_at(where or run.task, name, number, patch, stop)
        with pytest.raises(error):
            run.execute()


def test_a_run_goes_on_to_the_same_bits_whatever_stopped_it(whole, tmp_path, monkeypatch):
    """Killed in fine-tuning, ended after it, given epochs of GRPO, sent SIGTERM, killed while writing results."""
    stop(tmp_path, Killed, None, "prepare", 2, grpo__epochs=0)
    small_run(tmp_path, monkeypatch, **CHANGES, grpo__epochs=0).execute()
    stop(tmp_path, Preempted, None, "prepare", 1, stop=lambda: signal.raise_signal(signal.SIGTERM))
    assert saved_steps(tmp_path / "checkpoints")[-1] == SFT_UPDATES + 1
    stop(tmp_path, Killed, results, "score_baseline", 1)
    assert not (tmp_path / "report.json").exists()
    small_run(tmp_path, monkeypatch, **CHANGES).execute()
    assert read_results(tmp_path) == whole[2]


def test_the_job_sft_equals_the_first_phase_of_grpo(whole, tmp_path, monkeypatch):
    run, states, _ = whole
    assert train(small_run(tmp_path, monkeypatch, **CHANGES, job="sft"), monkeypatch).keys() == {"sft"}
    params = restore_params(tmp_path / "checkpoints", SFT_UPDATES)
    assert params.keys() == {"policy"}
    assert apart(params["policy"], states[SFT_UPDATES]["policy"]) == 0
    assert read_log(tmp_path, "train") == read_log(run.workdir, "train")[:4]
