import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import reference_numpy as oracle
from oracles.quick_jit import quick_jit
from oracles.random_params import assert_close, normal, random_labels

from stepcot_jax.losses.step_cot import LinearMap, Objective, batch_totals, student_objective, teacher_objective
from stepcot_jax.training.devices import GlobalBatch

CASES, COUNTS, STUDENT, TEACHER, PROJECTED = 6, (4, 2, 3), 5, 7, 4
LABELS = random_labels(1, CASES, COUNTS)
LABELS[:, 1] = -100
LABELS[2, 1] = 1  # a step with a single annotated case
WEIGHTS = np.array([[0.5, 1, 2, 0.5], [1.5, 0.5, 0, 0], [1, 0.5, 1.5, 0]], np.float32)
INPUTS = {
    "student_features": normal(2, CASES, STUDENT),
    "teacher_features": normal(3, CASES, 3, TEACHER),
    "student_projection": {"kernel": normal(4, STUDENT, PROJECTED), "bias": normal(5, PROJECTED)},
    "teacher_projection": {"kernel": normal(6, TEACHER, PROJECTED), "bias": normal(7, PROJECTED)},
}
LOGITS = {side: [2 * normal(seed + k, CASES, n) for k, n in enumerate(COUNTS)] for side, seed in (("s", 10), ("t", 20))}


def pad(logits):
    return np.stack([np.pad(x, ((0, 0), (0, 4 - x.shape[1])), constant_values=-1e9) for x in logits], axis=1)


INPUTS |= {"student_logits": pad(LOGITS["s"]), "teacher_logits": pad(LOGITS["t"])}


def run(inputs, labels, **settings):
    maps = {name: LinearMap(**inputs[name]) for name in ("student_projection", "teacher_projection")}
    settings = {name: jnp.asarray(one) if name == "answer_weights" else one for name, one in settings.items()}
    objective = Objective(**settings)
    return student_objective(**{**inputs, **maps}, labels=jnp.asarray(labels), objective=objective)


def expect(labels=LABELS, **settings):
    features = {side: np.float64(INPUTS[f"{side}_features"]) for side in ("student", "teacher")}
    return oracle.student_objective(
        student={"logits": LOGITS["s"], "image_features": features["student"]},
        teacher={"logits": LOGITS["t"], "image_features": features["teacher"]},
        labels=labels,
        **{name: oracle.as_float64(INPUTS[name]) for name in ("student_projection", "teacher_projection")},
        **settings,
    )


def gradients(labels=LABELS, **settings):
    return quick_jit(jax.grad(lambda inputs: run(inputs, labels, **settings).total))(INPUTS)


@pytest.fixture(scope="module")
def by_features():
    return gradients(alignment_gradient="features")


def check(found, expected):
    for name, value in expected.items():
        assert_close(getattr(found, name), value, 1e-4)
        assert getattr(found, name).dtype == jnp.float32


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_teacher_total_agrees_with_the_oracle(weights):
    run = quick_jit(lambda logits, labels, w: teacher_objective(logits=logits, labels=labels, answer_weights=w))
    found = run(INPUTS["teacher_logits"], LABELS, weights)
    check(found, oracle.teacher_objective(LOGITS["t"], LABELS, weights))
    assert found.soft_label is found.channel_alignment is found.alignment_weight is None


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"normaliser": "trace", "alignment_gradient": "projection"}, {"normaliser": "trace"}),
        (
            {"soft_label_scale": 0.25, "channel_alignment_scale": 3.0, "temperature": 1.5, "answer_weights": WEIGHTS},
            {"alpha_kd": 0.25, "alpha_ch": 3.0, "temperature": 1.5, "answer_weights": WEIGHTS},
        ),
    ],
)
def test_student_total_agrees_with_the_oracle(ours, theirs):
    found, expected = quick_jit(lambda inputs: run(inputs, LABELS, **ours))(INPUTS), expect(**theirs)
    check(found, expected)
    assert expected["channel_alignment"][0] > 1e-3
    assert float(found.channel_alignment[1]) == 0.0  # alignment needs at least two cases
    assert float(found.hard_label[1]) > 0


def test_nothing_annotated_costs_nothing():
    labels = np.full_like(LABELS, -100)
    total, found = quick_jit(jax.value_and_grad(lambda inputs: run(inputs, labels).total))(INPUTS)
    assert float(total) == 0.0
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(found))


def test_projections_get_a_gradient_whoever_asks(by_features):
    """The teacher never has one; the student's features have that of the alignment in the paper's form alone."""
    by_projection = gradients(alignment_gradient="projection")
    for found in (by_features, by_projection):
        assert not np.asarray(found["teacher_logits"]).any()
        assert not np.asarray(found["teacher_features"]).any()
    for side in ("student_projection", "teacher_projection"):
        assert np.abs(by_features[side]["kernel"]).max() > 1e-3
        for name in ("kernel", "bias"):
            assert_close(by_projection[side][name], by_features[side][name], 1e-6)
    assert np.abs(by_features["student_features"]).max() > 1e-3
    assert not np.asarray(by_projection["student_features"]).any()
    assert_close(by_projection["student_logits"], by_features["student_logits"], 1e-6)


def test_feature_gradient_agrees_with_finite_differences_of_the_oracle(by_features):
    step, features = 1e-6, INPUTS["student_features"]
    for index in [(0, 0), (2, 3), (5, 1), (4, 4)]:
        values = []
        for shift in (step, -step):
            moved = np.float64(features)
            moved[index] += shift
            INPUTS["student_features"] = moved
            values.append(expect()["total"])
        INPUTS["student_features"] = features
        numeric = (values[0] - values[1]) / (2 * step)
        assert float(by_features["student_features"][index]) == pytest.approx(numeric, abs=2e-5, rel=2e-5)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_shares_of_two_devices_add_up_to_the_whole_batch(weights):
    objective = Objective(answer_weights=None if weights is None else jnp.asarray(weights), parts={"a": (agree, 0.3)})
    projections = ("student_projection", "teacher_projection")
    maps = {name: LinearMap(**jax.tree.map(jnp.asarray, INPUTS[name])) for name in projections}
    rows = {name: jnp.asarray(array) for name, array in INPUTS.items() if name not in projections}
    rows |= {"labels": jnp.asarray(LABELS)}

    def share(rows):
        both = GlobalBatch("device")
        totals = both.add_up(batch_totals(rows["labels"], objective.answer_weights))
        reductions = {"totals": totals, "gather": both.gather, "add_up": both.add_up}
        return student_objective(**rows, **maps, objective=objective, **reductions)

    halves = {name: array.reshape(2, CASES // 2, *array.shape[1:]) for name, array in rows.items()}
    shares = quick_jit(jax.vmap(share, axis_name="device"))(halves)
    whole = student_objective(**rows, **maps, objective=objective)
    jax.tree.map(lambda parts, one: assert_close(parts.sum(axis=0), one, 1e-5), shares, whole)


def agree(*, teacher, student, labels, annotated):
    distance = jnp.square(jax.nn.softmax(teacher) - jax.nn.softmax(student)).sum(-1)
    return (distance * annotated).sum(), annotated.sum()


def test_a_part_of_the_caller_is_its_mean_times_its_weight_and_trains_the_student_alone(by_features):
    found = quick_jit(lambda inputs: run(inputs, LABELS, parts={"agree": (agree, 0.3)}))(INPUTS)
    teacher, student = (np.float64(INPUTS[f"{side}_logits"]) for side in ("teacher", "student"))
    shares = [np.exp(x - x.max(-1, keepdims=True)) for x in (teacher, student)]
    shares = [x / x.sum(-1, keepdims=True) for x in shares]
    expected = np.square(shares[0] - shares[1]).sum(-1)[LABELS >= 0].mean()
    assert_close(found.further["agree"], expected, 1e-5)
    assert_close(found.total, expect()["total"] + 0.3 * expected, 1e-5)
    assert list(found.by_name()) == ["hard_label", "soft_label", "channel_alignment", "alignment_weight", "agree"]
    with_part = gradients(parts={"agree": (agree, 0.3)})
    assert np.abs(with_part["student_logits"] - by_features["student_logits"]).max() > 1e-3
    assert not np.asarray(with_part["teacher_logits"]).any()
    assert not np.asarray(with_part["student_logits"])[LABELS < 0].any()


def test_a_part_that_would_hide_another_is_refused():
    with pytest.raises(ValueError, match="'total' is not a free name"):
        Objective(parts={"total": (agree, 1.0)})
