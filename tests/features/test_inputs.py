import shutil

import numpy as np
import pytest
from refusals import refuse
from run.small_run import small_run, small_settings

from stepcot_jax.data.batches import evaluation_batches, iterate, training_batches
from stepcot_jax.data.images.preprocessing import normalise
from stepcot_jax.data.records.records import read_records
from stepcot_jax.features.importing import import_features
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run import inputs

pytestmark = pytest.mark.slow


@pytest.fixture
def frozen(load_fakes):
    return load_fakes()


def frozen_settings(folder, **changes):
    return small_settings(
        data__source="folder",
        data__root=str(folder),
        image_encoder__name="pretrained",
        image_encoder__weights="anywhere",
        prompts__encoder="pretrained",
        prompts__weights="anywhere",
        features__batch_size=16,
        **changes,
    )


@pytest.fixture
def load(tmp_path):
    def load(root, **changes):
        return inputs.load_inputs(frozen_settings(root, **changes), tmp_path / "run", Terminal())

    return load


def test_every_image_and_prompt_is_encoded_once_and_read_afterwards(folder, frozen, load, capsys):
    first = load(folder)
    assert (len(frozen[0].images), len(frozen[1].texts)) == (48, 7)  # 40 images in batches of 16
    assert "images: 40 encoded, 0 read" in capsys.readouterr().err
    assert first.image_encoder is None
    assert first.example["image_features"].shape == (1, frozen[0].width)
    direct = load(folder, features__store=False).dataset
    images = normalise(np.stack([direct.pixels[index] for index in range(40)]), direct.preprocessing)
    np.testing.assert_allclose(first.dataset.features, frozen[0].encode(images), rtol=1e-6)
    num_seen = len(frozen[0].images)
    capsys.readouterr()
    again = load(folder)
    assert "images: 0 encoded, 40 read" in capsys.readouterr().err
    np.testing.assert_array_equal(first.dataset.features, again.dataset.features)
    np.testing.assert_array_equal(first.text_features, again.text_features)
    assert len(frozen[0].images) == num_seen


def test_a_changed_picture_is_encoded_again_and_a_broken_one_is_found_although_it_was_stored(
    folder, frozen, load, tmp_path, capsys
):
    root = tmp_path / "copy"
    shutil.copytree(folder, root)
    load(root)
    shutil.copy(root / "images/phantom_000003.png", root / "images/phantom_000004.png")
    capsys.readouterr()
    load(root)
    assert "images: 0 encoded, 39 read" in capsys.readouterr().err  # the copy is the same picture as its source
    frozen[0].digest = "weights-2"
    load(root)
    assert "images: 39 encoded, 0 read" in capsys.readouterr().err
    picture = root / "images/phantom_000007.png"
    picture.write_bytes(picture.read_bytes()[:-30])
    refuse("phantom_000007", load, root)
    picture.write_bytes(b"")
    expected = r"data\.json.*record 7: .*phantom_000007\.png: is an empty file"
    refuse(expected, load, root, data__check_images="on_use")
    dataset = load(root, data__check_images="on_use", features__store=False).dataset
    with pytest.raises(BadInput, match=expected):
        [dataset.pixels[index] for index in range(40)]


def test_imported_features_are_trained_on_without_any_picture(folder, tmp_path, monkeypatch):
    cases = read_records(folder).cases
    rng = np.random.default_rng(0)
    rows, prompts = rng.standard_normal((40, 6)).astype(np.float32), rng.standard_normal((7, 8)).astype(np.float32)
    ids = np.array([case.image for case in cases])
    np.savez(tmp_path / "made.npz", features=rows, ids=ids, prompt_features=prompts)
    import_features(tmp_path / "made.npz", None, cases, tmp_path / "store")
    root = tmp_path / "no pictures"
    root.mkdir()
    (root / "data.json").write_bytes((folder / "data.json").read_bytes())
    changes = {"data__source": "folder", "data__root": str(root), "image_encoder__weights": str(tmp_path / "store")}
    changes |= {"image_encoder__name": "imported", "prompts__encoder": "imported"}
    seen = next(small_run(tmp_path / "run", monkeypatch, **changes).task.feed.training_batches())["image_features"]
    assert all((row == rows).all(axis=1).any() for row in np.asarray(seen))
    loaded = inputs.load_inputs(small_settings(**changes), tmp_path / "again", Terminal())
    np.testing.assert_array_equal(loaded.dataset.features, rows)
    np.testing.assert_array_equal(loaded.text_features, prompts)


def test_a_run_reads_as_its_settings_say(folder, tmp_path, monkeypatch):
    """The batches themselves are compared in test_batches: here no worker is started, which would take seconds."""
    asked = []

    def iterate_here(batches, *, num_threads, num_workers):
        asked.append((num_threads, num_workers))
        return iterate(batches, num_threads=num_threads)

    monkeypatch.setattr(inputs, "iterate", iterate_here)
    changes = {"data__source": "folder", "data__root": str(folder), "data__num_workers": 3, "data__num_threads": 1}
    changes |= {"data__augment": "light", "data__sampling": "inverse_frequency"}
    run = small_run(tmp_path, monkeypatch, **changes)
    expected = training_batches(run.task.dataset, batch_size=8, seed=0, sampling="inverse_frequency", augment=True)
    np.testing.assert_array_equal(next(run.task.feed.training_batches())["images"], expected[0]["images"])
    monkeypatch.setattr(inputs, "collect", lambda predict, batches: list(batches))
    plain = evaluation_batches(run.task.dataset, "val", batch_size=128)[0]
    seen = []
    monkeypatch.setattr(type(run.task), "predict", lambda _, params, batch: seen.append(np.asarray(batch["images"])))
    run.task.predictions(None, "val")
    np.testing.assert_array_equal(seen[0], plain["images"])
    assert asked == [(1, 3), (1, 3)]
    assert not run.task.dataset.pixels._cache._kept  # it would serve no worker
