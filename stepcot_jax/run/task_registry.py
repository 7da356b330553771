"""The task of each `config.job`."""

import pathlib

from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.task import Task
from stepcot_jax.settings.run_settings import POLICY_JOBS, Settings
from stepcot_jax.training.devices import Devices


def make_task(settings: Settings, *, workdir: pathlib.Path, devices: Devices, terminal: Terminal) -> Task:
    """Load what the settings say to train on."""
    if settings.job in POLICY_JOBS:  # imported here: each kind of job needs the libraries of its own data
        from stepcot_jax.run.policy_task import PolicyTask

        return PolicyTask(settings, workdir=workdir, devices=devices, terminal=terminal)
    from stepcot_jax.run.chain_task import ChainTask

    return ChainTask(settings, workdir=workdir, devices=devices, terminal=terminal)
