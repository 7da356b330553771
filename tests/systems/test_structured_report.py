import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracles.quick_jit import quick_jit
from oracles.random_params import normal
from refusals import refuse
from structured_folder import make_tree

import stepcot_jax as sc
from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.pixels import PixelCache
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.evaluation.structured_reports import answer_tree, measure_f1
from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.form_reader import FormReader
from stepcot_jax.models.student import ABSENT_LOGIT, Baseline
from stepcot_jax.record import Record
from stepcot_jax.run.build import make_system as make_system_of_run
from stepcot_jax.run.results import finish_tree, with_facts
from stepcot_jax.run.run_checks import check_annotated
from stepcot_jax.run.settings import load_settings
from stepcot_jax.run.stored import read_reading
from stepcot_jax.systems.baseline import BaselineSystem
from stepcot_jax.systems.structured_report import NAME, StructuredReport
from stepcot_jax.training.devices import GlobalBatch

TREE, RATE, WIDTH = make_tree(), 0.1, 6
COUNTS = TREE.answers_per_step


def make_system(**options):
    return StructuredReport(TREE, FormReader(COUNTS, hidden=5), optimizer=optax.sgd(RATE), **options)


def draw_labels(seed, num_cases):
    """Labels as reports have them: none where an answer closed the question."""
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.integers(0, number, num_cases) for number in COUNTS], axis=1)
    labels[:, :2] = rng.random((num_cases, 2)) < 0.4  # most have signs and an opacity
    return TREE.close(labels).astype(np.int32)


def read_in_float64(params, features):
    """Logits [case, step, answer] by the equations, step by step."""
    own = jax.tree.map(np.float64, params[NAME])
    centred = features - features.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6)
    normed = normed * own["norm"]["scale"] + own["norm"]["bias"]
    hidden = np.maximum(normed @ own["hidden"]["kernel"] + own["hidden"]["bias"], 0)
    logits, start = np.full((len(features), len(COUNTS), max(COUNTS)), ABSENT_LOGIT), 0
    for step, number in enumerate(COUNTS):
        chosen = slice(start, start + number)
        logits[:, step, :number] = hidden @ own["answers"]["kernel"][:, chosen] + own["answers"]["bias"][chosen]
        start += number
    return logits


def cross_entropy(params, features, labels, weights=None):
    logits, losses, total = read_in_float64(params, features), 0.0, 0.0
    for case, step in zip(*np.nonzero(labels >= 0), strict=True):
        own = logits[case, step, : COUNTS[step]]
        weight = 1.0 if weights is None else weights[step, labels[case, step]]
        losses += weight * (np.log(np.exp(own).sum()) - own[labels[case, step]])
        total += weight
    return losses / total


@pytest.fixture(scope="module")
def started():
    features, labels = np.float64(normal(1, 7, WIDTH)), draw_labels(2, 7)
    batch = {"image_features": jnp.asarray(features, jnp.float32), "labels": jnp.asarray(labels)}
    state = make_system().init(jax.random.key(0), batch)
    leaves, tree = jax.tree.flatten(state.params)
    random = [jnp.asarray(normal(number, *leaf.shape)) for number, leaf in enumerate(leaves)]
    return state.replace(params=jax.tree.unflatten(tree, random)), batch, features, labels


def test_logits_are_those_of_the_equations(started):
    state, batch, features, _ = started
    logits = make_system().predict(state.params, batch)[NAME]
    np.testing.assert_allclose(logits, read_in_float64(state.params, features), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_the_mean_over_the_questions_asked(started, weighted):
    state, batch, features, labels = started
    weights = np.abs(normal(9, len(COUNTS), max(COUNTS))) + 0.1 if weighted else None
    system = make_system(answer_weights=None if weights is None else jnp.asarray(weights))
    stepped, metrics = quick_jit(system.update)(state, batch)
    assert float(metrics["form/total"]) == pytest.approx(
        cross_entropy(state.params, features, labels, weights), rel=1e-5
    )
    for name, parameter in (("answers", "bias"), ("hidden", "bias")):
        before, after = (np.float64(each.params[NAME][name][parameter]) for each in (state, stepped))
        for index in range(0, len(before), 3):
            moved = jax.tree.map(np.float64, state.params)

            def loss(value, moved=moved, name=name, parameter=parameter, index=index):
                moved[NAME][name][parameter][index] = value
                return cross_entropy(moved, features, labels, weights)

            slope = (loss(before[index] + 1e-5) - loss(before[index] - 1e-5)) / 2e-5
            assert (before - after)[index] / RATE == pytest.approx(slope, rel=1e-3, abs=2e-5)


def test_a_closed_question_has_no_gradient_and_two_devices_agree_with_one(started):
    state, batch, _, labels = started
    system = make_system()
    closed = {**batch, "labels": jnp.asarray(np.where(np.arange(8) == 5, NOT_ANNOTATED, labels))}
    stepped, _ = quick_jit(system.update)(state, closed)
    start = sum(COUNTS[:5])
    moved = np.asarray(stepped.params[NAME]["answers"]["kernel"] - state.params[NAME]["answers"]["kernel"])
    assert not moved[:, start : start + 3].any()
    assert moved[:, :2].any()
    pairs = {name: jnp.stack([rows[:3], rows[3:6]]) for name, rows in batch.items()}
    update = jax.vmap(lambda part: system.update(state, part, GlobalBatch("device"))[0].params, axis_name="device")
    whole, _ = system.update(state, {name: rows[:6] for name, rows in batch.items()})
    for mine, theirs in zip(jax.tree.leaves(update(pairs)), jax.tree.leaves(whole.params), strict=True):
        np.testing.assert_allclose(mine[0], theirs, rtol=1e-5, atol=1e-6)


def test_the_score_is_the_published_f1_with_its_own_history(started):
    state, batch, _, labels = started
    logits = np.asarray(make_system().predict(state.params, batch)[NAME])
    scores = make_system().evaluate(Predictions(np.arange(7, dtype=np.int32), labels, {NAME: logits}))
    assert scores == {NAME: measure_f1(logits, labels, TREE)}
    assert (answer_tree(logits, TREE) == NOT_ANNOTATED).any()


def test_systems_of_chains_refuse_a_tree_and_this_one_a_chain():
    for make in (lambda: sc.StepCoT(TREE), lambda: BaselineSystem(TREE, Baseline(COUNTS), optimizer=optax.sgd(1.0))):
        refuse("asks every step", make)
    refuse("a tree of questions", StructuredReport, Chain.published(), FormReader((2,)), optimizer=optax.sgd(1.0))


def test_a_config_makes_the_system_from_the_settings_of_the_baseline():
    data = make_data()
    settings = load_settings("base", **{"job": "baseline", "baseline.hidden": 9, "baseline.epochs": 4})
    system = make_system_of_run(settings, data, None, batches_per_epoch=1)
    assert isinstance(system, StructuredReport)
    assert (system.reader, system.num_epochs) == (FormReader(COUNTS, hidden=9), 4)
    assert check_annotated(data) == ["note: 0 of 8 steps are never asked in the train split and are not trained"]
    for changed in ({"job": "distill"}, {"job": "baseline", "baseline.steps": "last"}):
        with pytest.raises(BadInput, match="a tree of questions"):
            make_system_of_run(load_settings("base", **changed), data, None, batches_per_epoch=1)


def make_data():
    """Features that determine every answer, so that a trained network beats the constant."""
    labels = draw_labels(3, 90)
    features = np.concatenate([(labels[:, :, None] == np.arange(3)).reshape(90, -1), normal(4, 90, 2)], axis=1)
    cases = [
        Record(image=f"{case}.png", patient=f"p{case}", answers=tuple(row)) for case, row in enumerate(labels.tolist())
    ]
    splits = Splits(tuple(range(50)), tuple(range(50, 70)), tuple(range(70, 90)))
    return Dataset(
        TREE, cases, splits, PixelCache(None, 0), Preprocessing(32), np.float32(features), splits_source="test"
    )


def test_test_reports_are_answered_at_half_and_at_the_threshold_of_validation(tmp_path):
    data, outcome = make_data(), types.SimpleNamespace(seconds=float, best={}, log=dict)

    def read(split):
        labels = data.labels[list(data.splits.by_name()[split])]
        timid = 5 * (labels[..., None] == np.arange(3)) - 6 * (np.arange(3) == 0)  # a right yes has 27 %
        read = with_facts(data, split, Predictions(np.arange(len(labels)), labels, {NAME: np.float32(timid)}))
        return dataclasses.replace(read, facts=dict(read.facts, patient_id=np.full(len(labels), "the same")))

    report = finish_tree(outcome, tmp_path, data, 20, read)
    half, chosen = (figures["all"]["f1"]["value"] for name, figures in report["test"].items() if NAME in name)
    assert report["thresholds"][NAME] < 0.3
    assert half + 0.2 < chosen
    assert report["test"]["no to everything"]["all"]["f1"]["low"] is None  # of one patient there is no interval


@pytest.mark.slow
def test_a_run_learns_and_stands_beside_the_constant(tmp_path, capsys):
    system = StructuredReport(TREE, FormReader(COUNTS, hidden=32), optimizer=optax.adam(0.02), num_epochs=30)
    settings = {"parallel.num_devices": 1, "evaluation.num_resamples": 50}
    run = sc.fit(system, make_data(), workdir=tmp_path, batch_size=10, **settings)
    report, shown = run.report, capsys.readouterr().out
    trained = report["test"]["form, threshold 0.5"]["all"]
    assert trained["f1"]["value"] > 0.9 > report["test"]["no to everything"]["all"]["f1"]["value"]
    assert report["test_less_constant"]["form, threshold 0.5"]["all"]["f1"]["low"] > 0.2
    assert "| all | no to everything |" in shown
    assert "published: hi-VQA" in shown
    assert sorted(path.name for path in (tmp_path / "predictions").iterdir()) == ["test.npz", "val.npz"]
    assert read_reading(tmp_path).chain == TREE
