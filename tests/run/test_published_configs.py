"""The configs of GEMeX-RMCoT, MEDSAGE and MedCLM: their numbers against a table that was typed from the papers."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from stepcot_jax.host.errors import BadInput
from stepcot_jax.losses.policy_gradient import PolicyGradient
from stepcot_jax.policies.qwen_weights import qwen_shapes
from stepcot_jax.rewards.presets import PRESETS
from stepcot_jax.run.configs import load_config
from stepcot_jax.run.policy_networks import make_policy
from stepcot_jax.run.qwen_source import find_qwen
from stepcot_jax.run.settings import load_settings
from stepcot_jax.systems.grpo import make_objective

GEMEX = {
    "job": "grpo",
    "vqa.dialect": "gemex",
    "vqa.with_thinking": True,
    "policy.tokenizer": "",
    "sft.epochs": 2,
    "sft.batch_size": 256,
    "sft.pack_length": 0,
    "sft.first_learning_rate": 3e-7,
    "sft.learning_rate": 1e-4,
    "sft.warmup_epochs": 0.05,
    "sft.schedule": "cosine",
    "sft.reduction": "tokens",
    "grpo.epochs": 1,
    "grpo.batch_size": 128,
    "grpo.group_size": 8,
    "grpo.num_updates": 1,
    "grpo.learning_rate": 2e-6,
    "grpo.schedule": "constant",
    "grpo.ratio": "sequence",
    "grpo.clip_low": 0.2,
    "grpo.clip_high": 0.2,
    "grpo.dual_clip": 0,
    "grpo.beta": 1e-3,
    "grpo.kl": "k3",
    "grpo.clamp_log_ratio": 0,
    "grpo.clamp_kl": 0,
    "grpo.scale": "group",
    "grpo.std_ddof": 1,
    "grpo.std_epsilon": 1e-6,
    "self_check.enabled": False,
    "curriculum.schedule": "none",
}
MEDSAGE = {
    "job": "grpo",
    "vqa.dialect": "lvkc",
    "sft.epochs": 4,
    "sft.batch_size": 4 * 16 * 4,
    "sft.pack_length": 0,
    "sft.learning_rate": 1e-5,
    "sft.warmup_epochs": 0.03 * 4,
    "policy.longest_reply": 1024,
    "grpo.epochs": 8,
    "grpo.batch_size": 2 * 8 * 4,
    "grpo.group_size": 6,
    "grpo.learning_rate": 1e-5,
    "grpo.weight_decay": 0.01,
    "grpo.temperature": 1.0,
    "grpo.ratio": "token",
    "grpo.clip_low": 0.2,
    "grpo.clip_high": 0.3,
    "grpo.dual_clip": 3.0,
    "grpo.beta": 0.03,
    "grpo.kl": "k3",
    "grpo.clamp_log_ratio": 20.0,
    "grpo.clamp_kl": 10.0,
    "grpo.length_norm": "token_mean",
    "grpo.scale": "batch",
    "grpo.std_ddof": 1,
    "grpo.std_epsilon": 1e-6,
    "self_check.enabled": True,
    "self_check.alpha": 0.2,
    "self_check.norm": "sum",
    "self_check.first_attempt": "zero",
    "curriculum.schedule": "none",
}
RELEASED = {
    **MEDSAGE,
    "vqa.dialect": "lvkc_released",
    "sft.epochs": 3,
    "sft.batch_size": 1 * 16 * 4,
    "sft.warmup_epochs": 0.03 * 3,
    "grpo.epochs": 2,
    "grpo.batch_size": 64,
    "grpo.clip_high": 0.2,
    "grpo.dual_clip": 0,
    "grpo.scale": "group",
    "self_check.enabled": False,
}
MEDCLM = {
    "job": "sft",
    "vqa.dialect": "medclm",
    "sft.epochs": 100,
    "sft.batch_size": 1,
    "sft.pack_length": 0,
    "sft.learning_rate": 2e-5,
    "sft.schedule": "cosine",
    "sft.weight_decay": 0.05,
    "sft.reduction": "parts",
    "sft.answer_weight": 0.8,
    "sft.reasoning_weight": 0.2,
    "training.clip_norm": 1.0,
    "curriculum.schedule": "adaptive",
    "curriculum.easy_epochs": 4,
    "curriculum.ramp_epochs": 10,
    "curriculum.hard_epoch": 19,
    "curriculum.gap_centre": 0.5,
    "curriculum.gap_width": 0.1,
    "curriculum.decay": 0.1,
    "curriculum.first_loss": 1e-3,
    "curriculum.first_overall": 1e-4,
    "curriculum.least_loss": 1e-8,
    "curriculum.plateau_values": 5,
    "curriculum.plateau_tolerance": 0.01,
    "curriculum.rise": 0.05,
    "curriculum.hard_gap": 0.6,
    "curriculum.hard_increase": 0.05,
    "curriculum.most_hard": 0.3,
    "curriculum.hard_factor": 0.9,
}
TABLE = {"gemex": GEMEX, "medsage": MEDSAGE, "medsage_released": RELEASED, "medclm": MEDCLM}
REWARDS = {"gemex": "gemex", "medsage": "paper", "medsage_released": "released"}
ROOT = {"vqa.root": "/records"}


@pytest.mark.parametrize("name", TABLE)
def test_the_numbers_are_the_published_ones(name):
    settings = load_settings(name, **ROOT)
    found = {key: getattr(getattr(settings, key.split(".")[0]), key.split(".")[1]) for key in TABLE[name] if "." in key}
    assert found == pytest.approx({key: value for key, value in TABLE[name].items() if "." in key})
    assert settings.job == TABLE[name]["job"]
    assert settings.vqa.source == "folder"


@pytest.mark.parametrize(("name", "preset"), REWARDS.items())
def test_the_rewards_are_those_of_the_preset(name, preset):
    found = dataclasses.asdict(load_settings(name, **ROOT).rewards)
    assert dataclasses.asdict(PRESETS[preset]).items() <= found.items()


def test_the_objectives_are_as_printed_and_as_run():
    """Eq. 2 of GEMeX-RMCoT, EasyR1's clips for MEDSAGE, and what MEDSAGE's code runs."""
    limits = {"clamp_log_ratio": 20.0, "clamp_divergence": 10.0, "beta": 0.03, "length_norm": "token_mean"}
    expected = {
        "gemex": PolicyGradient(ratio="sequence", clip_low=0.2, clip_high=0.2, beta=1e-3),
        "medsage": PolicyGradient(clip_low=0.2, clip_high=0.3, dual_clip=3.0, **limits),
        "medsage_released": PolicyGradient(clip_low=0.2, clip_high=0.2, **limits),
    }
    assert {name: make_objective(load_settings(name, **ROOT).grpo) for name in expected} == expected


@pytest.mark.parametrize("name", TABLE)
def test_a_folder_is_required(name):
    with pytest.raises(BadInput, match=r"config.vqa.root: ''.*records.jsonl"):
        load_settings(load_config(name))


@pytest.mark.parametrize("name", ["gemex", "medsage", "medsage_released"])
def test_large_policies_start_from_the_published_model(name):
    settings = load_settings(name, **ROOT)
    assert settings.policy.weights == "Qwen/Qwen2.5-VL-7B-Instruct"
    assert (settings.policy.random, settings.policy.low_rank) == (False, 0)
    source = find_qwen(load_settings(name, **ROOT, **{"policy.random": True}))  # its sizes, without its files
    shapes = qwen_shapes(source.config.sizes, source.vision)
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == 8_292_166_656
    assert source.grid == 16


def test_the_small_decoder_takes_its_picture():
    settings = load_settings("medclm", **ROOT)
    network, side = make_policy(settings, num_words=500), settings.image_encoder.image_size
    tokens = jnp.zeros((1, 5), jnp.int32)
    images = jnp.zeros((1, side, side, 3))
    scores, _ = jax.eval_shape(
        lambda: network.init_with_output(jax.random.key(0), images, tokens, tokens[0, :1] + 5, tokens)
    )
    assert scores.shape == (1, 5, 500)
