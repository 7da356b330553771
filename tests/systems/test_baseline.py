import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracles.quick_jit import quick_jit
from oracles.random_params import apart, normal, random_labels
from refusals import refuse
from run.small_run import read_log, small_run

from stepcot_jax.chain import Chain, Step
from stepcot_jax.models.form_reader import LinearHeads
from stepcot_jax.models.student import Baseline, Student
from stepcot_jax.run.build import make_system
from stepcot_jax.run.inputs import load_cases
from stepcot_jax.run.settings import load_settings
from stepcot_jax.systems.baseline import BaselineSystem
from stepcot_jax.training.devices import GlobalBatch

COUNTS, RATE = (3, 2), 0.1
BATCH = {
    "image_features": normal(1, 5, 6),
    "labels": random_labels(2, 5, COUNTS, missing=0.2),
    "text_features": jnp.asarray(normal(3, 2, 4)),
}
CHAIN = Chain(tuple(Step(f"step {n}", "?", tuple("ABC"[:n])) for n in COUNTS))
SYSTEM = BaselineSystem(CHAIN, Baseline(COUNTS, hidden=8), optimizer=optax.sgd(RATE))


@pytest.fixture(scope="module")
def stepped():
    state, update = SYSTEM.init(jax.random.key(0), BATCH), quick_jit(SYSTEM.update)
    return state, lambda labels: update(state, {**BATCH, "labels": labels})


def test_labels_of_the_last_step_alone_leave_the_other_head_alone(stepped):
    start, run = stepped
    labels = np.where(np.arange(2) == 0, -100, BATCH["labels"])
    before, after = start.params["baseline"], run(labels)[0].params["baseline"]
    np.testing.assert_array_equal(after["head_0"]["kernel"], before["head_0"]["kernel"])
    for name in ("head_1", "hidden"):
        assert apart(after[name]["kernel"], before[name]["kernel"]) > 0


@pytest.mark.slow
def test_several_passes_find_the_same_gradients(stepped):
    start, run = stepped
    passed, metrics = quick_jit(lambda state, batch: SYSTEM.update(state, batch, GlobalBatch(None, 5)))(start, BATCH)
    expected, single = run(BATCH["labels"])
    for one, other in zip(jax.tree.leaves(passed.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert float(metrics.losses["baseline"].total) == pytest.approx(float(single.losses["baseline"].total), rel=1e-5)


def test_a_student_is_refused_for_a_tree_of_questions():
    settings = load_settings("plain", **{"baseline.form": "student", "student.dropout": 0.0})
    tree = types.SimpleNamespace(chain=types.SimpleNamespace(is_tree=True))
    refuse(r"form='student' reads a chain of steps", make_system, settings, tree, None, batches_per_epoch=1)


def heads_gradient(features, params, labels):
    """Sum over steps of mean cross-entropies of linear heads, and its gradients, in float64 by hand."""
    kernel, bias = np.float64(params["answers"]["kernel"]), np.float64(params["answers"]["bias"])
    total, of_kernel, of_bias, start = 0.0, np.zeros_like(kernel), np.zeros_like(bias), 0
    for step, num_answers in enumerate(COUNTS):
        own, known = slice(start, start + num_answers), labels[:, step] >= 0
        shares = np.exp(features @ kernel[:, own] + bias[own])
        shares /= shares.sum(axis=1, keepdims=True)
        truth = np.eye(num_answers)[np.maximum(labels[:, step], 0)]
        total -= np.log((shares * truth).sum(axis=1))[known].mean()
        error = (shares - truth) * known[:, None] / known.sum()
        of_kernel[:, own], of_bias[own] = features.T @ error, error.sum(axis=0)
        start += num_answers
    return total, {"kernel": of_kernel, "bias": of_bias}


def test_a_step_of_the_plain_network_is_that_of_linear_heads_by_hand():
    system = BaselineSystem(CHAIN, LinearHeads(COUNTS), optimizer=optax.sgd(RATE))
    assert (system.names, system.reads_prompts, system.takes_given) == (("plain",), False, True)
    batch = {name: BATCH[name] for name in ("image_features", "labels")}
    state = system.init(jax.random.key(0), batch)
    params = {"plain": {"answers": {"kernel": normal(5, 6, sum(COUNTS)), "bias": normal(6, sum(COUNTS))}}}
    total, gradient = heads_gradient(np.float64(batch["image_features"]), params["plain"], batch["labels"])
    after, metrics = quick_jit(system.update)(state.replace(params=params), batch)
    assert float(metrics.losses["plain"].total) == pytest.approx(total, rel=1e-5)
    for name, slope in gradient.items():
        moved = np.float64(after.params["plain"]["answers"][name]) - params["plain"]["answers"][name]
        np.testing.assert_allclose(moved, -RATE * slope, atol=1e-6)
    squares = sum((slope**2).sum() for slope in gradient.values())
    assert float(metrics.gradient_norms["plain"]) == pytest.approx(squares**0.5, rel=1e-4)
    assert (int(after.step), set(metrics.losses)) == (1, {"plain"})
    read = system.given_reader("plain", params, batch)
    given = np.zeros((2, 5, 2, 3), np.float32)
    given[1, :, 0, 0] = 1
    np.testing.assert_array_equal(*read(given))  # a given answer changes nothing


def test_a_student_alone_learns_from_labels_alone():
    student = Student(COUNTS, width=5, dropout_rate=0.0)
    system = BaselineSystem(CHAIN, student, optimizer=optax.sgd(RATE))
    batch = {name: BATCH[name] for name in ("image_features", "labels")}
    state = system.init(jax.random.key(0), batch)
    _, metrics = quick_jit(system.update)(state, batch)
    images = jnp.asarray(batch["image_features"])
    reading = student.apply({"params": state.params["student"]}, image_features=images, deterministic=True)
    expected = 0.0
    for step, num_answers in enumerate(COUNTS):
        own, known = np.float64(reading.logits[:, step, :num_answers]), batch["labels"][:, step] >= 0
        chosen = own[np.arange(5), np.maximum(batch["labels"][:, step], 0)]
        expected += (np.log(np.exp(own).sum(axis=1)) - chosen)[known].mean()
    assert float(metrics.losses["student"].total) == pytest.approx(expected, rel=1e-5)


# Whole runs

CHANGES = {"job": "baseline", "baseline__epochs": 2, "baseline__hidden": 8, "baseline__learning_rate": 1e-2}


def test_origins_leave_cases_of_others_out():
    small = {"phantom.num_cases": 120, "phantom.image_size": 32}
    dataset = load_cases("plain", **small, **{"data.origins": ("Phantom B",)})
    members = [index for indices in dataset.splits.by_name().values() for index in indices]
    assert {dataset.cases[index].origin for index in members} == {"Phantom B"}
    assert 20 < len(members) < 60
    words = r"config.data.origins: 'Elsewhere' is not one of 'Phantom A'"
    refuse(words, load_cases, "plain", **small, **{"data.origins": ("Elsewhere",)})


@pytest.mark.slow
def test_without_the_intermediate_steps_nothing_else_is_learned_or_measured(tmp_path, monkeypatch):
    run = small_run(tmp_path, monkeypatch, **CHANGES, baseline__steps="last")
    report = run.execute()["test"]["baseline"]
    accuracies = [step["accuracy"] for step in report["steps"]]
    assert accuracies[:-1] == [None] * 2
    assert accuracies[-1] == report["mean_accuracy"]
    assert run.task.inputs.text_features is not None
    assert set(run.state_shapes.params) == {"baseline", "image_encoder"}  # which is trained too
    assert any("baseline/hard_label/Diagnosis" in line for line in read_log(tmp_path))
    assert (run.task.open_test().inputs.dataset.labels[:, -1] >= 0).all()
