"""A policy's run that compiles in seconds: few phantoms of 32 pixels, one narrow layer."""

import jax
from sections import section

from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.policy_task import PolicyTask
from stepcot_jax.run.settings import load_settings
from stepcot_jax.training.devices import Devices

SIZES = {
    "job": "sft",
    **section("phantom", num_cases=30, image_size=32, prevalence="flat"),
    **section(
        "policy", grid=4, encoder_widths=(4, 8), width=16, num_layers=1, num_heads=1, head_width=16, mlp_width=16
    ),
    **section("sft", epochs=2, batch_size=16, pack_length=0),
    **section("grpo", epochs=1, batch_size=4, group_size=4, updates_per_epoch=3),
    **section("training", log_every=1, checkpoint_minutes=1e-9),
    **section("evaluation", num_resamples=0, batch_size=16),
    "image_encoder.image_size": 32,
    "vqa.num_validated": 4,
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
