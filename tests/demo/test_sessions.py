import base64
import html
import io
import re
import types

import numpy as np
import pytest
from PIL import Image
from refusals import refuse
from trained_workdir import small_settings

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.images import preprocessing
from stepcot_jax.data.images.image_decoding import decode_picture
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.extras.demo.examples import find_examples
from stepcot_jax.extras.demo.sessions import MAX_DETAIL, start_session, write_reading_view
from stepcot_jax.reading import radiographs
from stepcot_jax.reading.corrections import given_distributions, read_corrections
from stepcot_jax.reading.explain import Claim
from stepcot_jax.reading.readings import ChainReading, Flip, Shift, StepAnswer
from stepcot_jax.run.stored import StoredRun

PICTURE = np.full((32, 32, 3), 128, np.uint8)


def make_reading(given, flipped):
    steps = []
    for place, step in enumerate(DEFAULT_CHAIN.steps):
        shares = [0.0] * step.num_answers
        shares[1] = 1.0
        own = tuple(shares) if place == given else ()
        answer_set = None if place == given else (step.options[1], step.options[0])
        steps.append(StepAnswer(step, 1, tuple(shares), own, answer_set))
    shifted = () if given is None else (Shift("Lesion distribution", 0.25), Shift("Diagnosis", 0.004))
    facts = {"source": "<image>", "model": "teacher", "calibrated": False, "coverage": None}
    return ChainReading(**facts, steps=tuple(steps), flipped=flipped, shifted=shifted)


def explain():
    """An explanation whose maps are even."""
    claims = tuple(Claim(0.84, 0.31, 0.8 - 0.01 * step) for step in range(7))
    return types.SimpleNamespace(maps=np.ones((1, 7, 4, 4)), claims=(claims,))


def test_a_correction_shows_what_it_changed():
    explained = explain()
    plain = write_reading_view(PICTURE, explained=explained, reading=make_reading(None, ()))
    assert plain.count("<figure") == 8
    assert "correction" not in plain
    for step in DEFAULT_CHAIN.steps:
        assert f'<span class="set">or {html.escape(step.options[0])}</span>' in plain
    assert "the other answers of the answer set" in plain
    assert "84 % becomes 31 % with the brightest tenth blurred, 74 % with a random tenth" in plain
    nothing = write_reading_view(PICTURE, explained=explained, reading=make_reading(0, ()))
    assert "The correction changed no other answer; largest change of another probability: 25.0 points (" in nothing
    assert nothing.count('class="given"') == 1
    flipped = write_reading_view(
        PICTURE, explained=explained, reading=make_reading(0, (Flip("Diagnosis", "<Normal>", "Nodule"),))
    )
    assert "Changed by the correction: Diagnosis: &lt;Normal&gt; → Nodule." in flipped
    assert flipped.count('class="flipped"') == 1
    assert "was &lt;Normal&gt;" in flipped


def test_a_saved_correction_is_taken_by_predict(tmp_path):
    explained = explain()
    assert "download=" not in write_reading_view(PICTURE, explained=explained, reading=make_reading(None, ()))
    view = write_reading_view(PICTURE, explained=explained, reading=make_reading(2, ()))
    name, content = re.search(r'download="([^"]+)" href="data:application/json;base64,([^"]+)"', view).groups()
    (tmp_path / name).write_bytes(base64.b64decode(content))
    given = read_corrections([str(tmp_path / name), "Detection=Mixed"])
    third = DEFAULT_CHAIN.steps[2]
    assert given["Detection"] == "Mixed"
    assert given[third.name][third.options[1]] == 1.0
    shares = given_distributions(given, DEFAULT_CHAIN)
    assert shares.any(axis=1).tolist() == [True, False, True, False, False, False, False]
    assert shares[2].argmax() == 1
    refuse("occurs twice", read_corrections, [str(tmp_path / name), f"{third.name}=Mixed"])


@pytest.mark.parametrize("content", ['{"steps": [{"step": "Detection", "given": false}]}', '{"steps": 3}', ""])
def test_a_file_without_a_correction_is_named(tmp_path, content):
    (tmp_path / "saved.json").write_text(content)
    refuse(r"saved\.json.*expected a reading as the demo saves it", read_corrections, [str(tmp_path / "saved.json")])


@pytest.mark.parametrize(("fit", "side"), [("crop", 100), ("pad", 300), ("stretch", 100)])
def test_the_detail_is_the_part_that_the_network_sees(fit, side):
    """A bright square keeps its place, in shares of the picture."""
    pixels = np.zeros((100, 300), np.uint8)
    pixels[40:60, 130:150] = 255
    trained = types.SimpleNamespace(preprocessing=Preprocessing(size=50, fit=fit), max_pixels=10**8)
    session = start_session(pixels, types.SimpleNamespace(trained=trained))
    assert session.picture.shape == (50, 50, 3)
    assert session.detail.shape == (side, side, 3)
    places = [
        [
            float(np.average(np.arange(len(each)), weights=each[..., 0].sum(axis=1 - axis))) / len(each)
            for axis in (0, 1)
        ]
        for each in (session.picture, session.detail)
    ]
    np.testing.assert_allclose(*places, atol=0.02)
    large = start_session(np.zeros((3000, 2000), np.uint8), types.SimpleNamespace(trained=trained))
    assert large.detail.shape == (MAX_DETAIL, MAX_DETAIL, 3)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_an_upload_is_decoded_once_for_both_sizes(mode, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (120, 90, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "PNG")
    num_decoded = 0

    def count(*arguments, **options):
        nonlocal num_decoded
        num_decoded += 1
        return decode_picture(*arguments, **options)

    for module in (radiographs, preprocessing):
        monkeypatch.setattr(module, "decode_picture", count)
    trained = types.SimpleNamespace(preprocessing=Preprocessing(size=50), max_pixels=10**8)
    session = start_session(file.getvalue(), types.SimpleNamespace(trained=trained))
    assert num_decoded == 1
    np.testing.assert_array_equal(session.picture, radiographs.read_picture(file.getvalue(), trained.preprocessing))


def test_examples_are_phantoms_or_of_a_folder(tmp_path, capsys):
    settings = small_settings()
    trained = types.SimpleNamespace(run=StoredRun(settings), chain=DEFAULT_CHAIN, max_pixels=10**8)
    drawn = find_examples(None, trained)
    assert len({example.name for example in drawn}) == len(drawn) == 6
    assert {example.name for example in drawn} <= set(DEFAULT_CHAIN.steps[-1].options)
    assert all(example.image.shape == (settings.phantom.image_size,) * 2 for example in drawn)
    other = types.SimpleNamespace(run=StoredRun(small_settings(data__source="folder", data__root=str(tmp_path))))
    assert find_examples(None, other) == ()
    (tmp_path / "bad.png").write_bytes(b"no image")
    refuse("has no readable image", find_examples, tmp_path, trained)
    Image.fromarray(np.zeros((20, 30), np.uint8)).save(tmp_path / "good.png")
    capsys.readouterr()
    assert [example.name for example in find_examples(tmp_path, trained)] == ["good.png"]
    assert "bad.png" in capsys.readouterr().err
