"""Views of the curriculum: boxes drawn, bare, another case; what happens to records without such a view."""

import collections

import msgspec
import numpy as np
import pytest
from PIL import Image
from reasoning_records import make_record
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.data.images.drawn_boxes import draw_boxes
from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.data.questions.stage_views import STAGES, StageViews, domain_of, draw_views
from stepcot_jax.reasoning.dialects import WRITTEN, write_question, write_reply
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.settings import load_settings
from stepcot_jax.tools.annotate.command import main as annotate
from stepcot_jax.tools.data.command import main


def _records(lesions, *, patients=None, kinds=None):
    found = []
    for place, lesion in enumerate(lesions):
        fields = {"id": str(place), "image": f"{place}.png", "image_size": (48, 48), "modality": "xray"}
        fields |= {"patient": f"p{patients[place] if patients else place}", "lesion": lesion}
        fields["references"] = (Box("heart", (4, 5 + place % 20, 20, 30)),)
        fields["thinking"] = f"I look at the **heart** ([4, {5 + place % 20}, 20, 30])."
        found.append(make_record(kinds[place] if kinds else "closed", **fields))
    return found


def _view(views, place, stage, *, seed=0, update=0, row=0):
    return views.view(place, stage, seed=seed, update=update, row=row)


def test_lines_are_half_white_and_one_pixel_wide():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (32, 40, 3), dtype=np.uint8)
    boxes = [(3.0, 4.0, 10.0, 9.0), (6.4, 2.5, 8.6, 31.9)]
    mask = np.zeros((32, 40), bool)
    for left, upper, right, lower in ((3, 4, 9, 8), (6, 2, 8, 31)):  # 2.5 rounds to even
        mask[[upper, lower], left : right + 1] = True
        mask[upper : lower + 1, [left, right]] = True
    blended = np.floor((128 * 255 + 127 * pixels.astype(float)) / 255 + 0.5)
    expected = np.where(mask[..., None], blended, pixels)
    drawn = np.asarray(draw_boxes(Image.fromarray(pixels), boxes, (40, 32)))
    assert np.array_equal(drawn, expected)
    halved = [tuple(edge / 2 for edge in box) for box in boxes]
    assert np.array_equal(np.asarray(draw_boxes(Image.fromarray(pixels), halved, (20, 16))), drawn)


@pytest.mark.parametrize("dialect", ["gemex", "medclm"])
def test_easy_and_medium_have_the_same_text(dialect):
    records = _records(["Mass"] * 3)
    easy, medium = (_view(StageViews(records, range(3), dialect=dialect), 1, stage) for stage in ("easy", "medium"))
    assert (easy.record, easy.index, easy.stage, easy.with_thinking) == (records[1], 1, "easy", True)
    assert (medium.record, medium.index, medium.stage, medium.with_thinking) == (records[1], 1, "medium", True)
    assert (easy.boxes, medium.boxes) == (((4, 6, 20, 30),), ())
    assert not _view(StageViews(records, range(3), dialect=dialect, with_thinking=False), 1, "easy").with_thinking
    pixels = np.random.default_rng(1).integers(0, 256, (2, 48, 48, 3), dtype=np.uint8)
    before = pixels.copy()
    drawn = draw_views(pixels, [easy, medium])
    expected = np.asarray(draw_boxes(Image.fromarray(before[0]), easy.boxes, (48, 48)))
    for found, wanted in ((pixels, before), (drawn[0], expected), (drawn[1], before[1])):
        np.testing.assert_array_equal(found, wanted)
    assert (expected != before[0]).any()


def test_hard_is_the_answer_of_another_case_where_the_dialect_has_an_answer_alone():
    records = _records(["Mass"] * 4)
    view = _view(StageViews(records, range(4), dialect="medclm"), 0, "hard")
    assert view.index != 0
    assert (view.stage, view.boxes, view.with_thinking, view.record.id) == ("hard", (), False, records[view.index].id)
    assert write_reply(view.record, "medclm") == "Answer: Yes"
    assert view.record.references == ()
    assert '"Reasoning:"' not in write_question(view.record, "medclm", with_thinking=view.with_thinking)
    gemex = _view(StageViews(records, range(4), dialect="gemex"), 0, "hard").record
    reply = write_reply(gemex, "gemex")
    assert reply.startswith("<response>")
    assert "<box>" in reply  # the grammar requires it
    plain = _view(StageViews(_records(["Mass"] * 4), range(4), dialect="plain"), 0, "hard").record
    assert write_reply(plain, "plain") == "Yes"
    records = _records(["Mass"] * 3)
    for dialect in WRITTEN:
        views = StageViews(records, range(3), dialect=dialect)
        assert _view(views, 0, "easy").stage == "easy"
        if dialect in ("gemex", "medclm", "plain"):
            assert _view(views, 0, "hard").stage == "hard"
            continue
        refuse(rf"config\.vqa\.dialect: '{dialect}' has no reply of the answer alone", _view, views, 0, "hard")


def test_hard_draws_among_cases_of_domain_kind_and_split_of_other_patients():
    lesions = ["Mass"] * 8 + ["Nodule"] * 4
    kinds = ["closed"] * 7 + ["open"] + ["closed"] * 4
    patients = [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    records = _records(lesions, kinds=kinds, patients=patients)
    records.append(msgspec.structs.replace(records[3], id="ct", image="ct.png", modality="ct", patient="x"))
    views = StageViews(records, [*range(6), *range(7, 13)], dialect="medclm")  # place 6 is of another split
    counts = collections.Counter(_view(views, 0, "hard", update=update).index for update in range(2000))
    assert set(counts) == {2, 3, 4, 5}
    assert all(abs(count - 500) < 90 for count in counts.values())
    assert {_view(views, 8, "hard", row=row).index for row in range(100)} == {9, 10, 11}
    records = _records(["Mass"] * 3, patients=[0, 0, 0])  # of one patient, but never the same image
    records[1] = msgspec.structs.replace(records[1], image="0.png")
    views = StageViews(records, range(3), dialect="medclm")
    assert {_view(views, 0, "hard", row=row).index for row in range(20)} == {2}


@pytest.mark.parametrize("stage", STAGES)
def test_what_has_no_such_view_is_shown_at_the_medium_stage(stage):
    records = _records(["", "Mass", "Nodule"])
    records[2] = msgspec.structs.replace(records[2], references=())
    views = StageViews(records, range(3), dialect="medclm")
    found = [_view(views, place, stage) for place in range(3)]
    assert [view.index for view in found] == [0, 1, 2]
    assert found[0].stage == "medium"  # no lesion
    assert found[1].stage == ("easy" if stage == "easy" else "medium")  # the only case of its domain
    assert found[2].stage == "medium"  # no box to draw
    assert (domain_of(records[0]), domain_of(records[1])) == ("", "Mass_xray")


def test_records_that_medclm_wrote_are_views_already(tmp_path):
    main(["vqa", str(tmp_path / "in"), "--num-cases=30", "--size=48"])
    annotate(["vqa", str(tmp_path / "in"), f"--out={tmp_path / 'out'}", "--task=medclm"])
    records = read_vqa_records(tmp_path / "out").records
    places = [place for place, record in enumerate(records) if record.split == "train"]
    views = StageViews(records, places, dialect="medclm")
    shown = collections.Counter()
    for place in places:
        for stage in STAGES:
            view = _view(views, place, stage)
            assert view.boxes == ()  # drawn when it was written
            assert view.record == records[view.index]
            assert view.record.provenance["seed case"] == records[place].provenance["seed case"]
            assert view.record.provenance["stage"] == view.stage
            assert ("Reasoning:" in write_reply(view.record, "medclm")) == view.with_thinking == (view.stage != "hard")
            shown[stage, view.stage] += 1
    assert shown["easy", "easy"] == shown["medium", "medium"] == len(places)
    assert shown["hard", "hard"] > 0
    assert shown["hard", "hard"] + shown["hard", "medium"] == len(places)


def test_phantoms_have_every_stage():
    chosen = {"job": "sft", "phantom.num_cases": 30, "phantom.image_size": 48, "image_encoder.image_size": 48}
    settings = load_settings("base", **chosen, **{"phantom.prevalence": "flat", "vqa.dialect": "medclm"})
    dataset = load_vqa_dataset(settings, splits=("train",))
    views = StageViews(dataset.records, dataset.splits.train, dialect="medclm")
    counts = collections.Counter()
    for place in range(len(dataset.records)):
        for stage in STAGES:
            view = _view(views, place, stage, row=place)
            counts[bool(domain_of(dataset.records[place])), stage, view.stage] += 1
            assert write_reply(view.record, "medclm")
    assert min(counts[True, "easy", "easy"], counts[True, "hard", "hard"]) > 30
    assert counts[False, "hard", "medium"] == counts[False, "easy", "medium"] > 0
