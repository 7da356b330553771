"""Settings of a run as its workdir has them: written, read back also from earlier versions, and compared."""

import dataclasses
import json
import pathlib
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole
from stepcot_jax.settings.configs import load_config
from stepcot_jax.settings.fields import ADDED, RENAMED
from stepcot_jax.settings.policy_sections import list_unread
from stepcot_jax.settings.policy_unread import find_unread
from stepcot_jax.settings.run_settings import POLICY_JOBS, Settings, make_settings

_LATER_SECTIONS = ("vqa", "policy", "sft", "grpo", "rewards", "self_check", "curriculum", "start", "loggers")
"""Sections that earlier versions lacked; their defaults do as those versions did."""

_READS_PATCHES = "first_loss"
"""A setting of the curriculum that no run without frozen encoders for policies had beside a frozen encoder."""

MAY_CHANGE = frozenset(
    {
        "config.resume",
        "config.data.cache_megabytes",
        "config.data.check_images",
        "config.data.num_threads",
        "config.data.num_workers",
        "config.features.folder",
        "config.features.patches",
        "config.features.batch_size",
        "config.rewards.judge_cap",
        "config.rewards.judge_url",
        "config.loggers.names",
        "config.loggers.mode",
        "config.loggers.project",
        "config.loggers.run",
        "config.training.profile_updates",
        "config.training.log_every",
        "config.training.checkpoint_minutes",
        "config.parallel.transform",
        "config.parallel.num_devices",
        "config.parallel.model_devices",
        "config.parallel.num_passes",
        "config.parallel.remat",
        "config.evaluation.batch_size",
        "config.evaluation.num_resamples",
        "config.evaluation.coverage",
        "config.evaluation.coverage_by",
        "config.evaluation.coverage_confidence",
        "config.evaluation.decoding",
        "config.evaluation.step_costs",
        "config.evaluation.gate_false_alarms",
        "config.evaluation.operating_point",
        "config.evaluation.operating_target",
        "config.evaluation.miss_cost",
    }
)
"""Settings that a resumed run may change: none affects the result of a finished epoch."""


def changed_keys(before: Settings, after: Settings) -> list[str]:
    """Return the full names of the settings that differ, except those in `MAY_CHANGE`."""

    def walk(one: Any, other: Any, where: str) -> list[str]:
        if isinstance(one, dict):
            return [name for key in one for name in walk(one[key], other[key], f"{where}.{key}")]
        return [where] if one != other and where not in MAY_CHANGE else []

    return walk(dataclasses.asdict(before), dataclasses.asdict(after), "config")


def write_settings(path: pathlib.Path, settings: Settings) -> None:
    """Write the resolved settings as JSON, atomically."""
    write_whole(path, (json.dumps(dataclasses.asdict(settings), indent=2) + "\n").encode())


def read_settings(path: pathlib.Path) -> Settings:
    """Read the settings that `write_settings` wrote, also of earlier versions.

    They may have other names, lack later settings, and have values without effect, which a new run is refused.
    """
    found = read_json(path, dict[str, Any], accepted="expected the settings.json of a run")
    is_earlier = _READS_PATCHES not in (found["curriculum"] if isinstance(found.get("curriculum"), dict) else {})
    for old, new in RENAMED.items():
        _move(found, old.split(".")[1:], new.split(".")[1:])
    for added, value in ADDED.items():
        _add(found, added.split(".")[1:], value)
    defaults = load_config("base").to_dict()
    for section in _LATER_SECTIONS:
        found.setdefault(section, defaults[section])
    if isinstance(found["policy"], dict):
        found["policy"] |= {name: defaults["policy"][name] for name in list_unread(found["policy"])}
    if found.get("job") in POLICY_JOBS:
        encoder = found.get("image_encoder")
        if is_earlier and isinstance(encoder, dict) and encoder.get("name") in ("pretrained", "imported"):
            encoder |= {name: defaults["image_encoder"][name] for name in ("name", "weights")}  # nothing read them then
        for name, (_, default, _) in find_unread(found).items():
            section, key = name.split(".")
            found[section][key] = default
    try:
        return make_settings(found)
    except BadInput as error:
        raise BadInput(f"{path}: {error} (written by another version? start in a new workdir)") from None


def read_run_settings(workdir: pathlib.Path) -> Settings:
    """Return the settings of a run."""
    if not workdir.is_dir():
        raise BadInput(f"{workdir} is not the workdir of a run (no such folder)")
    return read_settings(workdir / "settings.json")


def is_policy_run(folder: pathlib.Path) -> bool:
    """Return whether a folder is the workdir of a run that trains a policy."""
    return read_run_settings(folder).job in POLICY_JOBS


def _add(tree: dict[str, Any], key: list[str], value: Any) -> None:
    node: Any = tree
    for name in key[:-1]:
        node = node.get(name) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.setdefault(key[-1], value)


def _move(tree: dict[str, Any], old: list[str], new: list[str]) -> None:
    source: Any = tree
    for name in old[:-1]:
        source = source.get(name, {})
    if old[-1] in source:
        target = tree
        for name in new[:-1]:
            target = target.setdefault(name, {})
        target[new[-1]] = source.pop(old[-1])
