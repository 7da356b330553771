"""Phantom chests as the quickstart draws them, four times as many.

python -m stepcot_jax.main --config=phantom --workdir=runs/phantom

Hardware and time: one quiet CPU core, 534 s (96c049e6, seed 1, without intervals and gate). Expected scores, five sets:
docs/does_it_help.md.
"""

from configs import quickstart


def get_config():
    config = quickstart.get_config()
    config.phantom.num_cases = 40_000
    config.data.split_fractions = (0.95, 0.025, 0.025)
    return config
