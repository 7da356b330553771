"""A run that compiles in seconds: 60 phantom cases, a linear image encoder, narrow networks."""

import pathlib

import flax.linen as nn
import jax

from configs import quickstart
from stepcot_jax.features import inputs
from stepcot_jax.run import training_run
from stepcot_jax.settings.run_settings import make_settings


class LinearEncoder(nn.Module):
    """Pixels -> 8 features."""

    @nn.compact
    def __call__(self, images):
        return nn.Dense(8)(images[:, ::4, ::4, 0].reshape(len(images), -1))


def small_settings(**changes):
    config = quickstart.get_config()
    config.phantom.num_cases = 60
    config.phantom.image_size = 32
    config.image_encoder.image_size = 32
    config.teacher.width = 8
    config.teacher.num_layers = 1
    config.teacher.num_heads = 2
    config.student.width = 8
    config.loss.projection_width = 4
    config.prompts.width = 8
    config.training.batch_size = 8
    config.training.teacher_epochs = 1
    config.training.joint_epochs = 3
    config.training.log_every = 2
    config.parallel.num_devices = 1  # the suite has eight virtual devices
    config.evaluation.num_resamples = 50
    for name, value in changes.items():
        config.update_from_flattened_dict({name.replace("__", "."): value})
    return make_settings(config)


def small_run(workdir: pathlib.Path, monkeypatch, **changes):
    monkeypatch.setattr(inputs, "make_resnet", lambda name: LinearEncoder())
    return training_run.Run(small_settings(**changes), workdir)


def leaves(tree):
    """Arrays of a tree, with random keys as their data."""
    is_key = lambda leaf: jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(tree)]
