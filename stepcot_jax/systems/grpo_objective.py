"""The objective of GRPO from the settings, for replies and for chains, and the name of its frozen start."""

from stepcot_jax.losses.policy_gradient import PolicyGradient
from stepcot_jax.settings.policy_sections import GrpoSettings

REFERENCE = "reference"
"""Of the frozen start's parameters."""


def make_objective(settings: GrpoSettings) -> PolicyGradient:
    """Return the choices of the objective."""
    return PolicyGradient(
        ratio=settings.ratio,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=settings.dual_clip,
        beta=settings.beta,
        divergence=settings.kl,
        clamp_log_ratio=settings.clamp_log_ratio or None,
        clamp_divergence=settings.clamp_kl or None,
        length_norm=settings.length_norm,
    )
