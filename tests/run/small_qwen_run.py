"""Runs that start from a tiny Qwen2.5-VL in place of the published sizes, and one update of them by itself."""

import contextlib
import functools
import json

import jax
import numpy as np
import pytest
from oracles.random_params import randomise
from policies.qwen.tiny_qwen import IMAGES, VISION
from run.small_policy_run import reward_tokens
from sections import section

from stepcot_jax.policies.qwen_weights import read_qwen_config
from stepcot_jax.run import qwen_source as qwen_setup
from stepcot_jax.run.settings import load_settings
from stepcot_jax.run.training_run import Run
from stepcot_jax.systems.dpo import DpoUpdate
from stepcot_jax.systems.grpo import REFERENCE, GrpoUpdate, Rollouts
from stepcot_jax.systems.options import DPO, DpoOptions
from stepcot_jax.systems.sft import POLICY
from stepcot_jax.training.state import TrainState
from stepcot_jax.training.system import COLLECTED_NUMBERS

PUBLISHED = "Qwen/Qwen2.5-VL-7B-Instruct"
SMALL = {
    **section("phantom", num_cases=30, image_size=32, prevalence="flat"),
    **section("sft", epochs=1, batch_size=16, pack_length=0, learning_rate=1e-2),
    **section("grpo", epochs=1, batch_size=4, group_size=2, updates_per_epoch=2),
    **section("evaluation", num_resamples=0, batch_size=16),
    "image_encoder.image_size": 32,
    "vqa.num_validated": 4,
    "training.log_every": 1,
    "rewards.functions": ("answer=1", "grounding=1", "well_formed=1"),
    "parallel.num_devices": 1,  # the suite has eight virtual devices
}
DRY = {"policy.random": True, "policy.longest_reply": 40}


def settings_of(job, weights, **changes):
    return load_settings("base", **{**SMALL, "job": job, "policy.weights": str(weights), **changes})


@contextlib.contextmanager
def tiny_published(folder, **sizes):
    """Within this context every published id has the sizes of `tiny_qwen.IMAGES`, but for those that are given."""
    (folder / "config.json").write_text(json.dumps(IMAGES | {"vision_config": VISION} | sizes))
    config = read_qwen_config(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qwen_setup, "published_config", lambda name: config)
        yield config


def make_run(workdir, **changes):
    return Run(settings_of("grpo", PUBLISHED, **DRY, **{"grpo.batch_size": 8, **changes}), workdir)


def start(run, *, likely=(), seed=0):
    """A state with random values everywhere, biases too, and a reference that is near the policy but another.

    Scores of the tokens in `likely` are eight times as large, so that some are sampled in most replies.
    """
    shapes = run.state_shapes
    policy, other, frozen = (
        _draw_small(shapes.params[part], seed) for part, seed in ((POLICY, 1), (POLICY, 2), ("frozen", 3))
    )
    if likely:
        head = policy["plain"]["decoder"]["head"]
        head["kernel"] = head["kernel"].at[:, list(likely)].multiply(8.0)
    near = jax.tree.map(lambda one, two: 0.9 * one + 0.1 * two, policy, other)
    params = {POLICY: policy, "frozen": frozen, REFERENCE: near}
    optimizers = {name: run.system.optimizers[name].init({POLICY: policy}) for name in shapes.optimizers}
    state = TrainState(np.int32(0), params, optimizers, jax.random.key_data(jax.random.key(seed)))

    def place(leaf, to):
        return jax.device_put(np.asarray(leaf).astype(to.dtype), to.sharding)

    return jax.tree.map(place, state, shapes)


def _draw_small(shapes, seed):
    """Random values, matrices and biases small enough that no attention is sharp, which would enlarge rounding."""
    return jax.tree.map_with_path(
        lambda path, leaf: leaf if path[-1].key == "scale" else 0.5 * leaf, randomise(shapes, seed)
    )


def roll(run, state):
    """The batch of rollouts of the first prompts, on the host."""
    prompts = run.task.data.make_prompts(run.task.dataset.splits.train[: run.settings.grpo.batch_size])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rollouts, "reward_all", reward_tokens)
        batch = run.system.rollouts(state, prompts)
    del batch[COLLECTED_NUMBERS]
    return batch


def draw_rows(run):
    with run.task.stream() as stream:
        return next(stream.batches)


def differentiate(run, name, state, batch):
    """Raw gradients and numbers of the update of a phase, on the host; the state is used up."""

    def compute(update, state, batch, whole):
        batch = update.freeze(state.params, batch, whole) if isinstance(update, GrpoUpdate | DpoUpdate) else batch
        return state, update.gradients(state.params, batch, whole)

    with run.task.stream():
        found = {phase.name: phase.update for phase in run.system.phases()}
    grpo = found["grpo"]
    found[DPO] = DpoUpdate(grpo.policy, grpo.normalise, grpo.optimizer, DpoOptions())
    placed = run.task.prepare(batch)
    compiled = run.devices.compile_update(functools.partial(compute, found[name]), state=run.state_shapes, batch=placed)
    numbers, gradients = jax.device_get(compiled(state, placed)[1])
    return gradients[POLICY], {name: float(number) for name, number in numbers.items()}
