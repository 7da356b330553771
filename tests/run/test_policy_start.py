"""Runs that start from a finished run's policy: the same weights and words, and refusals that name what differs."""

import dataclasses
import json

import jax
import msgspec
import numpy as np
import pytest
from policies.policy_workdir import BEST, SIZES, make_policy_workdir

from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.policy_start import read_policy_start
from stepcot_jax.run.policy_task import PolicyTask
from stepcot_jax.run.training_run import Run
from stepcot_jax.settings.run_settings import load_settings
from stepcot_jax.training.stored_params import restore_params

TINY = {
    **SIZES,
    "job": "grpo",
    "sft.batch_size": 8,
    "grpo.batch_size": 8,
    "grpo.group_size": 2,
    "grpo.epochs": 1,
    "grpo.updates_per_epoch": 1,
    "grpo.learning_rate": 1e-3,
    "vqa.num_validated": 8,
    "evaluation.batch_size": 8,
    "evaluation.num_resamples": 10,
}


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A finished run with random weights, and its parameters by update."""
    folder = tmp_path_factory.mktemp("start") / "run"
    _, _, params = make_policy_workdir(folder)
    return folder, params


def start_from(folder, **changes):
    return load_settings("base", **{**TINY, "policy.start": str(folder), **changes})


def test_grpo_starts_from_the_last_phases_best_and_measures_from_there(before, tmp_path):
    folder, params = before
    report = Run(start_from(folder, **{"sft.epochs": 0}), tmp_path / "run").execute()
    assert set(report["best"]) == set(report["test"]) == {"grpo"}
    kept = restore_params(tmp_path / "run" / "checkpoints", 1)
    best = params[BEST["grpo"].step]
    jax.tree.map(np.testing.assert_array_equal, kept["reference"], best)
    same = jax.tree.leaves(jax.tree.map(np.array_equal, kept["policy"], best))
    assert not all(same)
    words = [json.loads((each / "vocabulary.json").read_text()) for each in (folder, tmp_path / "run")]
    assert words[0] == words[1]


def test_a_start_that_is_missing_or_no_policy_is_refused(before, tmp_path):
    with pytest.raises(BadInput, match=r"^config\.policy\.start: .*nowhere.*no such folder"):
        read_policy_start(start_from(tmp_path / "nowhere"))
    with pytest.raises(BadInput, match=r"^config\.policy\.start: .*settings\.json"):
        read_policy_start(start_from(tmp_path))


@pytest.mark.parametrize(
    "changes",
    [{"policy.width": 32}, {"policy.grid": 4}, {"image_encoder.image_size": 64}, {"policy.tokenizer": "elsewhere"}],
)
def test_other_sizes_and_tokenizers_are_refused_by_name(before, changes):
    with pytest.raises(BadInput, match=rf"has other values of config\.{next(iter(changes))}; expected"):
        read_policy_start(start_from(before[0], **changes))


def test_test_cases_that_may_have_been_training_cases_are_refused(before):
    with pytest.raises(BadInput, match=r"other values of config\.data\.split_seed; expected the same splits"):
        read_policy_start(start_from(before[0], **{"data.split_seed": 1}))
    other_phantoms = {"phantom.seed": 1, "phantom.num_cases": 40, "data.split_seed": 1}
    assert read_policy_start(start_from(before[0], **other_phantoms)).phase == "grpo"


def test_a_word_that_the_start_does_not_know_is_named(before, tmp_path, monkeypatch):
    from stepcot_jax.run import policy_task

    load = policy_task.load_vqa_dataset

    def load_with_a_new_word(settings, **more):
        dataset = load(settings, **more)
        first = msgspec.structs.replace(dataset.records[0], question="Is there a zebra?")
        return dataclasses.replace(dataset, records=(first, *dataset.records[1:]))

    monkeypatch.setattr(policy_task, "load_vqa_dataset", load_with_a_new_word)
    devices = type("Devices", (), {"check_batch_size": lambda *_, **__: None})()
    terminal = type("Terminal", (), {"watch": lambda _, items, __: items})()
    with pytest.raises(BadInput, match=r"config\.policy\.start: .*cannot write these records: .*' zebra' is not among"):
        PolicyTask(start_from(before[0]), workdir=tmp_path, devices=devices, terminal=terminal)
