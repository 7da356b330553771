import dataclasses
import shutil

import jax
import numpy as np
import pytest
from refusals import edit_json, refuse
from trained_workdir import BEST, SIDE, make_text, make_trained_workdir, write_gate, write_joint, write_operating_points

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.evaluation.calibration import Calibration
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading import programs as reader_module
from stepcot_jax.reading import trained_model
from stepcot_jax.reading.programs import Reader
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.run.stored import RESULT_FILES, read_shapes, seal, write_shapes
from stepcot_jax.systems.networks import make_predict
from stepcot_jax.training.state import shapes_by_name

pytestmark = pytest.mark.usefixtures("small_encoder")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    return folder, *make_trained_workdir(folder)


@pytest.fixture(scope="module")
def trained(run):
    return load_trained(run[0])


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run[0], tmp_path / "copy")


IMAGES = np.random.default_rng(0).standard_normal((3, SIDE, SIDE, 3)).astype(np.float32)


def test_each_network_has_the_weights_of_its_best_step(run, trained):
    _, _, params = run
    assert trained.best_steps == BEST
    for name, step in BEST.items():
        jax.tree.map(np.testing.assert_array_equal, trained.params[name], jax.device_get(params[step]))
    np.testing.assert_array_equal(trained.text_features, make_text(trained.run.settings))
    assert trained.calibration is None
    assert list(load_trained(run[0], names=("teacher",)).params) == ["teacher"]
    refuse("it has teacher, student", load_trained, run[0], names=("professor",))


@pytest.fixture(scope="module")
def teacher(trained):
    return Reader(trained, model="teacher", batch_size=2)


@pytest.fixture(scope="module")
def student(trained):
    return Reader(trained, batch_size=2)


def test_a_reader_computes_what_evaluation_computes(trained, teacher, student):
    predict = make_predict(trained.networks, trained.text_features, ("teacher", "student"))
    own = np.arange(9)[None] < np.asarray(DEFAULT_CHAIN.answers_per_step)[:, None]
    for reader in (teacher, student):
        params = jax.device_put(trained.params[reader.model])
        expected = np.asarray(predict(params, {"images": IMAGES})[reader.model])
        found = reader.read(IMAGES)
        np.testing.assert_allclose(found.logits[:, own], expected[:, own], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(found.probabilities.sum(axis=-1), 1, atol=1e-6)
        assert (found.probabilities[:, ~own] == 0).all()


def test_large_heads_are_read_where_they_lie(trained, teacher, monkeypatch):
    monkeypatch.setattr(reader_module, "SPLIT_FROM", 0)
    split = Reader(trained, model="teacher", batch_size=2)
    given = np.full((3, 7), -1)
    given[1, 3] = 2
    found, expected = split.read(IMAGES, given), teacher.read(IMAGES, given)
    np.testing.assert_allclose(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.attention, expected.attention, atol=1e-5)
    plain = Reader(trained, model="teacher", batch_size=2, with_attention=False).read(IMAGES, given)
    np.testing.assert_allclose(plain.logits, expected.logits, rtol=1e-4, atol=1e-5)
    assert plain.attention is None
    assert isinstance(split._laid_out["teacher"]["heads"], tuple)
    assert isinstance(teacher._laid_out["teacher"]["heads"], dict)
    assert Reader(trained, model="student")._laid_out.keys() == {"student", "image_encoder"}


@pytest.mark.parametrize(
    ("images", "given", "words"),
    [
        (IMAGES[:, 1:], None, r"must have shape \[case, 32, 32, 3\]"),
        (IMAGES[:1], np.full((1, 7), 4), "must be labels of shape"),
    ],
)
def test_other_images_and_labels_are_refused(teacher, images, given, words):
    refuse(words, teacher.read, images, given)


def test_calibrated_probabilities_and_answer_sets(trained, student):
    calibration = Calibration(0.9, {"student": (2.0,) * 7}, {"student": (0.5,) * 7})
    plain = student.read(IMAGES)
    scaled = Reader(dataclasses.replace(trained, calibration=calibration), batch_size=2).read(IMAGES)
    expected = plain.probabilities**0.5
    np.testing.assert_allclose(scaled.probabilities, expected / expected.sum(axis=-1, keepdims=True), atol=1e-6)
    assert plain.answer_sets is None
    assert scaled.answer_sets.any(axis=-1).all()


@pytest.mark.parametrize(("missing", "words"), [("", "no such folder"), ("checkpoints/3", "no checkpoint 3")])
def test_a_workdir_that_cannot_be_read_is_refused(copy, missing, words):
    shutil.rmtree(copy / missing)
    assert str(copy) in refuse(words, load_trained, copy)


def test_a_flipped_bit_is_refused_in_every_file(tmp_path):
    folder, random = tmp_path / "run", np.random.default_rng(0)
    make_trained_workdir(folder, calibrated=True)
    write_gate(folder)
    write_joint(folder)
    write_operating_points(folder)
    seal(folder, RESULT_FILES)
    load_trained(folder)
    names = [line.partition("  ")[2] for line in (folder / "digests.sha256").read_text().splitlines()]
    assert sorted(names) == ["calibration.json", "gate.npz", "joint.json", "points.json", "reading/chain.json"]
    for name in names:
        whole = (folder / name).read_bytes()
        content = bytearray(whole)
        content[random.integers(len(content))] ^= 1 << random.integers(8)
        (folder / name).write_bytes(content)
        refuse(rf"{name}: changed since it was written", load_trained, folder)
        (folder / name).write_bytes(whole)
    load_trained(folder)


def test_stored_shapes_are_compared_without_tracing_the_networks(copy, trained, monkeypatch):
    shapes, inputs = shapes_by_name(trained.params["student"]), (*trained.text_features.shape, 0)
    assert read_shapes(copy, inputs=inputs) is None
    write_shapes(copy, shapes, inputs=inputs)
    assert read_shapes(copy, inputs=(1,)) is None
    traced = []

    def trace(*arguments, init=trained_model.init_params, **settings):
        traced.append(1)
        return init(*arguments, **settings)

    monkeypatch.setattr(trained_model, "init_params", trace)
    assert load_trained(copy).best_steps == BEST
    assert not traced
    edit_json(copy / "settings.json", lambda found: found["student"].update(width=16))
    with pytest.raises(BadInput, match=r"does not fit settings\.json"):  # shapes of other settings tell nothing
        load_trained(copy)
    assert traced
    edit_json(copy / "settings.json", lambda found: found["student"].update(width=8))
    write_shapes(copy, dict.fromkeys(shapes, (1,)), inputs=inputs)  # that the weights do not have
    assert load_trained(copy).best_steps == BEST
