"""Phantom chests as the quickstart draws them, more of them: the runs behind docs/results/joint_reading.md.

python -m stepcot_jax.main --config=phantom --workdir=runs/phantom

Hardware and time: 2 CPU cores, TIME. TODO
"""

from configs import quickstart


def get_config():
    config = quickstart.get_config()
    config.phantom.num_cases = 40_000
    config.data.split_fractions = (0.95, 0.025, 0.025)
    return config
