"""Verifiable rewards: pure functions of replies and their records, on the host.

The judge, which asks a language model, is in `annotate`. Read `functions` first, then `presets`.
"""

from stepcot_jax.rewards.functions import answer, grounding, well_formed
from stepcot_jax.rewards.presets import PRESETS, RewardSettings, reward

__all__ = ["PRESETS", "RewardSettings", "answer", "grounding", "reward", "well_formed"]
