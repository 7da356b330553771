"""The plain network, a student without a teacher, and all three: what readers and exports make of such runs."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import edit_json, refuse
from run.small_run import LinearEncoder, small_run
from trained_workdir import SIDE, TINY, make_text, random_params, small_settings, tiny_encoder

import stepcot_jax as sc
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.evaluation.joint import JointModel, learn_tree, write_joints
from stepcot_jax.evaluation.predictions import Predictions, read_predictions
from stepcot_jax.export import loader
from stepcot_jax.export.folder import export_model
from stepcot_jax.host.exported_files import write_sums
from stepcot_jax.reading.trained_model import load_trained, read_default_model
from stepcot_jax.run import stored
from stepcot_jax.run.results import rank_networks
from stepcot_jax.run.settings import write_settings
from stepcot_jax.run.stored import write_reading
from stepcot_jax.training.checkpoints import Checkpoints
from stepcot_jax.training.state import TrainState

KINDS = {
    "plain": {"job": "baseline", "baseline__form": "heads"},
    "student": {"job": "baseline", "baseline__form": "student", "student__dropout": 0.0},
    "teacher": {"loss__plain_scale": 1.0},
}
SIZES = DEFAULT_CHAIN.answers_per_step
PIXELS = np.random.default_rng(5).integers(0, 256, (3, SIDE, SIDE), dtype=np.uint8)
LABELS = np.random.default_rng(0).integers(0, SIZES, (300, 7))
TREE = learn_tree(np.where(np.arange(7) == 6, LABELS[:, [2]], LABELS), SIZES)  # the third step decides the last


@pytest.fixture(scope="module", autouse=True)
def encoder():
    with tiny_encoder():
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A workdir of random weights for each kind of run, whose report names its kind as the default; and an export."""
    root = tmp_path_factory.mktemp("runs")
    for kind, changes in KINDS.items():
        folder, settings = root / kind, small_settings(**changes)
        folder.mkdir()
        write_settings(folder / "settings.json", settings)
        write_reading(folder, DEFAULT_CHAIN, make_text(settings) if settings.reads_prompts else None)
        params, checkpoints = random_params(settings, seed=1), Checkpoints(folder / "checkpoints")
        params = {name: params[name] for name in settings.trains.parts}
        checkpoints.save(TrainState(np.int32(1), params, {}, np.zeros(2, np.uint32)), {"batches": {}}, {})
        checkpoints.wait()
        checkpoints.close()
        joint = JointModel(TREE, (1.0,) * 7, (0.5,) * 7)
        write_joints(folder / "joint.json", dict.fromkeys(settings.trains.names, joint))
        (folder / "report.json").write_text(json.dumps({"default": kind}))
        if kind != "student":
            export_model(folder, root / f"{kind} exported")
    return root


@pytest.mark.slow
def test_an_export_of_the_plain_network_computes_features_times_kernel_plus_bias(runs, tmp_path):
    for kind in ("plain", "teacher"):
        model, params = loader.load(runs / f"{kind} exported", "plain"), load_trained(runs / kind).params["plain"]
        images = jnp.asarray(model.preprocessing.normalise(PIXELS))
        features = np.asarray(TINY.apply({"params": params["image_encoder"]}, images))
        by_hand = features @ params["plain"]["answers"]["kernel"] + params["plain"]["answers"]["bias"]
        for step, expected in enumerate(np.split(by_hand, np.cumsum(SIZES)[:-1], axis=1)):
            found = model.logits(PIXELS)[:, step]
            np.testing.assert_allclose(found[:, : SIZES[step]], expected, rtol=1e-5, atol=1e-5)
            assert (found[:, SIZES[step] :] == loader.ABSENT_LOGIT).all()
    folder, steps = shutil.copytree(runs / "plain exported", tmp_path / "export"), 30_000
    more = [{"name": f"{step}", "question": "?", "options": ["a", "b"]} for step in range(steps)]
    edit_json(folder / "labels.json", lambda found: found["steps"].extend(more))
    write_sums(folder)
    refuse("plain/answers/bias: .* does not fit", sc.load, folder)


def sum_over_chains(shares):
    """Each step's distribution over all chains, each with its probability in `TREE` and its answers' shares."""
    answers = np.indices(SIZES, sparse=True)
    joint = TREE.last[answers[-1]] * np.prod(np.broadcast_arrays(*map(np.take, shares, answers)), axis=0)
    for step, (parent, table) in enumerate(zip(TREE.parents, TREE.tables, strict=True)):
        joint = joint * table[answers[-1], 0 if parent is None else answers[parent], answers[step]]
    return [joint.sum(axis=tuple({*range(7)} - {step})) / joint.sum() for step in range(7)]


@pytest.mark.slow
def test_a_correction_reaches_the_plain_networks_other_steps_by_its_joint_model_alone(runs):
    marginals = sum_over_chains([np.ones(size) for size in SIZES])
    for name in ("plain", "teacher", "teacher exported"):
        published = sc.load(runs / name, model="plain", as_published=True)
        before, given = published.read(PIXELS[0]), {"Radiographic pattern": "Nodular"}
        refuse("the plain network takes no given answers", published.correct, before, given)
        own = [np.array(answer.probabilities) for answer in before.steps]
        shares = [np.sqrt(share / marginal) for share, marginal in zip(own, marginals, strict=True)]  # weights of 0.5
        shares[2] = np.eye(SIZES[2])[DEFAULT_CHAIN.steps[2].options.index("Nodular")]
        corrected = sc.load(runs / name, model="plain").correct(before, given)
        for step, expected in enumerate(sum_over_chains(shares)):
            if step != 2:
                np.testing.assert_allclose(corrected.steps[step].probabilities, expected, rtol=1e-4, atol=1e-9)


def test_the_default_is_the_best_on_validation():
    labels = np.array([[0, 1, 0], [1, 0, 1], [1, 1, NOT_ANNOTATED]], np.int32)
    missed = {"teacher": ([0], [0]), "student": ([0, 1], [0, 1]), "plain": ([1], [0])}  # cases and steps
    logits = {name: 9.0 * np.eye(2, dtype=np.float32)[np.maximum(labels, 0)] for name in missed}
    for name, wrong in missed.items():
        logits[name][wrong] *= -1
    chain = sc.Chain(tuple(sc.Step(name, "?", ("A", "B")) for name in "XYZ"))
    ranked = rank_networks(Predictions(np.arange(3, dtype=np.int32), labels, logits), chain)
    assert list(ranked) == ["plain", "teacher", "student"]  # of equal ones the later
    np.testing.assert_allclose(list(ranked.values()), [8 / 9, 8 / 9, 7 / 9])


@pytest.mark.slow
def test_readers_have_the_runs_default_and_loaders_the_exports_first(runs):
    for kind in KINDS:
        assert read_default_model(runs / kind) == kind
    for kind in ("plain", "teacher"):
        assert read_default_model(runs / f"{kind} exported") == kind
        assert sc.load(runs / f"{kind} exported").model == loader.load(runs / f"{kind} exported").name == kind
    for name, found in (("student", "student"), ("plain exported", "plain")):
        refuse(f"has no trained 'teacher'; it has {found}", sc.load, runs / name, model="teacher")
    for report, expected in (({"default": "plain"}, "plain"), ({"default": "reader"}, "student"), ({}, "student")):
        (runs / "teacher" / "report.json").write_text(json.dumps(report))
        assert read_default_model(runs / "teacher") == expected


@pytest.mark.slow
def test_a_run_with_plain_heads_names_its_default_and_is_read_by_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stored, "make_resnet", lambda name: LinearEncoder())
    run = small_run(tmp_path, monkeypatch, loss__plain_scale=1.0, training__joint_epochs=1)
    with jax.numpy_dtype_promotion("standard"):  # of optax
        default = run.execute()["default"]
    chain = run.task.dataset.chain
    validated = read_predictions(tmp_path / "predictions" / "val.npz", chain).predictions
    accuracy = {}
    for name, logits in validated.logits.items():
        answers = [logits[:, step, :size].argmax(axis=1) for step, size in enumerate(chain.answers_per_step)]
        accuracy[name] = np.mean(np.stack(answers, axis=1) == validated.labels)
    assert set(accuracy) == {"teacher", "student", "plain"}
    assert accuracy[default] == max(accuracy.values())
    assert f"default: {default} (best on validation: {100 * max(accuracy.values()):.1f} %; " in capsys.readouterr().out
    assert sc.load(tmp_path).model == default
