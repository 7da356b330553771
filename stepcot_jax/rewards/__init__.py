"""Verifiable rewards: pure functions of replies and their records, on the host.

The judge, which asks a language model, is in `annotate`. Read `functions` first, then `presets`;
other trainers call `adapters`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from stepcot_jax.rewards.options import PRESETS, RewardSettings

if TYPE_CHECKING:
    from stepcot_jax.rewards.functions import answer, consistency, grounding, well_formed
    from stepcot_jax.rewards.presets import reward

__all__ = ["PRESETS", "RewardSettings", "answer", "consistency", "grounding", "reward", "well_formed"]


def __getattr__(name: str) -> Any:
    """Import a function at its first use: settings need the options alone."""
    found = None
    if name == "reward":
        found = importlib.import_module(f"{__name__}.presets").reward
    elif not name.startswith("_"):
        found = importlib.import_module(f"{__name__}.functions").FUNCTIONS.get(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
