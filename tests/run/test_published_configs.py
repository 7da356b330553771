"""The configs of GEMeX-RMCoT, MEDSAGE and MedCLM: their numbers against a table that was typed from the papers."""

import dataclasses
import json
import math
import pathlib

import jax
import pytest
from refusals import refuse

from stepcot_jax.losses.policy_gradient import PolicyGradient
from stepcot_jax.policies.qwen_weights import qwen_shapes
from stepcot_jax.rewards.options import PRESETS
from stepcot_jax.run.configs import load_config
from stepcot_jax.run.qwen_source import find_qwen
from stepcot_jax.run.settings import load_settings
from stepcot_jax.systems.grpo import make_objective
from stepcot_jax.systems.options import count_updates

TABLE = json.loads((pathlib.Path(__file__).parent / "published_configs.json").read_text())
REWARDS = {"gemex": "gemex", "medsage": "paper", "medsage_released": "released"}
ROOT = {"vqa.root": "/records"}


@pytest.mark.parametrize("name", TABLE)
def test_the_numbers_are_the_published_ones(name):
    settings, table = load_settings(name, **ROOT), dict(TABLE[name])
    assert settings.job == table.pop("job")
    assert settings.vqa.source == "folder"
    for section, values in table.items():
        assert {key: getattr(getattr(settings, section), key) for key in values} == pytest.approx(values), section
    refuse(r"config.vqa.root: ''.*file with questions", load_settings, load_config(name))


@pytest.mark.parametrize(("name", "preset"), REWARDS.items())
def test_the_rewards_are_those_of_the_preset(name, preset):
    found = dataclasses.asdict(load_settings(name, **ROOT).rewards)
    assert dataclasses.asdict(PRESETS[preset]).items() <= found.items()


def test_the_objectives_are_as_printed_and_as_run():
    """Eq. 2 of GEMeX-RMCoT, EasyR1's clips for MEDSAGE, and what MEDSAGE's code runs."""
    limits = {"clamp_log_ratio": 20.0, "clamp_divergence": 10.0, "beta": 0.03, "length_norm": "token_mean"}
    expected = {
        "gemex": PolicyGradient(ratio="sequence", clip_low=0.2, clip_high=0.2, divergence_norm="sequence_sum"),
        "medsage": PolicyGradient(clip_low=0.2, clip_high=0.3, dual_clip=3.0, **limits),
        "medsage_released": PolicyGradient(clip_low=0.2, clip_high=0.2, **limits),
    }
    assert {name: make_objective(load_settings(name, **ROOT).grpo) for name in expected} == expected


def test_the_last_part_of_an_epoch_counts():
    """202,384 records at batch 256 are 790.6 batches, at 128 are 1,581.1."""
    gemex, base = load_settings("gemex", **ROOT), load_settings("base")
    assert [count_updates(options, 202_384) for options in (gemex.sft, gemex.grpo)] == [791, 1582]
    for options in (base.sft, base.grpo):
        floor = dataclasses.replace(options, batch_size=256)
        ceil = dataclasses.replace(floor, epoch_end="ceil")
        expected = {202_384: (790, 791), 202_240: (790, 790), 255: (1, 1), 257: (1, 2), 0: (1, 1)}
        assert {number: (count_updates(floor, number), count_updates(ceil, number)) for number in expected} == expected
    assert count_updates(dataclasses.replace(gemex.grpo, updates_per_epoch=7), 202_384) == 7


@pytest.mark.slow
def test_large_policies_start_from_the_published_model():
    for name in TABLE:
        settings = load_settings(name, **ROOT)
        assert settings.policy.weights == "Qwen/Qwen2.5-VL-7B-Instruct"
        assert (settings.policy.random, settings.policy.low_rank) == (False, 0)
        source = find_qwen(load_settings(name, **ROOT, **{"policy.random": True}))  # its sizes, without its files
        assert source.grid == 16
    shapes = qwen_shapes(source.config.sizes, source.vision)
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == 8_292_166_656
