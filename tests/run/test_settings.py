import copy
import dataclasses
import importlib.util
import json
import pathlib
import re
import typing

import pytest

from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.fields import RENAMED, describe_key
from stepcot_jax.run.settings import Settings, load_settings, make_settings, read_settings, write_settings

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.py"))
MISSING = object()


def load(path):
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def base():
    return load(CONFIGS[0].with_name("base.py")).get_config().to_dict()


def changed(base, key, value):
    config = copy.deepcopy(base)
    *groups, name = key.split(".")[1:]
    node = config
    for group in groups:
        node = node[group]
    if value is MISSING:
        del node[name]
    else:
        node[name] = value
    return config


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("config.seed", "zero", "a whole number"),
        ("config.seed", 1.5, "a whole number"),
        ("config.seed", True, "a whole number"),
        ("config.seed", -1, ">= 0"),
        ("config.seed", 2**32, "<= 4294967295"),
        ("config.resume", 1, "True or False"),
        ("config.job", "train", "'teacher', 'distill'"),
        ("config.job", 3, "'teacher', 'distill'"),
        ("config.data", 3, "a group of settings"),
        ("config.data.root", 3, "a string"),
        ("config.data.step_names", "Detection", "a tuple, each item a string"),
        ("config.data.step_names", ("Detection", 2), "a tuple, each item a string"),
        ("config.data.split_fractions", (0.5, 0.5, 0.5), "three shares that add up to 1"),
        ("config.data.split_fractions", (0.5, 0.5), "three shares"),
        ("config.data.split_fractions", (1.0, 0.0, 0.0), "> 0 and <= 1"),
        *(
            ("config.data.fold", fold, "a fold of two or more, such as '2/5'")
            for fold in ("6/5", "0/5", "1/1", "2", "²/5")
        ),
        ("config.image_encoder.mean", (0.5, 0.5), "3 numbers"),
        ("config.image_encoder.mean", (0.5, 0.5, float("nan")), "a finite number"),
        ("config.image_encoder.std", (0.5, 0.5, 0.0), "> 0"),
        ("config.image_encoder.image_size", 4096, ">= 32 and <= 1024"),
        ("config.teacher.num_heads", 5, "a divisor of config.teacher.width (768)"),
        ("config.teacher.head_dropout", 1.1, ">= 0 and <= 1"),
        ("config.training.teacher_learning_rate", 0, "> 0"),
        ("config.training.weight_decay", float("nan"), "a finite number"),
        ("config.training.clip_norm", float("inf"), "a finite number"),
        ("config.training.batch_size", None, "a whole number"),
        ("config.training.batch_size", MISSING, "is required (a whole number >= 1)"),
        ("config.student", MISSING, "is required (a group of settings)"),
    ],
)
def test_an_error_names_key_value_and_expectation(base, key, value, expected):
    with pytest.raises(BadInput) as refused:
        make_settings(changed(base, key, value))
    message = str(refused.value)
    assert re.match(rf"{re.escape(key)}[: ]", message)
    assert expected in message
    assert value is MISSING or repr(value) in message


def test_a_whole_number_is_taken_for_a_float_and_a_list_for_a_tuple(base):
    settings = make_settings(changed(base, "config.loss.temperature", 3))
    assert (type(settings.loss.temperature), settings.loss.temperature) == (float, 3.0)
    assert make_settings(changed(base, "config.data.origins", ["A"])).data.origins == ("A",)


def test_a_folder_needs_its_root(base):
    with pytest.raises(BadInput, match=r"^config\.data\.root is required with config\.data\.source='folder'"):
        make_settings(changed(base, "config.data.source", "folder"))


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("config.training.bach_size", "config.training.batch_size"),
        ("config.seeed", "config.seed"),
        # a valid name in the wrong section:
        (
            "config.batch_size",
            "config.features.batch_size or config.baseline.batch_size or config.sft.batch_size or",
        ),
        ("config.loss.T", "config.loss."),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(base, key, nearest):
    for refuse in (lambda: make_settings(changed(base, key, 3)), lambda: describe_key(Settings, key)):
        with pytest.raises(BadInput) as refused:
            refuse()
        assert str(refused.value).startswith(f"{key} is not a setting; did you mean {nearest}")


def test_a_renamed_key_is_refused_with_its_new_name_and_read_from_earlier_workdirs(base, tmp_path, monkeypatch):
    monkeypatch.setitem(RENAMED, "config.loss.T", "config.loss.temperature")
    monkeypatch.setitem(RENAMED, "config.train.batch_size", "config.training.batch_size")
    with pytest.raises(BadInput, match=r"^config\.loss\.T was renamed to config\.loss\.temperature$"):
        make_settings(changed(base, "config.loss.T", 3.0))
    settings = make_settings(base)
    write_settings(tmp_path / "settings.json", settings)
    earlier = json.loads((tmp_path / "settings.json").read_text())
    earlier["loss"]["T"] = earlier["loss"].pop("temperature")
    (tmp_path / "settings.json").write_text(json.dumps(earlier))
    assert read_settings(tmp_path / "settings.json") == settings


def test_a_later_setting_is_read_from_earlier_workdirs_and_required_of_configs(base, tmp_path):
    settings = make_settings(base)
    write_settings(tmp_path / "settings.json", settings)
    earlier = json.loads((tmp_path / "settings.json").read_text())
    del earlier["evaluation"]["coverage_by"]
    (tmp_path / "settings.json").write_text(json.dumps(earlier))
    assert read_settings(tmp_path / "settings.json") == settings
    with pytest.raises(BadInput, match=r"^config\.evaluation\.coverage_by is required \(one of 'step', 'answer'\)"):
        make_settings(earlier)
    for damaged in ({**earlier, "evaluation": 5}, {name: own for name, own in earlier.items() if name != "evaluation"}):
        (tmp_path / "settings.json").write_text(json.dumps(damaged))
        with pytest.raises(BadInput, match=r"settings\.json: config\.evaluation"):
            read_settings(tmp_path / "settings.json")


@pytest.mark.parametrize(
    ("weights", "without_effect"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", {"num_merges": 10}),
        ("Qwen/Qwen2.5-VL-7B-Instruct", {"width": 32, "encoder_widths": [8, 8]}),
        ("Qwen/Qwen2.5-VL-7B-Instruct", {"low_rank_alpha": 16.0, "low_rank_targets": "decoder/head"}),
        ("", {"low_rank_alpha": 16.0}),
    ],
)
def test_what_has_no_effect_is_read_from_earlier_workdirs_and_refused_to_new_runs(tmp_path, weights, without_effect):
    settings = load_settings("base", **{"job": "sft", "policy.weights": weights, "sft.pack_length": 0})
    write_settings(tmp_path / "settings.json", settings)
    earlier = json.loads((tmp_path / "settings.json").read_text())
    earlier["policy"] |= without_effect
    (tmp_path / "settings.json").write_text(json.dumps(earlier))
    assert read_settings(tmp_path / "settings.json") == settings
    with pytest.raises(BadInput, match=rf"^config\.policy\.({'|'.join(without_effect)}): "):
        make_settings(earlier)
    (tmp_path / "settings.json").write_text(json.dumps({**earlier, "policy": 5}))
    with pytest.raises(BadInput, match=r"settings\.json: config\.policy: 5 is not a group of settings"):
        read_settings(tmp_path / "settings.json")


@pytest.mark.parametrize("job", ["sft", "grpo"])
@pytest.mark.parametrize(
    ("name", "unread", "default"),
    [
        ("image_encoder.name", {"name": "imported", "weights": "encoder"}, "resnet18"),
        ("image_encoder.fit", {"fit": "pad"}, "crop"),
        ("data.source", {"source": "folder", "root": "records"}, "phantom"),
        ("data.augment", {"augment": "light"}, "none"),
        ("rewards.chain_weight", {"chain_weight": 1.0}, 0.0),
    ],
)
def test_what_policies_do_not_read_is_refused_to_new_runs_and_dropped_of_earlier_ones(
    tmp_path, job, name, unread, default
):
    settings, section = load_settings("base", job=job), name.split(".")[0]
    write_settings(tmp_path / "settings.json", settings)
    earlier = json.loads((tmp_path / "settings.json").read_text())
    earlier[section] |= unread
    message = rf"^config\.{name}: '?{next(iter(unread.values()))}'? has no effect with config.job='{job}'; expected "
    with pytest.raises(BadInput, match=f"{message}{default!r} "):
        make_settings(earlier)
    del earlier["curriculum"]["first_loss"]  # later than the refusal
    (tmp_path / "settings.json").write_text(json.dumps(earlier))
    assert read_settings(tmp_path / "settings.json") == settings
    earlier["curriculum"] |= {"first_loss": settings.curriculum.first_loss}
    assert getattr(make_settings({**earlier, "job": "chain_grpo"}), section) != getattr(settings, section)


@pytest.mark.parametrize("name", ["pretrained", "imported"])
def test_an_encoder_that_policies_could_not_read_then_is_dropped_of_earlier_workdirs(tmp_path, name):
    settings = load_settings("base", **{"job": "sft", "policy.encoder_widths": (8, 8)})
    write_settings(tmp_path / "settings.json", settings)
    earlier = json.loads((tmp_path / "settings.json").read_text())
    earlier["image_encoder"] |= {"name": name, "weights": "encoder"}
    del earlier["curriculum"]["first_loss"]
    (tmp_path / "settings.json").write_text(json.dumps(earlier))
    assert read_settings(tmp_path / "settings.json") == settings


def test_an_encoder_name_that_policies_accept_is_kept_of_earlier_workdirs(tmp_path):
    settings = load_settings("quickstart", job="sft")
    write_settings(tmp_path / "settings.json", settings)
    earlier = json.loads((tmp_path / "settings.json").read_text())
    del earlier["curriculum"]["first_loss"]
    (tmp_path / "settings.json").write_text(json.dumps(earlier))
    assert read_settings(tmp_path / "settings.json").image_encoder.name == "resnet_small"


def test_a_chain_config_with_the_job_of_a_policy_is_accepted():
    assert load_settings("quickstart", job="sft").image_encoder.name == "resnet_small"


def test_a_key_below_a_value_is_unknown():
    assert describe_key(Settings, "config.training.batch_size") == "a whole number >= 1"
    with pytest.raises(BadInput, match=r"did you mean config\.seed\?"):
        describe_key(Settings, "config.seed.deep")


@pytest.mark.parametrize("source", ["quickstart", "configs/quickstart.py", "mapping"])
def test_settings_are_loaded_by_name_path_or_mapping(base, source, monkeypatch):
    monkeypatch.chdir(ROOT)
    overrides = {"training.joint_epochs": 3, "data.step_names": ["A", "B"]}
    settings = load_settings(base if source == "mapping" else source, **overrides)
    assert settings.training.joint_epochs == 3
    assert settings.data.step_names == ("A", "B")
    assert settings.teacher.width == (768 if source == "mapping" else 96)
    with pytest.raises(BadInput, match=r"^config\.training\.joint_epoch is not a setting; did you mean"):
        load_settings("quickstart", **{"training.joint_epoch": 3})


def fields(cls):
    hints = typing.get_type_hints(cls)
    return {
        field.name: fields(hints[field.name]) if dataclasses.is_dataclass(hints[field.name]) else None
        for field in dataclasses.fields(cls)
    }


def test_base_has_exactly_the_fields_of_settings(base):
    def keys(tree):
        return {name: keys(value) if isinstance(value, dict) else None for name, value in tree.items()}

    assert keys(base) == fields(Settings)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_config_makes_settings_and_tells_its_command(path):
    module = load(path)
    config = module.get_config()
    if config.data.source == "folder" and not config.data.root:
        config.data.root = "given on the command line"
    if config.vqa.source == "folder" and not config.vqa.root:
        config.vqa.root = "given on the command line"
    for group in (config.image_encoder, config.prompts):
        if {"pretrained", "imported"} & {group.get("name"), group.get("encoder")}:
            group.weights = "given on the command line"
    assert isinstance(make_settings(config), Settings)
    if path.stem == "base":
        assert "quickstart" in module.__doc__  # base is not a config to run
    else:
        assert re.search(
            rf"(python -m stepcot_jax\.main|stepcot tables [a-z_ ]+) --config={path.stem} ", module.__doc__
        )


def test_resolved_settings_come_back_from_their_file(base, tmp_path):
    settings = make_settings(base)
    write_settings(tmp_path / "settings.json", settings)
    assert read_settings(tmp_path / "settings.json") == settings
    assert json.loads((tmp_path / "settings.json").read_text())["training"]["batch_size"] == 32
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(BadInput, match=r"settings\.json: "):
        read_settings(tmp_path / "settings.json")


@pytest.mark.parametrize("names", [(), ("A", "A", "C"), ("A", " ")])
def test_step_names_that_cannot_tell_steps_apart_are_refused(base, names):
    base["data"]["step_names"] = names
    with pytest.raises(BadInput, match=r"config\.data\.step_names: .* distinct"):
        make_settings(base)


def test_messages_quote_the_start_of_long_names_and_values():
    for content in ({"a" * 10_000: 1}, {**dataclasses.asdict(load_settings("base")), "job": "a" * 10_000}):
        with pytest.raises(BadInput, match="aaaa…") as refused:
            make_settings(content)
        assert len(str(refused.value)) < 1000


def test_a_folder_of_transformers_is_no_address():
    frozen = {"image_encoder.name": "pretrained", "image_encoder.weights": "transformers:/models/rad-dino"}
    assert load_settings("base", **frozen).image_encoder.weights == "transformers:/models/rad-dino"
    with pytest.raises(BadInput, match=r"config\.image_encoder\.weights: .*unknown scheme"):
        load_settings("base", **frozen | {"image_encoder.weights": "ftp://models/rad-dino"})
