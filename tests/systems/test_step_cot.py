"""One update: gradients against the oracle's finite differences; which loss updates which network, and when."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracles import reference_numpy as oracle
from oracles.quick_jit import quick_jit
from oracles.random_params import apart, assert_close, check_gradients, normal, random_labels, randomise
from training.parallel_step import Pooled

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.losses.step_cot import Objective
from stepcot_jax.models.form_reader import LinearHeads
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher, TeacherReading
from stepcot_jax.systems import updates
from stepcot_jax.systems.networks import Networks, init_params
from stepcot_jax.systems.step_cot import StepCoT
from stepcot_jax.training.optimizers import make_optimizer

CASES, COUNTS, WIDTH, PROJECTED = 5, (3, 2), 8, 4
IMAGES, TEXT, LABELS = normal(1, CASES, 6), normal(2, 2, WIDTH), random_labels(3, CASES, COUNTS, missing=0.2)
LABELS[0, 0] = -100
BATCH = {"image_features": IMAGES, "labels": LABELS}
WEIGHTS = np.array([[0.5, 1.5, 1], [0.4, 1.6, 0]], np.float32)


def make_networks(*, dropout=False, image_encoder=None):
    """`dropout` applies to the teacher; the student has none."""
    rates = {} if dropout else {f"{place}_dropout_rate": 0.0 for place in ("attention", "context", "head")}
    return Networks(
        teacher=Teacher(answers_per_step=COUNTS, width=WIDTH, num_layers=1, num_heads=2, **rates),
        student=Student(answers_per_step=COUNTS, width=5, dropout_rate=0.0),
        image_encoder=image_encoder,
        projection_width=PROJECTED,
    )


def make_params(networks, batch=BATCH):
    init = functools.partial(init_params, networks, key=jax.random.key(0))
    return randomise(jax.eval_shape(lambda batch, text: init(batch=batch, text_features=text), batch, TEXT))


NETWORKS = make_networks()
PARAMS = make_params(NETWORKS)
PARAMS_64 = oracle.as_float64(PARAMS)
NOISY = make_networks(dropout=True)
SEEING = make_networks(image_encoder=Pooled())
SEEING_BATCH = {"images": normal(5, CASES, 4, 4, 3), "labels": LABELS}
SEEING_PARAMS = make_params(SEEING, SEEING_BATCH)
RATES = {"teacher": 0.05, "student": 0.02}
ADAMW = {name: make_optimizer(learning_rate=rate) for name, rate in RATES.items()}
DESCENT = {name: optax.sgd(rate) for name, rate in RATES.items()}  # compiles faster


def encode(params):
    """`Pooled` in NumPy."""
    pooled = np.float64(SEEING_BATCH["images"]).mean(axis=(1, 2))
    return oracle.linear(pooled, params["image_encoder"]["Dense_0"])


def expect_student(params, targets, **settings):
    return oracle.student_objective(
        student=oracle.student(params["student"], IMAGES),
        teacher=targets,
        labels=LABELS,
        student_projection=params["student_projection"],
        teacher_projection=params["teacher_projection"],
        **settings,
    )


def pad(logits):
    widest = max(COUNTS)
    padded = [np.pad(x, ((0, 0), (0, widest - x.shape[1])), constant_values=-1e9) for x in logits]
    return np.stack(padded, axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def targets():
    return oracle.teacher(PARAMS_64["teacher"], IMAGES, TEXT)


@functools.cache
def teacher_run(networks, weighted=False):
    """(params, batch, text) -> loss parts, features, gradients; compiled once."""
    objective = Objective(answer_weights=jnp.asarray(WEIGHTS) if weighted else None)
    return quick_jit(
        lambda params, batch, text: updates.teacher_gradients(networks, objective, params, batch, text, key=None)
    )


@functools.cache
def student_run(name):
    """(params, batch, targets) -> loss parts, gradients; compiled once."""

    def run(params, batch, targets):
        rest = {"image_features": batch["image_features"], "targets": targets, "key": None}
        return updates.student_gradients(NETWORKS, SETTINGS[name][0], params, batch, **rest)

    return quick_jit(run)


def as_reading(targets):
    features = targets["image_features"].astype(np.float32)
    return TeacherReading(logits=pad(targets["logits"]), image_features=features, memory=None, attention=None)


def teacher_total(params, images=IMAGES, weights=None):
    return oracle.teacher_objective(oracle.teacher(params, images, TEXT)["logits"], LABELS, weights)["total"]


def test_linear_heads_join_the_loss_of_the_teachers_phase():
    scale, objective = 0.7, Objective(plain_scale=0.7)
    networks = SEEING.replace(plain=LinearHeads(COUNTS))
    params = make_params(networks, SEEING_BATCH)
    run = quick_jit(
        lambda params, batch, text: updates.teacher_gradients(networks, objective, params, batch, text, key=None)
    )
    parts, _, gradients = run(params, SEEING_BATCH, TEXT)

    def total(tree):
        images = encode(tree)
        logits = images @ tree["plain"]["answers"]["kernel"] + tree["plain"]["answers"]["bias"]
        plain = oracle.teacher_objective([logits[:, :3], logits[:, 3:]], LABELS)
        return teacher_total(tree["teacher"], images) + scale * plain["total"], plain["hard_label"]

    tree = {name: oracle.as_float64(params[name]) for name in ("teacher", "image_encoder", "plain")}
    assert_close(parts.total, total(tree)[0])
    assert_close(parts.further["plain"], total(tree)[1])
    assert check_gradients(lambda tree: total(tree)[0], tree, gradients, entries=1) > 1e-2


def test_gradients_of_image_encoder_and_weighted_answers_are_those_of_the_oracle():
    parts, features, gradients = teacher_run(SEEING, weighted=True)(SEEING_PARAMS, SEEING_BATCH, TEXT)
    assert_close(features, encode(oracle.as_float64(SEEING_PARAMS)))
    tree = {name: oracle.as_float64(SEEING_PARAMS[name]) for name in ("teacher", "image_encoder")}

    def total(tree):
        return teacher_total(tree["teacher"], encode(tree), WEIGHTS)

    assert_close(parts.total, total(tree))
    assert check_gradients(total, tree, gradients, entries=1) > 1e-2
    encoder, found = ({"image_encoder": one["image_encoder"]} for one in (tree, gradients))
    assert check_gradients(lambda part: total({**tree, **part}), encoder, found, entries=6) > 1e-2


SETTINGS = {
    "paper": (Objective(), {}),
    "scaled": (
        Objective(temperature=1.5, soft_label_scale=0.25, channel_alignment_scale=3.0, train_teacher_projection=True),
        {"temperature": 1.5, "alpha_kd": 0.25, "alpha_ch": 3.0},
    ),
    "authors": (Objective(alignment_gradient="projection"), {}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_student_gradients_are_those_of_the_oracle(name, targets):
    objective, settings = SETTINGS[name]
    parts, gradients = student_run(name)(PARAMS, BATCH, as_reading(targets))
    for part, value in expect_student(PARAMS_64, targets, **settings).items():
        assert_close(getattr(parts, part), value, 1e-4)
    trained = set(updates.student_part(PARAMS, train_teacher_projection=objective.train_teacher_projection))
    assert set(gradients) == trained

    def total(tree, **more):
        return expect_student({**PARAMS_64, **tree}, targets, **{**settings, **more})["total"]

    tree = {part: oracle.as_float64(PARAMS[part]) for part in trained}
    if name == "authors":
        # Under the authors' objective, alignment trains only the student's projection.
        student = {"student": tree.pop("student")}
        check_gradients(lambda tree: total(tree, alpha_ch=0.0), student, {"student": gradients.pop("student")})
    assert check_gradients(total, tree, gradients, entries=3) > 1e-3


def start(networks, optimizers=DESCENT, objective=Objective(), params=PARAMS, seed=0):  # noqa: B008  (frozen)
    return updates.start_state(jax.tree.map(jnp.array, params), objective, optimizers, key=jax.random.key(seed))


def fetch(tree):
    return jax.tree.map(np.asarray, tree)


def assert_trees_close(found, expected, tolerance):
    jax.tree.map(lambda a, b: assert_close(a, b, tolerance), fetch(found), fetch(expected))


def compile_step(make, networks, optimizers=DESCENT, objective=Objective()):  # noqa: B008
    update = make(networks, objective, optimizers)
    return quick_jit(lambda state, batch, text: update(state, {**batch, "text_features": text}), donate_argnums=0)


@pytest.fixture(scope="module")
def joint():
    return compile_step(updates.make_joint_update, NETWORKS, ADAMW)


@pytest.fixture(scope="module")
def noisy_joint():
    """With dropout in the teacher's update and none in its targets."""
    return compile_step(updates.make_joint_update, NOISY)


def stepped(params, gradients, rate):
    """Parameters after PyTorch's clipping and one AdamW step."""
    leaves, structure = jax.tree.flatten(params)
    clipped = oracle.clip_by_norm([np.float64(leaf) for leaf in jax.tree.leaves(gradients)], 1.0)
    return jax.tree.unflatten(structure, oracle.AdamW(leaves, lr=rate).step(clipped))


def norm(tree):
    return np.sqrt(sum((np.float64(leaf) ** 2).sum() for leaf in jax.tree.leaves(tree)))


@pytest.mark.slow
def test_joint_step_is_teacher_then_fresh_targets_then_student(joint, targets):
    state, metrics = joint(start(NETWORKS, ADAMW), BATCH, TEXT)
    # The teacher: clipped gradient through AdamW, which amplifies rounding where a gradient is almost zero.
    _, _, gradients = teacher_run(NETWORKS)(PARAMS, BATCH, TEXT)
    assert_close(metrics.gradient_norms["teacher"], norm(gradients))
    assert_close(metrics.losses["teacher"].total, teacher_total(PARAMS_64["teacher"]))
    assert_trees_close(state.params["teacher"], stepped(PARAMS["teacher"], gradients["teacher"], 0.05), 2e-3)
    assert apart(state.params["teacher"], PARAMS["teacher"]) > 0.04
    # The student: losses and gradients against the updated teacher.
    fresh = oracle.teacher(oracle.as_float64(fetch(state.params["teacher"])), IMAGES, TEXT)
    expected, stale = expect_student(PARAMS_64, fresh), expect_student(PARAMS_64, targets)
    for part, value in expected.items():
        assert_close(getattr(metrics.losses["student"], part), value, 1e-4)
    assert abs(stale["total"] - expected["total"]) > 1e-2
    _, gradients = student_run("paper")(PARAMS, BATCH, as_reading(fresh))
    assert_close(metrics.gradient_norms["student"], norm(gradients))
    trained = {name: PARAMS[name] for name in ("student", "student_projection")}
    assert_trees_close({name: state.params[name] for name in trained}, stepped(trained, gradients, 0.02), 2e-3)
    assert_trees_close(state.params["teacher_projection"], PARAMS["teacher_projection"], 0)


@pytest.mark.slow
def test_batch_without_annotations_moves_parameters_by_decay_alone(joint):
    state, metrics = joint(start(NETWORKS, ADAMW), {**BATCH, "labels": np.full_like(LABELS, -100)}, TEXT)
    assert float(metrics.losses["teacher"].total) == float(metrics.losses["student"].total) == 0.0
    for name, rate in (("teacher", 0.05), ("student", 0.02), ("student_projection", 0.02)):
        for found, leaf in zip(*map(jax.tree.leaves, (state.params[name], PARAMS[name])), strict=True):
            np.testing.assert_allclose(found, np.asarray(leaf) * (1 - 0.01 * rate), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_step_is_a_function_of_state_and_batch(noisy_joint):
    runs = [noisy_joint(start(NOISY), BATCH, TEXT) for _ in range(2)]
    assert_trees_close(runs[0][0].params, runs[1][0].params, 0)
    _, other_seed = noisy_joint(start(NOISY, seed=1), BATCH, TEXT)
    _, other_step = noisy_joint(start(NOISY).replace(step=jnp.ones((), jnp.int32)), BATCH, TEXT)
    assert len({float(metrics.losses["teacher"].total) for metrics in (runs[0][1], other_seed, other_step)}) == 3


@pytest.mark.slow
def test_targets_are_made_without_dropout_by_an_updated_teacher(noisy_joint):
    state, metrics = noisy_joint(start(NOISY), BATCH, TEXT)
    assert abs(float(metrics.losses["teacher"].total) - teacher_total(PARAMS_64["teacher"])) > 1e-3
    fresh = oracle.teacher(oracle.as_float64(fetch(state.params["teacher"])), IMAGES, TEXT)
    for part, value in expect_student(PARAMS_64, fresh).items():
        assert_close(getattr(metrics.losses["student"], part), value, 1e-4)


@pytest.mark.slow
def test_dropout_of_targets_and_the_teachers_projection_act_on_request():
    objective = Objective(target_dropout=True, train_teacher_projection=True)
    step = compile_step(updates.make_joint_update, NOISY, objective=objective)
    state, metrics = step(start(NOISY, objective=objective), BATCH, TEXT)
    fresh = oracle.teacher(oracle.as_float64(fetch(state.params["teacher"])), IMAGES, TEXT)
    expected = expect_student(PARAMS_64, fresh)
    assert np.abs(metrics.losses["student"].soft_label - expected["soft_label"]).max() > 1e-3
    assert np.abs(metrics.losses["student"].channel_alignment - expected["channel_alignment"]).max() > 1e-4
    assert_close(metrics.losses["student"].hard_label, expected["hard_label"], 1e-4)
    assert apart(state.params["teacher_projection"], PARAMS["teacher_projection"]) > 1e-4


def test_teachers_phase_leaves_the_student_alone():
    step = compile_step(updates.make_teacher_update, NETWORKS)
    state, metrics = step(start(NETWORKS), BATCH, TEXT)
    for name in ("student", "student_projection", "teacher_projection"):
        assert_trees_close(state.params[name], PARAMS[name], 0)
    assert set(metrics.losses) == {"teacher"}
    assert set(metrics.gradient_norms) == {"teacher"}
    assert int(state.step) == 1
    _, _, gradients = teacher_run(NETWORKS)(PARAMS, BATCH, TEXT)
    descended = jax.tree.map(lambda a, b: np.asarray(a) - 0.05 * np.asarray(b), PARAMS["teacher"], gradients["teacher"])
    assert_trees_close(state.params["teacher"], descended, 1e-5)


@pytest.mark.slow
def test_image_encoder_learns_from_the_teachers_loss_alone():
    assert set(updates.teacher_part(SEEING_PARAMS)) == {"teacher", "image_encoder"}
    assert "image_encoder" not in updates.student_part(SEEING_PARAMS, train_teacher_projection=True)
    objective = Objective(answer_weights=jnp.asarray(WEIGHTS))
    step = compile_step(updates.make_joint_update, SEEING, objective=objective)
    state, metrics = step(start(SEEING, objective=objective, params=SEEING_PARAMS), SEEING_BATCH, TEXT)
    _, _, gradients = teacher_run(SEEING, weighted=True)(SEEING_PARAMS, SEEING_BATCH, TEXT)
    for name in ("teacher", "image_encoder"):
        expected = jax.tree.map(lambda a, b: np.asarray(a) - 0.05 * np.asarray(b), SEEING_PARAMS[name], gradients[name])
        assert_trees_close(state.params[name], expected, 1e-5)
    assert apart(state.params["image_encoder"], SEEING_PARAMS["image_encoder"]) > 1e-3
    # The student's input is the encoder's output before the update.
    params = oracle.as_float64(SEEING_PARAMS)
    logits = oracle.student(params["student"], encode(params))["logits"]
    expected = oracle.teacher_objective(logits, LABELS, WEIGHTS)["hard_label"]
    assert_close(metrics.losses["student"].hard_label, expected, 1e-4)


def test_epochs_that_answer_the_same_number_right_tie_in_whatever_steps():
    chain = Chain(tuple(Step(f"step {n}", "?", ("A", "B")) for n in range(3)))
    system = StepCoT(chain, teacher_only=True)
    scores = set()
    for num_correct in ((1, 2, 3), (3, 2, 1), (2, 3, 1)):  # (0.1 + 0.2) + 0.3 is not 0.1 + (0.2 + 0.3) in float64
        labels = np.tile(np.arange(10, dtype=np.int32)[:, None] % 2, (1, 3))
        correct = np.arange(10)[:, None] < np.array(num_correct)
        said = np.where(correct, labels, 1 - labels)
        logits = np.stack([said == 0, said == 1], axis=2).astype(np.float32)
        predictions = Predictions(np.arange(10, dtype=np.int32), labels, {"teacher": logits})
        scores.add(system.evaluate(predictions)["teacher"])
    assert len(scores) == 1
