"""A policy's run that compiles in seconds: few phantoms of 32 pixels, one narrow layer."""

import jax

from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.policy_task import PolicyTask
from stepcot_jax.run.settings import load_settings
from stepcot_jax.training.devices import Devices

SIZES = {
    "job": "sft",
    "phantom.num_cases": 30,
    "phantom.image_size": 32,
    "image_encoder.image_size": 32,
    "phantom.prevalence": "flat",
    "vqa.num_validated": 4,
    "policy.grid": 4,
    "policy.encoder_widths": (4, 8),
    "policy.width": 16,
    "policy.num_layers": 1,
    "policy.num_heads": 1,
    "policy.head_width": 16,
    "policy.mlp_width": 16,
    "sft.epochs": 2,
    "sft.batch_size": 16,
    "sft.pack_length": 0,
    "grpo.epochs": 1,
    "grpo.batch_size": 4,
    "grpo.group_size": 4,
    "grpo.updates_per_epoch": 3,
    "training.log_every": 1,
    "training.checkpoint_minutes": 1e-9,
    "evaluation.num_resamples": 0,
    "evaluation.batch_size": 16,
    "parallel.num_devices": 1,  # the suite has eight virtual devices
}


def policy_settings(**changes):
    return load_settings("base", **SIZES | {name.replace("__", "."): value for name, value in changes.items()})


def policy_task(workdir, *, num_devices=1, **changes):
    devices = Devices(num_devices=num_devices)
    return PolicyTask(policy_settings(**changes), workdir=workdir, devices=devices, terminal=Terminal(silent=True))


def first_state(task):
    init = jax.jit(lambda: task.system.init(jax.random.key(0), task.example), out_shardings=task.devices.replicated)
    return init()
