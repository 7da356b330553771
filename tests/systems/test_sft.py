"""Fine-tuning: the loss and its gradient against each record alone, in NumPy; rows, packs and order of batches."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies import tiny_policy as tiny
from systems.policy_step import PACKS, SETTINGS, descend, make_params, make_update, start

from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.policies.records import NO_PART
from stepcot_jax.systems.policy_system import sft_schedule
from stepcot_jax.systems.sft import POLICY, PackedRows, draw_batches, pack_split
from stepcot_jax.training.devices import ONE_DEVICE

WEIGHTS = (1.0, 0.3)
ALONE = [pack[:1] for pack in PACKS]
LENGTH = 30


@pytest.fixture(scope="module")
def params():
    return tiny.random_params()


def gradients_by_chain_rule(params, batch, of_logits):
    """NumPy's gradient of the loss by the scores, carried to the parameters."""
    place = lambda params: tiny.NETWORK.apply(  # noqa: E731
        {"params": params},
        tiny.normalise(jnp.asarray(batch["images"])),
        *(jnp.asarray(batch[name]) for name in ("tokens", "segments", "places")),
        method="score_packed",
    )
    return jax.jit(lambda params: jax.vjp(place, params)[1](jnp.asarray(of_logits, jnp.float32))[0])(params)


@pytest.mark.slow
@pytest.mark.parametrize(("reduction", "packs"), [("tokens", PACKS), ("parts", ALONE)])
def test_loss_and_gradient_are_those_of_each_record_alone(params, reduction, packs):
    batch = tiny.lay_out(packs, LENGTH, weights=WEIGHTS)
    changes = {"pack_length": 0, "reduction": reduction} if reduction == "parts" else {}
    gradients, numbers = descend(make_update("sft", **changes), batch)
    assert numbers["loss"] == pytest.approx(
        tiny.loss_alone(params, batch["images"], packs, weights=WEIGHTS, reduction=reduction), rel=1e-5
    )
    scores = np.asarray(tiny.score_quickly(params, batch), np.float64)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    counted = batch["parts"] != NO_PART
    weights = np.where(counted, np.array([*WEIGHTS, 0.0])[batch["parts"]], 0.0)
    if reduction == "tokens":
        weights /= weights.sum()
    else:
        for part in range(2):
            own = batch["parts"] == part
            weights = np.where(own, weights / np.maximum(own.sum(axis=1, keepdims=True), 1), weights)
        weights /= len(packs)
    of_logits = (shares - np.eye(tiny.WORDS)[batch["targets"]]) * weights[..., None]
    expected = gradients_by_chain_rule(params, batch, of_logits)
    for (path, leaf), wanted in zip(
        jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(expected), strict=True
    ):
        scale = max(np.abs(wanted).max(), 1e-3)
        np.testing.assert_allclose(leaf, wanted, atol=1e-5 * scale, err_msg=jax.tree_util.keystr(path))


@pytest.mark.slow
def test_the_length_of_a_row_and_its_padding_do_not_matter():
    update = make_update("sft")
    expected, wanted = descend(update, tiny.lay_out(PACKS, LENGTH))
    batch = tiny.lay_out(PACKS, LENGTH + 5)
    batch["tokens"] = np.where(batch["segments"] == 0, tiny.STOP, batch["tokens"]).astype(np.int32)
    batch["targets"] = np.where(batch["parts"] == NO_PART, 5, batch["targets"]).astype(np.int32)
    found, numbers = descend(update, batch)
    assert numbers == pytest.approx(wanted, rel=1e-5)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5), found, expected)


def test_an_update_moves_the_policy_alone():
    batch = tiny.lay_out(PACKS, LENGTH)
    gradients, wanted = descend(make_update("sft"), batch)
    state, numbers = jax.jit(make_update("sft"), static_argnums=2)(start(), batch, ONE_DEVICE)
    assert int(state.step) == 1
    assert float(numbers["sft/loss"]) == pytest.approx(wanted["loss"], rel=1e-5)
    squares = sum((leaf.astype(np.float64) ** 2).sum() for leaf in jax.tree.leaves(gradients))
    assert float(numbers["sft/gradient_norm"]) == pytest.approx(np.sqrt(squares), rel=1e-5)
    before = make_params()
    jax.tree.map(np.testing.assert_array_equal, state.params["reference"], before["reference"])
    moved = jax.tree.map(lambda old, slope: old - slope, before[POLICY], gradients)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), state.params[POLICY], moved)


def make_dataset(image_of):
    images = tiny.draw_pictures(max(image_of) + 1)
    return types.SimpleNamespace(
        image_of=np.array(image_of),
        splits=Splits(train=(0, 1, 3, 4), val=(), test=()),
        load_images=lambda places: images[np.asarray(places)],
    )


def test_rows_of_a_process_are_its_packs_about_their_pictures():
    dataset = make_dataset([2, 2, 0, 1, 2])
    records = [record for pack in tiny.draw_packs(9) for record in pack][:5]
    encoded = dict(enumerate(records))
    packs, length = pack_split(dataset, encoded, pack_length=0)
    assert packs == [(0,), (1,), (4,), (3,)]  # by image; record 2 is of another split
    assert length == max(records[place].length for place in (0, 1, 3, 4))
    rows = PackedRows(dataset, encoded, packs, length, WEIGHTS, slice(1, 3), lambda pictures: pictures)
    found = rows(0, np.array([0, 3, 2, 1]))
    np.testing.assert_array_equal(found["images"], dataset.load_images([1, 2]))
    np.testing.assert_array_equal(found["part_weights"], np.array([WEIGHTS] * 2, np.float32))
    for row, place in enumerate((3, 4)):
        own = found["segments"][row] == 1
        assert found["tokens"][row][own].tolist() == [*records[place].prompt, *records[place].target]


def test_each_item_comes_once_before_any_repeats_and_in_another_order():
    batches, others = (
        draw_batches(6, batch_size=2, seed=seed, make=lambda update, numbers: (update, numbers.tolist()))
        for seed in (3, 4)
    )
    assert [batches[place] for place in range(3)] != [others[place] for place in range(3)]
    drawn = [batches[place] for place in range(6)]
    assert [update for update, _ in drawn] == list(range(6))
    orders = [[number for _, numbers in drawn[first : first + 3] for number in numbers] for first in (0, 3)]
    assert [sorted(order) for order in orders] == [list(range(6))] * 2
    assert orders[0] != orders[1]


def test_the_rate_rises_and_falls_to_zero():
    settings = dataclasses.replace(
        SETTINGS.sft, epochs=4, warmup_epochs=1.0, learning_rate=0.5, first_learning_rate=0.1, schedule="cosine"
    )
    rate = sft_schedule(settings, 10)
    expected = {0: 0.1, 5: 0.3, 10: 0.5, 25: 0.25, 40: 0.0}
    assert {step: float(rate(step)) for step in expected} == pytest.approx(expected, abs=1e-6)
    constant = sft_schedule(dataclasses.replace(settings, schedule="constant", warmup_epochs=0.0), 10)
    assert [float(constant(step)) for step in (0, 39)] == [0.5, 0.5]
