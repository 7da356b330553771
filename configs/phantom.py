"""Phantom chests as the quickstart draws them, four times as many.

python -m stepcot_jax.main --config=phantom --workdir=runs/phantom

Hardware and time: 2 CPU cores, 545 s the first time before f914622f (be8895e6, seed 0). Expected scores:
docs/does_it_help.md.
"""

from configs import quickstart


def get_config():
    config = quickstart.get_config()
    config.phantom.num_cases = 40_000
    config.data.split_fractions = (0.95, 0.025, 0.025)
    return config
