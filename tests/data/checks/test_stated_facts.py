import contextlib
import itertools
import json

import msgspec
import numpy as np
import pytest
from annotate.phantom_records import write_folder
from data import checked
from PIL import Image
from policies.policy_workdir import SIZES
from reasoning_records import read_records
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.chain import Step, read_options
from stepcot_jax.data.questions.record_files import read_vqa_records, write_vqa_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import WRITTEN, interpret_answer, read_reply
from stepcot_jax.record import Record
from stepcot_jax.run.inputs import tokenize_records
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.settings import load_settings
from stepcot_jax.tools.annotate.command import main as annotate
from stepcot_jax.tools.data.command import main as data

TEXTS = ("Mass", "Edema", "Effusion")
FORMS = ("{L}. {t}", "({L}) {t}", "{L}: {t}", "{L}) {t}", "{l}. {t}", "{F}\uff0e{t}", "{L} - {t}", "Option {L}: {t}",
         "[{L}] {t}", "**{L}.** {t}", "{L}.{t}", "{n}. {t}", "({n}) {t}")  # fmt: skip
KEPT = (("T. 1", "T. 2"), ("C. difficile", "E. coli"), ("A fib", "B-lines", "Edema"), ("A-lines", "B-lines"),
        ("1.5 cm", "2.5 cm"), ("1 - 2 cm", "2 - 3 cm"), ("A", "B"), ("A. Mass", "Edema"))  # fmt: skip


def question(number=0, **changes):
    fields = {"id": f"q{number}", "image": f"{number}.png", "image_size": (40, 80), "patient": f"P{number}"}
    fields |= {"kind": "closed", "question": "Is it there?", "answer": "Yes", "references": (Box("x", (1, 1, 9, 9)),)}
    return Record(**{**fields, "split": ("train", "val", "test")[number % 3], **changes})


def settings_of(root, **changes):
    return load_settings("base", **SIZES, **{"job": "sft", "vqa.source": "folder", "vqa.root": str(root), **changes})


def check(root, images="none", **options):
    return checked.check(root, images=images, **options)


@pytest.mark.parametrize("form", FORMS)
def test_letters_that_run_through_the_options_are_taken_off(form, tmp_path):
    written = [
        form.format(L=letter, l=letter.lower(), F=chr(ord(letter) + 0xFEE0), t=text, n=number)
        for number, (letter, text) in enumerate(zip("ABC", TEXTS, strict=True), start=1)
    ]
    chosen = {"kind": "single", "options": tuple(written)}
    for answer in ("B", "b", "(b)", "Edema", "edema", "B. Edema", written[1]):
        record = question(**chosen, answer=answer)
        assert (record.options, record.answer) == (TEXTS, "B")
        assert interpret_answer(read_reply(f"<answer>{answer}</answer>", "free"), record) in ("B", None)
    assert question(kind="multi", options=tuple(written), answer=("a", "effusion")).answer == ("A", "C")
    step = Step("S", "?", read_options([*written, "N/A"]))
    assert (step.options, step.read_answer(written[1])) == ((*TEXTS, "N/A"), 1)
    twice = tuple(f"{letter}: {text}" for letter, text in zip("ABC", written, strict=True))
    assert question(kind="single", options=twice, answer="B").options == TEXTS
    line = {"id": 7, "image_path": "a.png", "image_size": [9, 9], "patient_id": 8, "kind": "single", "question": "?"}
    (tmp_path / "records.jsonl").write_text(json.dumps({**line, "choices": written, "answer": "edema"}))
    (read,) = read_vqa_records(tmp_path).records
    assert (read.id, read.patient, read.options, read.answer) == ("7", "8", TEXTS, "B")
    assert any("letters (A, B, ...) are taken off the options in 1 of 1" in note for note in check(tmp_path)["notes"])


def test_other_letters_stay_and_letters_out_of_order_are_refused(tmp_path):
    for options in KEPT:
        assert question(kind="single", options=options, answer="B").options == options
    with pytest.raises(BadInput, match=r"choices: the letters of .* are not in order"):
        question(kind="single", options=("B. Edema", "A. Mass"), answer="B")
    for options, number in ((("A Mass", "B Edema"), 1), (("A. Mass", "B. Edema", "None"), 1), (KEPT[2], 0)):
        write_vqa_records(tmp_path / "records.jsonl", [question(kind="single", options=options, answer="B")])
        assert sum("options begin with their letter, not all" in note for note in check(tmp_path)["notes"]) == number


def draw(root, *, orientation=0, records):
    for number in range(3):
        exif = Image.Exif()
        exif[0x112] = orientation or 1
        noise = np.random.default_rng(number).integers(0, 255, (80, 40), np.uint8)
        Image.fromarray(noise).save(root / f"{number}.png", exif=exif)
    write_vqa_records(root / "records.jsonl", records)
    return root


SHAPES = (((40, 80), 1, 0, 0), ((20, 40), 1, 0, 0), ((13, 27), 1, 0, 0), ((80, 40), 1, 3, 0), ((80, 80), 1, 0, 0),
          ((40, 80), 6, 3, 3), ((80, 40), 6, 0, 0))  # fmt: skip


@pytest.mark.parametrize(("size", "orientation", "num_swapped", "num_turned"), SHAPES)
def test_a_stated_size_of_another_shape_is_said_by_check_and_run(
    size, orientation, num_swapped, num_turned, tmp_path, caplog
):
    root = draw(tmp_path, orientation=orientation, records=[question(k, image_size=size) for k in range(3)])
    notes = [note for note in check(root, "decode")["notes"] if "another shape" in note]
    said = f"image_size has another shape than the picture in 3 of 3 pictures, boxes are stretched: {num_swapped} fit "
    fits = bool(num_swapped) or size == (80, 80)
    assert [note.startswith(said) for note in notes] == [True] * fits
    assert [f"{num_turned} of them before their EXIF turn" in note for note in notes] == [bool(num_turned)] * fits
    for ahead, number in (("ahead", 3), ("on_use", 1)):
        caplog.clear()
        load_vqa_dataset(settings_of(root, **{"data.check_images": ahead})).load_images([0, 1, 2])
        assert caplog.text.count(f"another shape than the picture in {number} of {number} pictures") == fits


def test_the_size_of_released_boxes_is_compared_with_the_pictures(tmp_path, caplog):
    released = {"question": "Is it?", "type": "t", "answer": "yes", "reason": "r", "image_path": "0.png"}
    draw(tmp_path, records=[question()])
    (tmp_path / "records.jsonl").unlink()
    released |= {"visual_regions": ["x"], "visual_locations": [[1, 1, 9, 9]]}
    (tmp_path / "closed.jsonl").write_text(json.dumps(released))
    for size, number in (((40, 80), 0), ((80, 40), 1)):
        assert len(read_records(tmp_path, box_size=size)) == 1
        assert caplog.text.count("--box-size has another shape than the picture in 1 of 1 pictures") == number


FAULTS = (('"id"', '"images": ["a", "b"], "id"', "record is about one image"), ("9]", "NaN]", "box: NaN is no number"),
          ('"0.png"', '["a", "b"]', "about one image"), ('"0.png"', '"https://x.org/a.png"', "download the image"),
          ('"Yes"', '"N."', "'N.' is not one of Yes, No, a text"))  # fmt: skip


def test_what_is_wrong_with_a_line(tmp_path):
    write_vqa_records(tmp_path / "records.jsonl", [question()])
    text = (tmp_path / "records.jsonl").read_text()
    for old, new, words in FAULTS:
        (tmp_path / "records.jsonl").write_text(text.replace(old, new))
        refuse(f"line 1, .*{words}", read_vqa_records, tmp_path)


def test_two_answers_to_one_question_are_noted(tmp_path):
    records = [question(k) for k in range(3)]
    same, other = (msgspec.structs.replace(records[0], id=f"n{answer}", answer=answer) for answer in ("yes", "NO"))
    write_vqa_records(tmp_path / "records.jsonl", [*records, same])
    assert not any("two answers" in note for note in check(tmp_path)["notes"])
    write_vqa_records(tmp_path / "records.jsonl", [*records, same, other])
    assert "1 questions of a picture have two answers (first in records 'q0' and 'nNO')" in check(tmp_path)["notes"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every output of `data vqa` and `annotate vqa`, by the dialect that it is written for."""
    root = tmp_path_factory.mktemp("made")
    write_folder(root / "source", range(16))
    data(["vqa", str(root / "gemex"), "--source", str(root / "source")])
    for task, dialect in (("rmcot", "gemex_plain"), ("lvkc", "lvkc"), ("medclm", "medclm")):
        annotate(["vqa", str(root / "source"), f"--task={task}", "--out", str(root / dialect), "--overwrite"])
    return root


@pytest.mark.parametrize("name", ["gemex", "gemex_plain", "lvkc", "medclm"])
def test_check_and_run_agree_on_every_output_and_dialect(name, made):
    dataset = load_vqa_dataset(settings_of(made / name))
    for dialect, with_thinking in itertools.product(WRITTEN, (True, False)):
        stops = check(made / name, dialect=dialect, with_thinking=with_thinking)["stops"]
        settings = settings_of(made / name, **{"vqa.dialect": dialect, "vqa.with_thinking": with_thinking})
        with pytest.raises(BadInput, match=r"^record ") if stops else contextlib.nullcontext():
            tokenize_records(settings, dataset, None)
    assert not check(made / name)["stops"]
    if name == "medclm":
        (stop,) = check(made / name, dialect="gemex")["stops"]
        assert "training records cannot be written in dialect gemex" in stop
        assert "config.vqa.dialect=medclm or plain can write it; here --dialect" in stop
