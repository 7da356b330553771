"""The format reward (MEDSAGE, Table 4; none in GEMeX-RMCoT)."""

from stepcot_jax.reasoning.reply import Reply


def format_reward(reply: Reply) -> float:
    """Return 1 if the reply follows its dialect's grammar, else 0."""
    return float(reply.is_well_formed)
