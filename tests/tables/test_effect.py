"""Given answers: the first steps' true ones in order, the network's own where nobody answered, counted where known."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run.small_run import small_settings
from tables.finished_cells import make_plan

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.record import Record
from stepcot_jax.run import inputs
from stepcot_jax.run.inputs import Inputs
from stepcot_jax.tools.tables import cell_networks, cells
from stepcot_jax.tools.tables.cell_networks import Weights, read_cases, read_given
from stepcot_jax.tools.tables.command import find_recipe

OPTIONS = (3, 3, 4, 2)
UNANNOTATED = 3
TEXTS = [tuple(f"Answer {k}" for k in range(number)) for number in OPTIONS]
CHAIN = Chain(tuple(Step(f"Step {place}", "?", texts) for place, texts in enumerate(TEXTS)))
NUM_CASES = 40


@pytest.fixture(autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class CountingTeacher:
    """Reads its own answers from the features; each is off by as much as all earlier answers in memory are.

    A stand-in whose every logit is known: feature [case, step] is its own answer to a step, and memory holds given
    answers, or its own where -1 is given. Any other number that is no answer spoils what comes after it.
    """

    def apply(self, variables, *, image_features, text_features, given_answers, deterministic):
        assert deterministic
        own = image_features.astype(jnp.int32)
        written = jnp.where(given_answers == -1, own, given_answers)
        errors = jnp.cumsum(written - own, axis=1) - (written - own)
        answers = (own + errors) % jnp.asarray(OPTIONS)
        return types.SimpleNamespace(logits=5.0 * jax.nn.one_hot(answers, max(OPTIONS)))


RNG = np.random.default_rng(6)
OWN, LABELS = (np.stack([RNG.integers(0, count, NUM_CASES) for count in OPTIONS], axis=1) for _ in range(2))
LABELS[RNG.random(LABELS.shape) < 0.3] = NOT_ANNOTATED
LABELS[:, UNANNOTATED] = NOT_ANNOTATED


def expected_answers(count):
    found = []
    for own, labels in zip(OWN.tolist(), LABELS.tolist(), strict=True):
        error, answers = 0, []
        for step, options in enumerate(OPTIONS):
            answers.append((own[step] + error) % options)
            if step < count and labels[step] != NOT_ANNOTATED:
                error += labels[step] - own[step]
        found.append(answers)
    return np.array(found)


def make_inputs():
    cases = tuple(
        Record(patient=f"P{number}", image=f"{number}.png", answers=tuple(labels), reasoning=("",) * 4)
        for number, labels in enumerate(LABELS.tolist())
    )
    splits = Splits(train=(0, 1, 2), val=(3,), test=tuple(range(4, NUM_CASES)))
    dataset = Dataset(CHAIN, cases, splits, None, Preprocessing(32), features=OWN.astype(np.float32))
    prepare = lambda batch: {name: batch[name] for name in ("image_features", "labels")}  # noqa: E731
    return Inputs(dataset, None, None, prepare)


def make_weights():
    networks = types.SimpleNamespace(teacher=CountingTeacher(), image_encoder=None, remat=False)
    return Weights(None, CHAIN, networks, {"teacher": {"teacher": {}}}, None)


def test_true_answers_are_given_in_order_and_missing_ones_stay_the_networks_own():
    split = read_cases(read_given(make_weights(), range(3)), make_inputs(), "test", small_settings())
    assert list(split.predictions.logits) == ["0 given", "1 given", "2 given"]
    answers = {name: logits.argmax(-1) for name, logits in split.predictions.logits.items()}
    for count in range(3):
        np.testing.assert_array_equal(answers[f"{count} given"], expected_answers(count)[4:])
    np.testing.assert_array_equal(answers["0 given"], OWN[4:])
    np.testing.assert_array_equal(answers["1 given"][:, 0], OWN[4:, 0])
    moved = (answers["2 given"] != answers["1 given"]).sum(axis=0)
    assert moved[:2].tolist() == [0, 0]
    assert moved[2] > 5  # else the test would see nothing


def test_the_table_counts_annotated_cases_alone(tmp_path, monkeypatch):
    plan = make_plan(tmp_path, seeds=(0,))
    monkeypatch.setattr(cells.Cells, "chain", lambda self, cell: CHAIN)
    monkeypatch.setattr(cell_networks, "load_weights", lambda folder, names: make_weights())
    monkeypatch.setattr(inputs, "load_inputs", lambda settings, folder, terminal: make_inputs())
    (table,) = find_recipe("effect").tabulate(plan)
    expected = [(f"Step {step}", count) for step in range(3) for count in range(step + 1)]
    assert [row[:2] for row in table.rows] == expected
    shares = {}
    for name, count, accuracy, difference, *_ in table.rows:
        step, annotated = int(name[-1]), LABELS[4:, int(name[-1])] != NOT_ANNOTATED
        right = (expected_answers(count)[4:, step] == LABELS[4:, step])[annotated]
        assert 15 < len(right) < NUM_CASES - 4
        shares[name, count] = right.mean()
        assert accuracy.value == pytest.approx(right.mean())
        if count:
            assert difference.value == pytest.approx(right.mean() - shares[name, 0])
    assert len({shares["Step 2", count] for count in range(3)}) == 3
