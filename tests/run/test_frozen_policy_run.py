"""A policy over a frozen encoder's patches: trained, resumed, answering, exported; and what must be refused."""

import functools
import hashlib
import json
import operator
import shutil

import jax
import numpy as np
import pytest
from encoders.test_weights import write_clip
from oracles.random_params import randomise
from run.small_policy_run import read_results, reward_tokens, share_programs, small_settings
from run.small_run import Killed, read_log, stop_at

import stepcot_jax as sc
from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.export import policy_loader
from stepcot_jax.export.policy_folder import export_policy
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.policy_reader import load_policy, load_reader
from stepcot_jax.run import policy_data, stored_policy
from stepcot_jax.run.configs import load_config
from stepcot_jax.run.training_run import Run
from stepcot_jax.systems.grpo import Rollouts
from stepcot_jax.training.state import flatten

pytestmark = pytest.mark.slow

WIDTHS = load_config("base").policy.encoder_widths


def frozen_settings(weights, **changes):
    """Settings of a short run over the encoder in a folder."""
    frozen = {"image_encoder__name": "pretrained", "image_encoder__weights": str(weights)}
    return small_settings(**{"policy__encoder_widths": WIDTHS, **frozen, **changes})


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen") / "clip"
    write_clip(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def rewarded():
    """Rewards of any reply: a policy of few updates writes none that is well formed, and GRPO would learn nothing."""
    with pytest.MonkeyPatch.context() as patch:
        share_programs(patch)
        patch.setattr(Rollouts, "reward_all", reward_tokens)
        yield


@pytest.fixture(scope="module")
def workdir(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen") / "run"
    Run(frozen_settings(encoder), folder).execute()
    return folder


def test_only_the_decoder_trains(workdir):
    trained = load_policy(workdir)
    names = flatten(trained.params)
    assert trained.patches.shape == (4, 16)
    assert [name for name in names if "image_encoder" in name] == ["image_encoder/norm/scale"]
    assert (np.asarray(names["image_encoder/norm/scale"]) != 1).all()
    log = read_log(workdir)
    assert all(entry["grpo/gradient_norm"] > 0 for entry in log if "grpo/gradient_norm" in entry)
    assert any(entry.get("grpo/gradient_norm") for entry in log)


def test_resumed_equals_uninterrupted(encoder, workdir, tmp_path, monkeypatch):
    run = Run(frozen_settings(encoder), tmp_path / "run")
    stop_at(run.task, "prepare", 9, monkeypatch)
    with pytest.raises(Killed):
        run.execute()
    asked = []
    encode = ImageEncoder.encode_patches
    monkeypatch.setattr(ImageEncoder, "encode_patches", lambda own, images: asked.append(1) or encode(own, images))
    Run(frozen_settings(encoder), tmp_path / "run").execute()
    assert not asked  # every picture's patches are in the store
    found, expected = read_results(tmp_path / "run"), read_results(workdir)
    assert {name: found[name] for name in ("last", "files", "report")} == {
        name: expected[name] for name in ("last", "files", "report")
    }


def test_a_run_without_a_store_reads_the_same_patches(encoder, tmp_path):
    tasks = [Run(frozen_settings(encoder, features__store=own), tmp_path / str(own)).task for own in (True, False)]
    assert [(tmp_path / str(own) / "features").exists() for own in (True, False)] == [True, False]
    pictures = tasks[0].dataset.load_images(np.arange(3))
    np.testing.assert_allclose(*(np.asarray(task.see(pictures)) for task in tasks), rtol=0, atol=1e-4)


def test_drawn_boxes_are_encoded_anew(encoder, tmp_path):
    changes = {"sft__pack_length": 0, "curriculum__schedule": "mixed", "curriculum__shares": (1.0, 0.0, 0.0)}
    settings = frozen_settings(encoder, job="sft", vqa__dialect="medclm", **changes)
    task = Run(settings, tmp_path).task
    staged, plain = task.staged, task.dataset
    read = staged.read(0, np.arange(settings.sft.batch_size))
    state = task.system.init(jax.random.key(0), task.example)
    rows = staged(state, read)
    own = task.see(plain.load_images([plain.image_of[place] for place in read["indices"]]))
    differs = (rows["images"] != own).any(axis=(1, 2))
    has_boxes = [bool(plain.records[place].references) for place in read["indices"]]
    assert differs.tolist() == has_boxes
    assert True in has_boxes


@pytest.fixture(scope="module")
def exported(workdir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "policy"
    export_policy(workdir, folder)
    return folder


def test_answers_and_export(workdir, exported):
    pixels = np.random.default_rng(3).integers(0, 256, (40, 50), np.uint8)
    question = "Is there any sign of pleural effusion?"
    answered = load_reader(workdir).answer(pixels, question)
    again = sc.load(str(exported)).answer(pixels, question)  # without the encoder's own folder
    assert again.text == answered.text
    pictures = np.random.default_rng(4).integers(0, 256, (2, 32, 32, 3), np.uint8)
    seen = [np.asarray(load_policy(folder).see(pictures)) for folder in (workdir, exported)]
    np.testing.assert_array_equal(*seen)
    assert np.abs(seen[0][0] - seen[0][1]).max() > 0.01
    manifest = json.loads((exported / "export.json").read_text())
    assert manifest["encoder"]["network"]["class"] == "VisionTransformer"
    assert str(workdir.parent) not in (exported / "export.json").read_text()
    assert "its own licence and data" in (exported / "README.md").read_text()
    settings = json.loads((exported / "settings.json").read_text())
    assert settings["image_encoder"]["weights"] == "clip"


def name_weights(workdir, weights):
    """As if the folder that the settings name had other weights than when the run began."""
    settings = json.loads((workdir / "settings.json").read_text())
    settings["image_encoder"]["weights"] = str(weights)
    (workdir / "settings.json").write_text(json.dumps(settings))


def test_another_encoder_is_refused(encoder, workdir, tmp_path, monkeypatch):
    moved, other = shutil.copytree(workdir, tmp_path / "moved"), tmp_path / "other"
    write_clip(other, num_hidden_layers=1)
    name_weights(moved, other)
    with pytest.raises(BadInput, match=r"policy\.json: the frozen encoder .* is another \(digest .*\) than .*other, "):
        load_policy(moved)
    monkeypatch.setattr(policy_data, "load_vqa_dataset", None)  # before minutes of encoding
    with pytest.raises(BadInput, match=r"policy\.json: the frozen encoder .* is another"):
        Run(frozen_settings(encoder, image_encoder__weights=str(other), grpo__epochs=3), moved).execute()
    start = {"policy__start": str(workdir), "sft__epochs": 0, "image_encoder__weights": str(other)}
    with pytest.raises(BadInput, match=r"config\.policy\.start: .*the frozen encoder .* is another"):
        Run(frozen_settings(encoder, **start), tmp_path / "started")


def test_a_run_starts_from_a_finished_one(encoder, workdir, tmp_path):
    moved = tmp_path / "clip"  # the start's own folder of the encoder is not asked for
    shutil.copytree(encoder, moved)
    start = {"policy__start": str(workdir), "sft__epochs": 0, "grpo__epochs": 1, "image_encoder__mean": (0.5, 0.5, 0.5)}
    run = Run(frozen_settings(moved, **start), tmp_path / "run")
    expected = flatten(load_policy(workdir).params)
    for name, found in flatten(run.task.system.start()).items():
        np.testing.assert_array_equal(found, expected[name])
    assert run.task.start.patches.encoder is run.task.data.patches.encoder


def test_another_preprocessing_is_another_encoder_and_its_folder_may_move(encoder, workdir, tmp_path):
    moved, copied = shutil.copytree(workdir, tmp_path / "moved"), shutil.copytree(encoder, tmp_path / "clip")
    name_weights(moved, copied)
    load_policy(moved)
    rules = {"image_mean": [0.4] * 3, "image_std": [0.3] * 3, "size": 32, "crop_size": 32}
    (copied / "preprocessor_config.json").write_text(json.dumps(rules))
    with pytest.raises(BadInput, match="weights, preprocessing, dtype and"):
        load_policy(moved)


def test_a_bfloat16_encoder_is_exported(tmp_path, monkeypatch):
    write_clip(tmp_path / "clip", num_hidden_layers=6, hidden_size=64, intermediate_size=128)
    changes = {"image_encoder__dtype": "bfloat16", "sft__epochs": 1, "grpo__epochs": 0}
    Run(frozen_settings(tmp_path / "clip", **changes), tmp_path / "run").execute()
    network = load_policy(tmp_path / "run").params
    varied = randomise(network, 0)  # a policy of few updates says the same of every picture
    monkeypatch.setattr(stored_policy, "_put_for_replies", lambda *_: varied)
    export_policy(tmp_path / "run", tmp_path / "exported")
    assert policy_loader.check(tmp_path / "exported")["same_tokens"] == 1


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("encoder", "network", "sizes", "num_heads"), 3, r"export\.json, encoder\.network: "),
        (("encoder", "network", "image_size"), 48, r"encoder\.network: images must be .* 32 x 32 px"),
        (("encoder", "network", "sizes", "width"), 32, r"image encoder.* does not fit export\.json"),
        (("encoder",), None, r"export\.json: no encoder"),
    ],
)
def test_a_damaged_encoder_of_an_export_is_refused(exported, tmp_path, path, value, message):
    folder = tmp_path / "exported"
    shutil.copytree(exported, folder)
    manifest = json.loads((folder / "export.json").read_text())
    *groups, name = path
    functools.reduce(operator.getitem, groups, manifest)[name] = value
    (folder / "export.json").write_text(json.dumps(manifest))
    lines = [line.partition("  ")[2] for line in (folder / "SHA256SUMS").read_text().splitlines()]
    sums = [f"{hashlib.sha256((folder / line).read_bytes()).hexdigest()}  {line}" for line in lines]
    (folder / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    with pytest.raises(BadInput, match=message):
        load_policy(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_encoder__image_size": 64}, r"config\.image_encoder\.image_size: 64 is not 32"),
        ({"policy__grid": 3}, r"config\.policy\.grid: 3 is more than 2"),
    ],
)
def test_what_does_not_suit_the_encoder_is_refused(encoder, tmp_path, changes, message):
    with pytest.raises(BadInput, match=message):
        Run(frozen_settings(encoder, **changes), tmp_path / "run")
