import dataclasses
import importlib
import os
import pathlib
import re
import typing

import pytest
from refusals import refuse

from stepcot_jax.data.sources.layout_table import AUTO, CASES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.configs import load_config
from stepcot_jax.run.fields import describe_key
from stepcot_jax.run.sections import DataSettings
from stepcot_jax.run.settings import (
    Settings,
    changed_keys,
    load_settings,
    make_settings,
    read_run_settings,
    write_settings,
)

ROOT = pathlib.Path(__file__).parents[2]
QWEN = {"job": "sft", "policy.weights": "Qwen/Qwen2.5-VL-7B-Instruct", "sft.pack_length": 0}
FROZEN = {"image_encoder.name": "pretrained", "image_encoder.weights": "anywhere"}
IMPORTED = FROZEN | {"image_encoder.name": "imported"}
NAN = float("nan")
REFUSED = [
    ({"seed": True}, "seed: True is not a whole number"),
    ({"seed": 2**32}, "seed: 4294967296 is not .*<= 4294967295"),
    ({"resume": 1}, "resume: 1 is not True or False"),
    ({"job": "train"}, "job: 'train' is not one of 'teacher', 'distill'"),
    ({"job": "a" * 10_000}, "job: 'a{70,90}… is not"),
    ({"data": 3}, "data: 3 is not a group of settings"),
    ({"data.step_names": ("Detection", 2)}, "data.step_names: .* is not a tuple, each item a string"),
    ({"training.weight_decay": NAN}, "training.weight_decay: nan is not a finite number"),
    ({"image_encoder.mean": (0.5, 0.5)}, "image_encoder.mean: .* is not a tuple of 3 items, each item a finite number"),
    ({"data.step_names": ("A", " ")}, "data.step_names: .* distinct, non-empty"),
    ({"data.source": "folder"}, "data.root is required with config.data.source='folder'"),
    ({"data.split_fractions": (0.5, 0.5, 0.5)}, "data.split_fractions: .* three shares that add up to 1"),
    *(({"data.fold": fold}, "data.fold: .* a fold of two or more") for fold in ("6/5", "0/5", "1/1", "2", "²/5")),
    ({"image_encoder.weights": "x"}, "image_encoder.weights: 'x.* is not used with config.image_encoder.name"),
    (FROZEN | {"image_encoder.weights": "ftp://models/x"}, "image_encoder.weights: .*unknown scheme"),
    ({"image_encoder.name": "imported"}, "image_encoder.weights is required .*stepcot features import FEATURES.npz"),
    ({"prompts.encoder": "pretrained"}, "prompts.weights is required with config.prompts.encoder"),
    ({"teacher.num_heads": 5}, r"teacher.num_heads: 5 is not a divisor of config.teacher.width \(768\)"),
    *(({"training.profile_updates": own}, "training.profile_updates: ") for own in ((3,), (3, 2), (1, 2, 3))),
    ({"parallel.transform": "mesh"}, "parallel.transform: 'mesh' .*; expected config.policy.weights"),
    ({"vqa.source": "folder"}, "vqa.root: '' does not fit config.vqa.source='folder'"),
    ({"policy.num_kv_heads": 5}, "policy.num_kv_heads: 5 is not a divisor"),
    (QWEN | {"policy.low_rank": 2, "policy.low_rank_targets": "("}, "policy.low_rank_targets: .*regular expression"),
    (QWEN | {"sft.pack_length": 9}, r"sft.pack_length: 9 with config.job='sft'; expected 0 with "),
    ({"rewards.open_answer": "judge"}, "rewards.open_answer: 'judge' needs config.rewards.judge_url"),
    ({"grpo.shuffle_rewards": True, "self_check.enabled": True}, "grpo.shuffle_rewards: True .*; expected False with"),
    ({"grpo.stage_credit": "released"}, "grpo.stage_credit: 'released' .*; expected config.vqa.dialect of lvkc, "),
    ({"job": "dpo", "rewards.functions": ("well_formed=1",)}, "rewards.gate: 'none' .*; expected 'released'"),
    ({"job": "sft", "curriculum.schedule": "epochs", "sft.pack_length": 9}, "sft.pack_length: 9 .*curriculum.schedule"),
    *(({"job": job, "start.checkpoint": "x"}, "start.checkpoint: 'x' .*; expected ''") for job in ("sft", "baseline")),
    ({"policy.start": "/x"}, "policy.start: '/x' with config.job='distill'; expected the job 'sft', 'grpo' or"),
    (
        {"job": "baseline", "baseline.form": "heads", "training.batch_size": 64},
        "training.batch_size: 64 with config.job='baseline'; expected 8: config.baseline.batch_size counts",
    ),
    ({"job": "baseline", "teacher.text": False}, "teacher.text: False with config.job='baseline'; expected True"),
    ({"job": "baseline", "baseline.form": "student"}, "student.dropout: 0.3 with config.job='baseline'; expected 0.0"),
    (IMPORTED | {"job": "sft"}, "image_encoder.name: 'imported' with config.job='sft'; expected an encoder that reads"),
    *(({"job": "sft", key: own}, f"{key}: .*; expected ") for key, own in (("data.augment", "light"),
                                                                           ("data.fold", "1/5"))),
    ({"policy.low_rank": 2}, "policy.low_rank: .*config.policy.weights"),
    ({"policy.weights": "/x"}, "policy.weights: '/x' with config.job='distill'; expected the job 'sft', 'grpo' or"),
    ({"job": "grpo", "data.source": "folder", "data.root": "x"}, "data.root: 'x' .*config.vqa.source and config.vqa."),
    ({"data.root": "/x"}, "data.root: '/x' .*; expected '', or config.data.source='folder'"),
    (QWEN | {"policy.shrink": 2}, "policy.shrink: 2 .*; expected 1, or config.policy.random=True"),
    (FROZEN | {"data.augment": "light"}, "data.augment: 'light' .* config.features.store=True"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_wrong_setting_is_refused_by_key_value_and_expectation(overrides, message):
    with pytest.raises(BadInput, match=f"^config.{message}") as refused:
        load_settings("base", **overrides)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("config.training.batch_size", "is required (a whole number >= 1)"),
        ("config.student", "is required (a group of settings)"),
    ],
)
def test_a_missing_setting_is_named(key, words):
    config = load_config("base").to_dict()
    *groups, name = key.split(".")[1:]
    del (config[groups[0]] if groups else config)[name]
    refuse(re.escape(f"{key} {words}"), make_settings, config)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("training.bach_size", "config.training.batch_size"),
        ("seeed", "config.seed"),
        ("batch_size", "config.features.batch_size or config.baseline.batch_size or config.sft.batch_size or"),
        ("loss.T", "config.loss."),
        ("seed.deep", "config.seed"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(key, nearest):
    refuse(f"^config.{key} is not a setting; did you mean {nearest}", load_settings, "base", **{key: 3})
    assert describe_key(Settings, "config.training.batch_size") == "a whole number >= 1"


@pytest.mark.parametrize("source", ["quickstart", "configs/quickstart.py", "mapping"])
def test_settings_are_loaded_by_name_path_or_mapping(source, monkeypatch):
    monkeypatch.chdir(ROOT)
    overrides = {"training.joint_epochs": 3, "data.step_names": ["A", "B"], "loss.temperature": 3}
    settings = load_settings(load_config("base").to_dict() if source == "mapping" else source, **overrides)
    assert (settings.training.joint_epochs, settings.data.step_names) == (3, ("A", "B"))
    assert (type(settings.loss.temperature), settings.loss.temperature) == (float, 3.0)
    assert settings.teacher.width == (768 if source == "mapping" else 96)


def test_what_belongs_together_is_accepted():
    assert load_settings("base", **FROZEN | {"data.augment": "light", "features.store": False}).data.augment == "light"
    weights = "transformers:/models/rad-dino"  # no address
    assert load_settings("base", **FROZEN | {"image_encoder.weights": weights}).image_encoder.weights == weights
    assert load_settings("quickstart", job="sft").image_encoder.name == "resnet_small"


def test_a_resumed_run_may_change_how_it_reads_and_not_what():
    before = load_settings("quickstart")
    how = {"data.num_workers": 4, "data.check_images": "on_use", "resume": False, "evaluation.miss_cost": 2.0}
    assert changed_keys(before, load_settings("quickstart", **how)) == []
    what = {"data.sampling": "inverse_frequency", "seed": 1, "data.single_label": False, "training.batch_size": 7}
    assert changed_keys(before, load_settings("quickstart", **what)) == [
        "config.seed",
        "config.data.single_label",
        "config.data.sampling",
        "config.training.batch_size",
    ]


def test_by_default_as_many_threads_decode_as_the_process_has_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)), raising=False)
    data = load_settings("quickstart").data
    assert (data.decoding_threads, data.batching_threads) == (5, 2)
    data = load_settings("quickstart", **{"data.num_threads": 3}).data
    assert (data.decoding_threads, data.batching_threads) == (3, 3)


def test_base_has_exactly_the_fields_of_settings_and_layouts_those_that_are_read():
    def fields(cls):
        hints = typing.get_type_hints(cls)
        names = [field.name for field in dataclasses.fields(cls)]
        return {name: fields(hints[name]) if dataclasses.is_dataclass(hints[name]) else None for name in names}

    def keys(tree):
        return {name: keys(value) if isinstance(value, dict) else None for name, value in tree.items()}

    assert keys(load_config("base").to_dict()) == fields(Settings)
    assert typing.get_args(typing.get_type_hints(DataSettings)["layout"]) == (AUTO, *CASES)


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "configs").glob("[!_]*.py")))
def test_a_shipped_config_makes_settings_and_tells_its_command(name):
    module = importlib.import_module(f"configs.{name}")
    config = module.get_config()
    for section in (config.data, config.vqa):
        if section.source == "folder" and not section.root:
            section.root = "given on the command line"
    for group in (config.image_encoder, config.prompts):
        if {"pretrained", "imported"} & {group.get("name"), group.get("encoder")}:
            group.weights = "given on the command line"
    assert isinstance(make_settings(config), Settings)
    command = rf"(python -m stepcot_jax\.main|stepcot tables [a-z_ ]+) --config={name} "
    assert name == "base" or re.search(command, module.__doc__)


@pytest.mark.parametrize(("asked", "meant"), [(".", "./run"), ("run/checkpoints", "run"), ("other", "")])
def test_the_folder_above_or_in_a_workdir_names_the_workdir(tmp_path, asked, meant):
    for name in ("run/checkpoints", "other/deeper"):
        (tmp_path / name).mkdir(parents=True)
    write_settings(tmp_path / "run" / "settings.json", load_settings("quickstart"))
    assert read_run_settings(tmp_path / "run") == load_settings("quickstart")
    with pytest.raises(BadInput, match=r"is not the workdir of a run \(no settings\.json\)") as caught:
        read_run_settings(tmp_path / asked)
    said = str(caught.value).partition("; did you mean ")[2]
    assert said == (f"{tmp_path / meant}?" if meant else "")
