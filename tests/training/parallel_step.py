"""Gradients and losses of a small joint update on any number of devices and processes."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from oracles.random_params import normal, random_labels, randomise

from stepcot_jax.losses.step_cot import Objective
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.systems.networks import Networks, init_params
from stepcot_jax.systems.updates import SHARED, AnswerSchedule, make_joint_update, start_state
from stepcot_jax.training.devices import Devices

CASES, COUNTS, WIDTH = 32, (3, 2, 4), 8
TEXT = normal(2, len(COUNTS), WIDTH)
LABELS = random_labels(3, CASES, COUNTS, missing=0.4)
LABELS[:4, 1] = -100  # a device without an annotated case of this step
LABELS[:, 2] = np.where(np.arange(CASES) == 9, 1, -100)  # a step annotated in one case of the batch: no alignment
BATCH = {"images": normal(1, CASES, 8, 8, 3), "labels": LABELS}
WEIGHTS = np.array([[0.5, 1.5, 1, 0], [0.4, 1.6, 0, 0], [1, 1, 1, 1]], np.float32)
# With plain gradient descent the parameter change is the gradient; AdamW would hide a wrong scale.
DESCENT = {name: optax.sgd(1.0) for name in ("teacher", "student")}


class Pooled(nn.Module):
    """An image encoder that compiles fast."""

    @nn.compact
    def __call__(self, images):
        return nn.Dense(6)(images.mean(axis=(1, 2)))


def make_networks(*, remat=False, dtype=jnp.float32):
    return Networks(
        teacher=Teacher(answers_per_step=COUNTS, width=WIDTH, num_layers=1, num_heads=2, remat=remat, dtype=dtype),
        student=Student(answers_per_step=COUNTS, width=5, dtype=dtype),
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
def run(transform="pmap", num_devices=1, num_passes=1, remat=False, bfloat16=False):
    """Gradients and metrics of a joint update with dropout and some answers given, and the compiled program."""
    devices = Devices(transform=transform, num_devices=num_devices, num_passes=num_passes, shared=SHARED)
    devices.check_batch_size(CASES)
    objective = Objective(answer_weights=jnp.asarray(WEIGHTS))
    state, text = devices.replicate(start()), devices.replicate(TEXT)
    networks = make_networks(remat=remat, dtype=jnp.bfloat16 if bfloat16 else jnp.float32)
    shapes = {name: jax.ShapeDtypeStruct(rows.shape, rows.dtype) for name, rows in BATCH.items()}
    update = devices.compile_update(
        make_joint_update(networks, objective, DESCENT, AnswerSchedule(0.5, noise=0.2)),
        state=state,
        batch={**shapes, "text_features": text},
    )
    num_local = CASES // jax.process_count()
    own = slice(num_local * jax.process_index(), num_local * (jax.process_index() + 1))
    batch = devices.put_training_rows({name: rows[own] for name, rows in BATCH.items()} | {"text_features": text})
    with jax.transfer_guard("disallow"):
        after, metrics = update(state, batch)
    assert jax.process_count() > 1 or state.step.is_deleted()  # donated
    assert after.step.sharding == devices.replicated
    gradients = jax.tree.map(lambda old, new: old - new, make_params(), jax.device_get(after.params))
    return gradients, jax.device_get(metrics), update
