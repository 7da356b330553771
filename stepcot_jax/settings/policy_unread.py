"""Settings that the jobs of policies ("sft" and "grpo") do not read: refused, so that none is set in vain."""

from collections.abc import Mapping
from typing import Any

from stepcot_jax.settings.configs import load_config

_ENCODER = (
    "is read by chain networks alone; a policy trains its own encoder (config.policy.encoder_widths) or reads the "
    "patches of a frozen one ('pretrained')"
)
_RECORDS = "is read of cases alone; reasoning records are named by config.vqa.source and config.vqa.root"
_CHAINS = "is a reward of config.job='chain_grpo'; those of replies are config.rewards.answer_weight and others"
_REASONS = {
    "image_encoder.name": _ENCODER,
    "image_encoder.fit": "has no effect on reasoning records, whose images and boxes are stretched to a square",
    **dict.fromkeys(
        ("data.source", "data.root", "data.layout", "data.augment", "data.sampling", "data.uncertain"), _RECORDS
    ),
    **dict.fromkeys(("rewards.diagnosis_weight", "rewards.steps_weight", "rewards.chain_weight"), _CHAINS),
}
_ACCEPTED = {"image_encoder.name": ("resnet_small", "resnet18", "pretrained")}
"""Further values: those of a config for chains that changes its job, and the frozen encoder that a policy reads."""


def find_unread(config: Mapping[str, Any]) -> dict[str, tuple[Any, Any, str]]:
    """Return the settings that a policy's run does not read and that are not at their defaults.

    A new run must leave them there; of runs of earlier versions `stored_settings.read_settings` drops them.
    """
    defaults, found = load_config("base"), {}
    for name, reason in _REASONS.items():
        section, key = name.split(".")
        of_section = config.get(section)
        if not isinstance(of_section, Mapping) or key not in of_section:
            continue
        value, default = of_section[key], defaults[section][key]
        if value != default and value not in _ACCEPTED.get(name, ()):
            found[name] = (value, default, reason)
    return found
