import json
import shutil

import jax
import numpy as np
import pytest
from encoders.test_weights import write_clip
from refusals import refuse
from run.small_policy_run import read_results, reward_tokens, share_programs, small_settings
from run.small_run import Killed, read_log, stop_at

from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.policy_reader import load_reader
from stepcot_jax.run import inputs
from stepcot_jax.run.configs import load_config
from stepcot_jax.run.stored import read_policy
from stepcot_jax.run.training_run import Run
from stepcot_jax.systems.grpo import Rollouts
from stepcot_jax.training.state import flatten

pytestmark = pytest.mark.slow
WIDTHS = load_config("base").policy.encoder_widths


def frozen_settings(weights, **changes):
    frozen = {"image_encoder__name": "pretrained", "image_encoder__weights": str(weights)}
    short = {"policy__encoder_widths": WIDTHS, "sft__epochs": 1, "grpo__epochs": 1}
    return small_settings(**{**short, **frozen, **changes})


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
    trained = read_policy(workdir)
    names = flatten(trained.params)
    assert trained.patches.shape == (4, 16)
    assert [name for name in names if "image_encoder" in name] == ["image_encoder/norm/scale"]
    assert (np.asarray(names["image_encoder/norm/scale"]) != 1).all()
    norms = [entry["grpo/gradient_norm"] for entry in read_log(workdir) if "grpo/gradient_norm" in entry]
    assert min(norms) > 0


def test_resumed_equals_uninterrupted(encoder, workdir, tmp_path, monkeypatch):
    run = Run(frozen_settings(encoder), tmp_path / "run")
    stop_at(run.task, "prepare", 5, monkeypatch)  # three updates of fine-tuning before
    with pytest.raises(Killed):
        run.execute()
    asked = []
    encode = ImageEncoder.encode_patches
    monkeypatch.setattr(ImageEncoder, "encode_patches", lambda own, images: asked.append(1) or encode(own, images))
    Run(frozen_settings(encoder), tmp_path / "run").execute()
    assert not asked  # every picture's patches are in the store
    found, expected = read_results(tmp_path / "run"), read_results(workdir)
    for name in ("last", "files", "report"):
        assert found[name] == expected[name], name


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


def test_pictures_are_told_apart(workdir):
    answered = load_reader(workdir).answer(np.zeros((40, 50), np.uint8), "Is there any sign of pleural effusion?")
    assert answered.text
    pictures = np.random.default_rng(4).integers(0, 256, (2, 32, 32, 3), np.uint8)
    seen = np.asarray(read_policy(workdir).see(pictures))
    assert np.abs(seen[0] - seen[1]).max() > 0.01


def name_weights(workdir, weights):
    """As if the folder that the settings name had other weights than when the run began."""
    settings = json.loads((workdir / "settings.json").read_text())
    settings["image_encoder"]["weights"] = str(weights)
    (workdir / "settings.json").write_text(json.dumps(settings))


def test_another_encoder_is_refused(encoder, workdir, tmp_path, monkeypatch):
    moved, other = shutil.copytree(workdir, tmp_path / "moved"), tmp_path / "other"
    write_clip(other, num_hidden_layers=1)
    name_weights(moved, other)
    refuse(r"policy\.json: the frozen encoder .* is another \(digest .*\) than .*other, ", read_policy, moved)
    monkeypatch.setattr(inputs, "load_vqa_dataset", None)  # before minutes of encoding
    with pytest.raises(BadInput, match=r"policy\.json: the frozen encoder .* is another"):
        Run(frozen_settings(encoder, image_encoder__weights=str(other), grpo__epochs=3), moved).execute()
    start = {"policy__start": str(workdir), "sft__epochs": 0, "image_encoder__weights": str(other)}
    with pytest.raises(BadInput, match=r"config\.policy\.start: .*the frozen encoder .* is another"):
        Run(frozen_settings(encoder, **start), tmp_path / "started")


def test_a_run_starts_from_a_finished_one(encoder, workdir, tmp_path):
    moved = tmp_path / "clip"  # the start's own folder of the encoder is not asked for
    shutil.copytree(encoder, moved)
    start = {"policy__start": str(workdir), "sft__epochs": 0, "image_encoder__mean": (0.5, 0.5, 0.5)}
    run = Run(frozen_settings(moved, **start), tmp_path / "run")
    expected = flatten(read_policy(workdir).params)
    for name, found in flatten(run.task.system.start()).items():
        np.testing.assert_array_equal(found, expected[name])
    assert run.task.start.patches.encoder is run.task.data.patches.encoder


def test_another_preprocessing_is_another_encoder_and_its_folder_may_move(encoder, workdir, tmp_path):
    moved, copied = shutil.copytree(workdir, tmp_path / "moved"), shutil.copytree(encoder, tmp_path / "clip")
    name_weights(moved, copied)
    read_policy(moved)
    rules = {"image_mean": [0.4] * 3, "image_std": [0.3] * 3, "size": 32, "crop_size": 32}
    (copied / "preprocessor_config.json").write_text(json.dumps(rules))
    refuse("weights, preprocessing, dtype and", read_policy, moved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_encoder__image_size": 64}, r"config\.image_encoder\.image_size: 64 is not 32"),
        ({"policy__grid": 3}, r"config\.policy\.grid: 3 is more than 2"),
    ],
)
def test_what_does_not_suit_the_encoder_is_refused(encoder, tmp_path, changes, message):
    refuse(message, Run, frozen_settings(encoder, **changes), tmp_path / "run")
