"""MEDSAGE conversations, on files written here in both dialects: no record of it is at hand."""

import json

import pytest
from PIL import Image
from reasoning_records import read_records
from refusals import refuse

from stepcot_jax.data.sources.layouts import detect_vqa_layout
from stepcot_jax.reasoning.dialects import read_reply, write_reply

PRINTED = (
    'A chest film.\n<LOC>Low and wide {"box_2d": [830, 150, 965, 870], "label": "diaphragm"} with '
    '{"point": [900, 500], "label": "dome"}</LOC><VISUAL>Dense.</VISUAL><KNOWLEDGE>Fluid is dense.</KNOWLEDGE>'
    "<CON>Fluid.</CON><ANSWER>Yes</ANSWER>"
)
RELEASED = '<LOC>{"bbox_xyxy_pixel": [[10, 20, 30, 40]]}</LOC><VIS>Dense.</VIS><KNO>Fluid.</KNO><CON>Effusion</CON>'


def conversation(reply, prompt="<image>\nIs there fluid?", images=("x.png",), **changes):
    turns = [{"from": "human", "value": prompt}, {"from": "gpt", "value": reply}]
    return {"conversations": turns, "images": list(images)} | changes


def write(root, *records):
    Image.new("L", (400, 200)).save(root / "x.png")
    (root / "sft.json").write_text(json.dumps(records))


def read(root, **settings):
    return read_records(root, **settings)


def test_full_trajectories_of_both_dialects_and_bare_answers(tmp_path):
    write(tmp_path, conversation(PRINTED), conversation(RELEASED), conversation("Pleural effusion."))
    assert detect_vqa_layout(tmp_path) == "medsage"
    printed, released, bare = read(tmp_path)
    assert (printed.kind, printed.answer, printed.cue, printed.preamble) == ("closed", "Yes", "box", "A chest film.")
    assert [(each.label, each.corners) for each in printed.references] == [("diaphragm", (60, 166, 348, 193))]
    assert (printed.stages.visual, printed.stages.conclusion) == ("Dense.", "Fluid.")
    again = read_reply(write_reply(printed, "lvkc"), "lvkc")
    assert again.is_well_formed
    assert [(each.label, each.at) for each in printed.points] == [("dome", (200, 180))]
    assert [(each.label, each.at) for each in again.points] == [("dome", (900, 500))]
    assert (again.references[0].corners, released.kind, released.answer) == ((830, 150, 965, 870), "open", "Effusion")
    assert [(each.label, each.corners) for each in released.references] == [("region", (10, 20, 30, 40))]
    assert released.stages.localisation == "1 located region."
    assert read_reply(write_reply(released, "lvkc_released"), "lvkc_released") == read_reply(RELEASED, "lvkc_released")
    assert (bare.kind, bare.answer, bare.stages, bare.cue) == ("open", "Pleural effusion.", None, "image")
    assert (bare.image_size, bare.patient[:8]) == ((400, 200), "picture-")
    assert (printed.provenance["record"], printed.id) == ("trajectory, dialect lvkc", "sft.json:0")


def test_choices_of_the_prompt(tmp_path):
    prompt = "<image>\nWhich? <choices>: [A: fluid, B: air, C: mass]"
    write(tmp_path, conversation("B", prompt), conversation("A, C", prompt), conversation("B: air", prompt))
    assert [(each.kind, each.answer) for each in read(tmp_path)] == [
        ("single", "B"),
        ("multi", ("A", "C")),
        ("single", "B"),
    ]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (conversation("<LOC>There.</LOC>"), "the single stage <LOC>"),
        (conversation("Yes", images=()), "images: 0 images"),
        ({"conversations": conversation("Yes")["conversations"]}, "images: 0 images"),
        (conversation("B"), "the answer 'B' without"),
        (conversation("Yes", conversations=conversation("Yes")["conversations"] * 2), "turns of"),
    ],
)
def test_conversations_that_are_no_record_are_set_aside_and_stop_nothing(tmp_path, record, reason):
    write(tmp_path, record, conversation("Yes"))
    aside = []
    assert ([each.answer for each in read(tmp_path, set_aside=aside)], len(aside)) == (["Yes"], 1)
    assert reason in aside[0].reason


BAD = [
    (conversation(PRINTED.replace("</KNOWLEDGE>", "")), r"conversations\[1\].value: </KNOWLEDGE> is missing"),
    (conversation(PRINTED.replace("965", "1965")), r"conversations\[1\].value: <LOC> has a place"),
    (conversation(PRINTED.replace("965", "830")), "<LOC>, box 0: box: "),
    (conversation(PRINTED.replace("VISUAL", "VIS")), "tags of two dialects"),
    (conversation(RELEASED.replace("30, 40", "500, 40")), r"references\[0\].box: .* leaves the picture"),
    (conversation(PRINTED, images=("../x.png",)), "image_path: "),
    (conversation(PRINTED, images=("y.png",)), "image_path: 'y.png' does not exist"),
    *((conversation(" "), "answer: blank"), (conversation("<LOC>" * 2_000_000), r"conversations\[1\].value: ")),
    ({"conversations": [{"value": "x"}]}, r"conversations\[0\]: .* missing required field `from`"),
]


@pytest.mark.parametrize(("record", "message"), BAD, ids=range(len(BAD)))
def test_bad_conversations_name_file_record_and_field(tmp_path, record, message):
    write(tmp_path, conversation("Yes"), record)
    aside = []
    assert len(read(tmp_path, on_bad_record="skip", set_aside=aside)) == len(aside) == 1
    if len(json.dumps(record)) < 10_000:
        refuse(rf"sft\.json, record 1, .*{message}", read, tmp_path)


def test_without_image_files_the_size_is_required(tmp_path):
    write(tmp_path, conversation(PRINTED))
    (tmp_path / "x.png").unlink()
    refuse("so --box-size is required", read, tmp_path, require_images=False)
    (record,) = read(tmp_path, require_images=False, box_size=(1000, 1000))
    assert record.references[0].corners == (150, 830, 870, 965)
