"""Random state dicts in the authors' names and shapes."""

import numpy as np

from stepcot_jax.export.authors import entries


def random_tensors(networks, sizes, *, num_steps, num_layers, memory=True):
    """A state dict of each network; `sizes` are the lengths of the axes by name."""
    rng = np.random.default_rng(0)

    def length(axis):
        if isinstance(axis, int):
            return axis
        factor, _, name = axis.rpartition("*")
        return int(factor or 1) * sizes[name]

    return {
        network: {
            entry.torch_name: rng.standard_normal([length(axis) for axis in entry.axes], np.float32)
            for entry in entries(network, num_steps=num_steps, num_layers=num_layers, memory=memory)
        }
        for network in networks
    }
