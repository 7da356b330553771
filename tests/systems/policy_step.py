"""One update of a tiny policy on any number of devices and processes: its raw gradients, numbers and rollouts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from policies.policy_workdir import small_settings
from policies.tiny_policy import NETWORK, STOP, WORDS, draw_packs, draw_pictures, lay_out, normalise, random_params

from stepcot_jax.record import Record
from stepcot_jax.systems import grpo, sft
from stepcot_jax.systems.grpo import REFERENCE, GrpoUpdate, Rollouts
from stepcot_jax.systems.sft import POLICY, SftUpdate
from stepcot_jax.training.devices import Devices
from stepcot_jax.training.state import TrainState
from stepcot_jax.training.system import COLLECTED_NUMBERS

PROMPTS, GROUP, LONGEST = 8, 4, 6
SETTINGS = small_settings(grpo__group_size=GROUP, grpo__beta=0.1, grpo__temperature=0.7)
DESCENT = optax.sgd(1.0)  # of one pass over a batch: the change of the parameters is the gradient
PACKS = draw_packs(PROMPTS, seed=6)


class Words:
    num_words, pad, stop, more_stops = WORDS, 0, STOP, ()

    def encode(self, text):
        return [int(word) for word in text.split()]

    def decode(self, tokens):
        kept = list(tokens)
        return " ".join(map(str, kept[: kept.index(STOP)] if STOP in kept else kept))


class NumberRollouts(Rollouts):
    """Rewards that depend on tokens and record: NaN, unscored, where the sum of the tokens is a multiple of 7."""

    def reward_all(self, replies):
        totals = [self.reward(tokens, record) for record, tokens in replies]
        return dict.fromkeys(("answer", "grounding", "total"), totals)

    def reward(self, tokens, record):
        counted = self.tokenizer.encode(self.tokenizer.decode(tokens.tolist()))
        return float("nan") if sum(counted) % 7 == 3 else float((sum(counted) + len(record.id)) % 5) / 4


def make_record(place):
    return Record(
        id="x" * (place + 1), image="1.png", image_size=(4, 4), patient="p", kind="closed", question="?", answer="Yes"
    )


RECORDS = tuple(make_record(place) for place in range(PROMPTS))


_SAMPLERS = {}


def make_rollouts(devices, kind=NumberRollouts, **changes):
    """Those that sample alike share the sampler, which is compiled once."""
    made = kind(
        policy=NETWORK,
        normalise=normalise,
        tokenizer=Words(),
        dialect="gemex",
        with_thinking=True,
        records=RECORDS,
        devices=devices,
        settings=dataclasses.replace(SETTINGS.grpo, **changes),
        rewards=SETTINGS.rewards,
        longest=LONGEST,
    )
    alike = (kind.sample, devices, made.sampling, made.settings.group_size)
    made._sample = _SAMPLERS.setdefault(alike, made._sample)
    return made


def make_prompts():
    rng = np.random.default_rng(7)
    lengths = rng.integers(1, 5, PROMPTS).astype(np.int32)
    prompts = rng.integers(2, WORDS, (PROMPTS, 4)) * (np.arange(4)[None] < lengths[:, None])
    places = np.arange(PROMPTS, dtype=np.int32)
    return {"images": draw_pictures(PROMPTS), "prompts": prompts.astype(np.int32), "lengths": lengths, "index": places}


@functools.cache
def make_params():
    """Parameters of the policy and of a reference that differs, but not by so much that rounding grows in k3's exp."""
    policy = random_params(1)
    reference = jax.tree.map(lambda one, other: 0.9 * one + 0.1 * other, policy, random_params(2))
    return jax.device_get({POLICY: policy, REFERENCE: reference})


def start(params=None):
    params = jax.tree.map(jnp.array, make_params() if params is None else params)
    optimizers = {name: DESCENT.init({POLICY: params[POLICY]}) for name in (sft.NAME, grpo.NAME)}
    return TrainState(jnp.int32(0), params, optimizers, jax.random.key_data(jax.random.key(3)))


def make_update(job, **changes):
    if job == sft.NAME:
        return SftUpdate(NETWORK, normalise, DESCENT, dataclasses.replace(SETTINGS.sft, **changes))
    settings = dataclasses.replace(SETTINGS.grpo, **changes)
    return GrpoUpdate(NETWORK, normalise, DESCENT, settings, SETTINGS.self_check)


def own_rows(batch):
    number = PROMPTS // jax.process_count()
    own = slice(number * jax.process_index(), number * (jax.process_index() + 1))
    return {name: rows[own] for name, rows in batch.items()}


def roll(devices, state, **changes):
    """The batch of rollouts of this process, and its numbers for the log."""
    batch = make_rollouts(devices, **changes)(state, own_rows(make_prompts()))
    return batch, batch.pop(COLLECTED_NUMBERS)


def differentiate(update, state, batch, whole):
    """As an update, but the numbers are those of the global batch before it, and its gradients."""
    batch = update.freeze(state.params, batch, whole) if isinstance(update, GrpoUpdate) else batch
    return state.replace(step=state.step + 1), update.gradients(state.params, batch, whole)


@functools.cache
def make_devices(transform="pmap", num_devices=1, num_passes=1):
    return Devices(transform=transform, num_devices=num_devices, num_passes=num_passes)


@functools.cache
def compile_gradients(devices, update, shapes):
    shapes = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in shapes}
    update = functools.partial(differentiate, update)
    return devices.compile_update(update, state=devices.replicate(start()), batch=shapes)


def descend(update, batch, params=None, devices=None):
    """Raw gradients and numbers of an update on this process's rows of a batch; compiled once per update and shapes."""
    devices, number = make_devices() if devices is None else devices, jax.process_count()
    shapes = ((name, (len(array) * number, *array.shape[1:]), array.dtype) for name, array in batch.items())
    compiled = compile_gradients(devices, update, tuple(shapes))
    state, rows = devices.replicate(start(params)), devices.put_training_rows(batch)
    with jax.transfer_guard("disallow"):
        numbers, gradients = compiled(state, rows)[1]
    return jax.device_get(gradients[POLICY]), {name: float(number) for name, number in jax.device_get(numbers).items()}


def add_checks(batch):
    """A batch of rollouts with tokens of self-checks, some of which succeeded."""
    counted = np.asarray(batch["counted"])
    check = counted & (np.arange(LONGEST)[None, None] < 2)
    first = len(counted) * jax.process_index()
    success = (first * GROUP + np.arange(len(counted) * GROUP)).reshape(-1, GROUP) % 3 == 0
    return {**batch, "check": check, "check_success": success}


@functools.cache
def sample(transform="pmap", num_devices=1, **changes):
    """The batch of rollouts of this process, and its numbers for the log."""
    devices = make_devices(transform, num_devices)
    return roll(devices, devices.replicate(start()), **changes)


@functools.cache
def run(job, transform="pmap", num_devices=1, num_passes=1, **changes):
    """Raw gradients and numbers of one update; of GRPO on the rollouts of one device or, of two processes, of all."""
    devices = make_devices(transform, num_devices, num_passes)
    devices.check_batch_size(PROMPTS)
    if job == sft.NAME:
        packs = [pack[:1] for pack in PACKS] if changes.get("reduction") == "parts" else PACKS
        batch = own_rows(lay_out(packs, 30, weights=(1.0, 0.3)))
    else:
        where = {} if jax.process_count() == 1 else {"transform": transform, "num_devices": num_devices}
        batch = add_checks(sample(**where, **changes)[0])
    return descend(make_update(job, **changes), batch, devices=devices)


def expected_advantages(rewards):
    """Each reward less the mean of its group's scored ones, over their deviation; 0 for an unscored one."""
    found = np.zeros_like(rewards)
    for row, group in enumerate(rewards):
        known = group[~np.isnan(group)]
        if known.size > 1 and known.std() > 0:
            scaled = (group - known.mean()) / (known.std(ddof=1) + 1e-6)
            found[row] = np.where(np.isnan(group), 0.0, scaled)
    return found
