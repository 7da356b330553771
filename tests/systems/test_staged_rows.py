import contextlib
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.quick_jit import quick_jit
from run.small_policy_run import small_run
from run.small_run import Killed
from systems.small_policy import first_state, policy_task

from stepcot_jax.data.questions.stage_views import STAGES, domain_of, draw_views
from stepcot_jax.host.errors import BadInput
from stepcot_jax.policies.records import NO_PART
from stepcot_jax.systems.curriculum import CURRICULUM, NO_DOMAIN, CurriculumState, after_epoch, draw_stages
from stepcot_jax.systems.sft import POLICY
from stepcot_jax.training.system import COLLECTED_NUMBERS

MIXED = {"curriculum__schedule": "mixed", "curriculum__shares": (0.3, 0.3, 0.4)}
MEDCLM = {"vqa__dialect": "medclm", "sft__reduction": "parts", "sft__answer_weight": 0.8, "sft__reasoning_weight": 0.2}
ADAPTIVE = {
    "curriculum__schedule": "adaptive",
    "curriculum__easy_epochs": 0,
    "curriculum__ramp_epochs": 2,
    "curriculum__gap_centre": 0.0,
    "curriculum__gap_width": 10.0,
    "curriculum__hard_epoch": 1,
    "curriculum__plateau_values": 2,
    "curriculum__plateau_tolerance": 1.0,
    "curriculum__hard_gap": 0.0,
    "curriculum__hard_increase": 0.3,
    "sft__epochs": 4,
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    return policy_task(tmp_path_factory.mktemp("mixed"), **MIXED, **MEDCLM)


def _batches(task, number, state=None):
    """The state, and the first batches as the update gets them, with the number of the update."""
    with task.stream() as stream:
        (phase,) = task.system.phases()
        state = first_state(task) if state is None else state
        return state, phase, [dict(phase.collect(state, next(stream.batches))) for _ in range(number)]


def _expected_views(task, update):
    """Stages and views of an update's rows, from the drawn order alone."""
    settings, staged = task.settings, task.staged
    with task.stream() as stream:
        drawn = next(itertools.islice(stream.batches, update, None))
    domains = [domain_of(task.dataset.records[place]) for place in drawn["indices"]]
    stages = draw_stages(
        CurriculumState(),
        settings.curriculum,
        num_epochs=settings.sft.epochs,
        seed=settings.seed,
        update=update,
        domains=domains,
    )
    return [
        staged.views.view(place, stage, seed=settings.seed, update=update, row=row)
        for row, (place, stage) in enumerate(zip(drawn["indices"], stages, strict=True))
    ]


@pytest.mark.slow
def test_rows_are_their_views(mixed):
    _, _, batches = _batches(mixed, 3)
    batch = batches[2]
    views = _expected_views(mixed, 2)
    assert {STAGES[stage] for stage in batch["stages"]} == {"easy", "medium", "hard"}
    assert [STAGES[stage] for stage in batch["stages"]] == [view.stage for view in views]
    bare = mixed.dataset.load_images([mixed.dataset.image_of[view.index] for view in views])
    np.testing.assert_array_equal(batch["images"], draw_views(bare, views))
    domains = mixed.staged.curriculum.domains
    for row, view in enumerate(views):
        kept = batch["segments"][row] > 0
        text = mixed.tokenizer.decode(batch["tokens"][row][kept].tolist())
        is_target = batch["parts"][row] != NO_PART
        target = mixed.tokenizer.decode(batch["targets"][row][is_target].tolist())
        is_hard = view.stage == "hard"
        assert text.endswith(target)
        assert target.startswith("Answer:" if is_hard else "Reasoning:")
        assert view.record.question in text
        assert ("the reasoning with boxes" in text) != is_hard
        assert batch["part_weights"][row].tolist() == pytest.approx([1, 0] if is_hard else [0.8, 0.2])
        domain = batch["domains"][row]
        assert (domains[domain] if domain != NO_DOMAIN else "") == domain_of(view.record)
    numbers = batch[COLLECTED_NUMBERS]
    assert numbers == {f"curriculum/{stage}": np.mean([view.stage == stage for view in views]) for stage in STAGES}


@pytest.mark.slow
def test_each_process_has_its_rows_of_the_same_views(mixed):
    state, _, (whole,) = _batches(mixed, 1)
    halves = []
    for rows in (slice(0, 8), slice(8, 16)):
        mixed.staged.rows, all_rows = rows, mixed.staged.rows
        _, _, (half,) = _batches(mixed, 1, state)
        mixed.staged.rows = all_rows
        assert half.pop(COLLECTED_NUMBERS) == whole[COLLECTED_NUMBERS]
        halves.append(half)
    for name, rows in whole.items():
        if name != COLLECTED_NUMBERS:
            np.testing.assert_array_equal(np.concatenate([half[name] for half in halves]), rows, err_msg=name)


def _cross_entropy(logits, batch, row, part):
    """Mean over the tokens of a part, by hand; 0 without any."""
    found = [
        np.log(np.exp(logits[row, place]).sum()) - logits[row, place, batch["targets"][row, place]]
        for place in np.flatnonzero(batch["parts"][row] == part)
    ]
    return np.mean(found) if found else 0.0


@pytest.mark.slow
def test_sums_by_domain_and_stage_are_those_of_the_rows(tmp_path):
    task = policy_task(tmp_path, num_devices=4, **MIXED, **MEDCLM)
    state, phase, batches = _batches(task, 1)
    batch = batches[0]
    del batch[COLLECTED_NUMBERS]
    on_device = {name: jnp.asarray(rows) for name, rows in batch.items()}
    logits = np.asarray(quick_jit(phase.update.score)({POLICY: state.params[POLICY]}, on_device), np.float64)
    expected = np.zeros((2, len(task.staged.curriculum.domains), 3))
    for row, (domain, stage) in enumerate(zip(batch["domains"], batch["stages"], strict=True)):
        if domain == NO_DOMAIN:
            continue
        weights = batch["part_weights"][row]
        loss = sum(weights[part] * _cross_entropy(logits, batch, row, part) for part in (0, 1))
        expected[:, domain, stage] += loss, 1
    on_devices = task.prepare(batch)
    update = task.devices.compile_update(phase.update, state=state, batch=on_devices)
    after, numbers = update(state, on_devices)
    kept = jax.device_get(after.optimizers[CURRICULUM])
    np.testing.assert_allclose(kept["sums"], expected[0], rtol=1e-5)
    np.testing.assert_array_equal(kept["counts"], expected[1])
    assert np.isfinite(float(numbers["sft/loss"]))
    ended = task.system.after_epoch(after, {})
    losses = {
        (domain, stage): expected[0, row, column] / expected[1, row, column]
        for row, domain in enumerate(task.staged.curriculum.domains)
        for column, stage in enumerate(STAGES)
        if expected[1, row, column]
    }
    moved = after_epoch(CurriculumState.first(task.settings.curriculum), task.settings.curriculum, losses)
    found = task.staged.curriculum.restore(ended.optimizers[CURRICULUM])
    assert (found.epoch, found.hard_share) == (moved.epoch, moved.hard_share)
    assert (found.overall, *found.history) == pytest.approx((moved.overall, *moved.history), rel=1e-5)
    for means in ("easy", "medium"):
        assert dict(getattr(found, means)) == pytest.approx(dict(getattr(moved, means)), rel=1e-5)
    assert not jax.device_get(ended.optimizers[CURRICULUM]["counts"]).any()


def _train(workdir, monkeypatch, kill_at=None):
    """Run ADAPTIVE; with `kill_at` the run dies before that update. Returns parameters and stages by update."""
    run = small_run(workdir, monkeypatch, **ADAPTIVE, job="sft", sft__pack_length=0, training__log_every=1)
    collect, seen, calls = type(run.task.staged).__call__, {}, {}

    def watched(self, state, batch):
        update = batch["update"]
        if update == kill_at:
            raise Killed
        found = collect(self, state, batch)
        seen[update] = found["stages"].tolist()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(type(run.task.staged), "__call__", watched)
        finish = type(run.task).finish

        def keep(self, outcome):
            calls["params"] = jax.device_get(outcome.params_of("last"))
            return finish(self, outcome)

        patch.setattr(type(run.task), "finish", keep)
        with pytest.raises(Killed) if kill_at is not None else contextlib.nullcontext():
            run.execute()
    return calls.get("params"), seen


@pytest.mark.slow
def test_a_run_killed_within_an_epoch_ends_as_an_uninterrupted_one(tmp_path, monkeypatch):
    whole, drawn = _train(tmp_path / "whole", monkeypatch)
    per_epoch = len(drawn) // 4
    stages = {STAGES[stage] for update in drawn.values() for stage in update}
    assert stages == {"easy", "medium", "hard"}  # the schedule moved, and the draws with it
    killed_at = 2 * per_epoch + 2
    _train(tmp_path / "killed", monkeypatch, kill_at=killed_at)
    resumed, drawn_later = _train(tmp_path / "killed", monkeypatch)
    assert min(drawn_later) > 2 * per_epoch - 1
    assert drawn_later == {update: drawn[update] for update in drawn_later}
    jax.tree.map(np.testing.assert_array_equal, whole, resumed)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "curriculum/hard" in str(line)]
    assert len(trained) == len(drawn)


def test_a_hard_stage_needs_a_dialect_with_answers_alone(tmp_path):
    with pytest.raises(BadInput, match=r"curriculum.schedule: 'mixed' has a hard stage, .* expected one of gemex, m"):
        policy_task(tmp_path, vqa__dialect="lvkc", **MIXED)
    policy_task(tmp_path, vqa__dialect="lvkc", curriculum__schedule="mixed", curriculum__shares=(0.5, 0.5, 0.0))
