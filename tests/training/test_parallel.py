"""One device, several, and several passes: the same losses and the same raw gradients."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracles.random_params import normal, random_labels, randomise

from stepcot_jax.errors import BadInput
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.training.global_batch import AXIS
from stepcot_jax.training.parallel import Devices
from stepcot_jax.training.state import Networks, init_params
from stepcot_jax.training.steps import Objective, make_joint_step, start_state

CASES, COUNTS, WIDTH = 32, (3, 2, 4), 8
TEXT = normal(2, len(COUNTS), WIDTH)
LABELS = random_labels(3, CASES, COUNTS, missing=0.4)
LABELS[:4, 1] = -100  # a device that has no annotated case of a step
LABELS[:, 2] = np.where(np.arange(CASES) == 9, 1, -100)  # a step that one case of the batch has: no alignment
BATCH = {"images": normal(1, CASES, 8, 8, 3), "labels": LABELS}
WEIGHTS = np.array([[0.5, 1.5, 1, 0], [0.4, 1.6, 0, 0], [1, 1, 1, 1]], np.float32)
# What a step of plain descent takes from the parameters is the gradient itself; AdamW would hide a wrong scale.
DESCENT = {name: optax.sgd(1.0) for name in ("teacher", "student")}


class Pooled(nn.Module):
    """An image encoder that compiles at once."""

    @nn.compact
    def __call__(self, images):
        return nn.Dense(6)(images.mean(axis=(1, 2)))


def make_networks(*, remat=False):
    return Networks(
        teacher=Teacher(answers_per_step=COUNTS, width=WIDTH, num_layers=1, num_heads=2, remat=remat),
        student=Student(answers_per_step=COUNTS, width=5),
        image_encoder=Pooled(),
        projection_width=4,
        remat=remat,
    )


@functools.cache
def make_params():
    init = functools.partial(init_params, make_networks(), key=jax.random.key(0))
    shapes = jax.eval_shape(lambda batch, text: init(batch=batch, text_features=text), BATCH, TEXT)
    return jax.device_get(randomise(shapes))


def start():
    return start_state(jax.tree.map(jnp.array, make_params()), Objective(), DESCENT, key=jax.random.key(5))


@functools.cache
def run(transform="pmap", num_devices=1, num_passes=1, remat=False, weighted=False):
    """Gradients and metrics of a joint step, dropout on; and the compiled program."""
    devices = Devices(transform=transform, num_devices=num_devices, num_passes=num_passes)
    devices.check_batch_size(CASES)
    objective = Objective(answer_weights=jnp.asarray(WEIGHTS) if weighted else None)
    state, text = devices.put_whole(start()), devices.put_whole(TEXT)
    step = devices.compile_step(
        functools.partial(make_joint_step, make_networks(remat=remat), objective, DESCENT),
        state=state,
        batch={name: jax.ShapeDtypeStruct(rows.shape, rows.dtype) for name, rows in BATCH.items()},
        text_features=text,
    )
    batch = devices.put_training_rows(BATCH)
    with jax.transfer_guard("disallow"):
        after, metrics = step(state, batch, text)
    assert state.step.is_deleted()  # donated
    assert after.step.sharding == devices.whole
    gradients = jax.tree.map(lambda old, new: old - new, make_params(), jax.device_get(after.params))
    return gradients, jax.device_get(metrics), step


SPREAD = {
    "pmap": {"num_devices": 8},
    "shard_map": {"transform": "shard_map", "num_devices": 8},
    "two devices": {"num_devices": 2},
    "passes": {"num_passes": 4},
    "devices and passes": {"transform": "shard_map", "num_devices": 4, "num_passes": 2},
    "remat": {"remat": True},
    "weighted": {"num_devices": 8, "weighted": True},
}


@pytest.mark.parametrize("name", SPREAD)
def test_losses_and_raw_gradients_are_those_of_one_device(name):
    gradients, metrics, _ = run(**SPREAD[name])
    expected, expected_metrics, _ = run(weighted=SPREAD[name].get("weighted", False))
    for (path, found), wanted in zip(
        jax.tree_util.tree_leaves_with_path((gradients, metrics)),
        jax.tree.leaves((expected, expected_metrics)),
        strict=True,
    ):
        # The parameters carry a rounding of their own, of which a difference of two has a share.
        scale = np.abs(wanted).max()
        assert np.abs(found - wanted).max() <= 1e-5 * max(scale, 0.05), jax.tree_util.keystr(path)
    for part in ("teacher", "student", "image_encoder", "student_projection"):
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected[part])) > 1e-3


def test_alignment_sees_the_whole_batch():
    # Of eight devices with four cases each none could compute this weight from its own.
    weight = run(num_devices=8)[1].student.alignment_weight
    assert (weight[:2] > 0).all()
    assert weight[2] == 0


@pytest.mark.parametrize("name", ["pmap", "shard_map"])
def test_program_gathers_projections_and_adds_up_gradients_once(name):
    text = run(**SPREAD[name])[2].as_text()
    gathered = re.findall(r"= (\S+?)\[[\d,]*\]\S* all-gather", text)
    assert gathered, "nothing is gathered"
    assert "all-reduce" in text


def test_rows_lie_in_the_order_of_the_batch():
    devices = Devices(num_devices=8)
    rows = devices.put_training_rows({"labels": LABELS})["labels"]
    assert rows.shape == (8, 4, len(COUNTS))
    np.testing.assert_array_equal(np.asarray(rows).reshape(CASES, -1), LABELS)
    by_row = devices.put_rows({"labels": LABELS})["labels"]
    assert by_row.sharding.spec == jax.sharding.PartitionSpec(AXIS)
    np.testing.assert_array_equal(by_row, LABELS)


@pytest.mark.parametrize(
    ("settings", "batch_size", "message"),
    [
        ({"num_devices": 9}, 18, r"config\.parallel\.num_devices: found 9, accepted are 0 \(all\) to 8"),
        ({"num_devices": 8}, 12, r"batch_size: found 12 for 8 devices and 1 passes, accepted are multiples of 8"),
        ({"num_devices": 2, "num_passes": 4}, 12, "multiples of 8"),
    ],
)
def test_batches_and_devices_that_do_not_fit_are_refused(settings, batch_size, message):
    with pytest.raises(BadInput, match=message):
        Devices(**settings).check_batch_size(batch_size)
