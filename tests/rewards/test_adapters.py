"""The rewards in the call forms of TRL, verl and EasyR1, equal to `reward` of the same records."""

import dataclasses
import math
import pickle
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from reasoning_records import make_record
from refusals import refuse

from stepcot_jax import rewards
from stepcot_jax.box import Box
from stepcot_jax.reasoning.dialects import read_reply, write_question, write_reply
from stepcot_jax.record import Record
from stepcot_jax.rewards.adapters import for_easyr1, for_trl, for_verl, records_to_columns
from stepcot_jax.rewards.options import PRESETS
from stepcot_jax.rewards.presets import reward

RECORDS = [make_record(kind, id=kind, report="secret", patient="Ann") for kind in ("open", "closed", "single", "multi")]
TEXTS = [*(write_reply(record, "gemex") for record in RECORDS[:3]), "no grammar"]
CHOICE = {"question": "What is seen?", "options": ["Edema", "Effusion", "Mass"]}
UNSCORED = dataclasses.replace(PRESETS["gemex"], open_answer="judge")
"""Without a judge an open answer is not scored."""


def call_verl(function, text, truth, extra_info=None):
    return function(data_source="mine", solution_str=text, ground_truth=truth, extra_info=extra_info)


def call_easyr1(function, texts, truths):
    rows = zip(texts, truths, strict=True)
    return function([{"response": text, "response_length": 9, "ground_truth": truth} for text, truth in rows])


@pytest.mark.parametrize("preset", PRESETS)
def test_records_as_columns_earn_what_the_records_earn_in_each_trainer(preset):
    expected = [
        reward(read_reply(text, "gemex"), record, PRESETS[preset]) for text, record in zip(TEXTS, RECORDS, strict=True)
    ]
    assert sum(each.total for each in expected) > 0
    told = [msgspec.structs.replace(RECORDS[0].references[0], sentence="secret")]
    columns = records_to_columns(
        [msgspec.structs.replace(record, references=tuple(told)) for record in RECORDS], dialect="gemex"
    )
    assert columns["prompt"] == [write_question(record, "gemex") for record in RECORDS]
    assert not any(word in truth for truth in columns["ground_truth"] for word in ("secret", "Ann"))

    logged, truths = {}, columns["ground_truth"]
    more = {"prompts": columns["prompt"], "completion_ids": [[1]] * 4, "trainer_state": None, "image": [object()] * 4}
    turns = [[{"role": "assistant", "content": "Let me look."}, {"role": "tool", "content": "-"}] for _ in TEXTS]
    for turn, text in zip(turns, TEXTS, strict=True):
        turn.append({"role": "assistant", "content": [{"type": "text", "text": text}]})
    function = pickle.loads(pickle.dumps(for_trl(preset, dialect="gemex")))  # noqa: S301 - our own bytes
    assert function.__name__ == preset
    totals = function(completions=TEXTS, ground_truth=truths, log_metric=logged.__setitem__, **more)
    assert totals == function(completions=turns, ground_truth=truths, **more) == [each.total for each in expected]
    assert logged[f"{preset}/answer"] == sum(each["answer"] for each in expected) / 4

    for text, truth, each in zip(TEXTS, truths, expected, strict=True):
        scores = call_verl(for_verl(preset, dialect="gemex"), text, truth)
        parts = {name: value for name, value in each.items() if name != "total"}
        assert scores == {**parts, "score": each.total, "acc": each["answer"], "unscored": 0}
    scores = call_easyr1(for_easyr1(preset, dialect="gemex"), TEXTS, truths)
    assert [(row["overall"], row["format"], row["accuracy"]) for row in scores] == [
        (each.total, each["well_formed"], each["answer"]) for each in expected
    ]


def test_a_letter_is_scored_by_its_position_among_the_options():
    texts, expected = ["It is C.", "C: Mass", "mass", "B", "none"], [1, 1, 1, 0, 0]
    columns = {name: [value] * 5 for name, value in CHOICE.items()}
    function = for_trl([rewards.answer], dialect="plain", space="qwen")
    assert function(completions=texts, answer=["C"] * 5, **columns) == expected
    extra = {**CHOICE, "index": 3, "answer": "a solution in many words"}
    assert [call_verl(for_verl([rewards.answer]), text, "C", extra)["acc"] for text in texts] == expected
    assert call_verl(for_verl([rewards.answer]), "It is C.", {**CHOICE, "answer": "C", "stages": None})["acc"] == 1
    arrays = {
        name: np.array(value * 2, object) for name, value in (("options", [CHOICE["options"]]), ("answer", ["C"]))
    }
    assert function(completions=["C", "B"], references=None, **arrays) == [1, 0]
    (scores,) = call_easyr1(for_easyr1([rewards.answer]), ["So: <answer>yes</answer>"], ["Yes"])
    assert scores == {"overall": 1, "accuracy": 1, "format": 1, "unscored": 0}


def test_what_is_not_scored_is_none_in_trl_and_nought_and_counted_in_the_others():
    texts, truths = TEXTS[:2], records_to_columns(RECORDS[:2])["ground_truth"]
    logged = {}
    function = for_trl(UNSCORED, dialect="gemex")
    assert function(completions=texts, ground_truth=truths, log_metric=logged.__setitem__) == [None, 2]
    assert logged["stepcot_jax/answer"] == logged["stepcot_jax/total"] / 2 == 1
    first, second = (call_verl(for_verl(UNSCORED, dialect="gemex"), *row) for row in zip(texts, truths, strict=True))
    assert (first["score"], first["acc"], first["unscored"]) == (0, 0, 1)
    assert (second["score"], second["acc"], second["unscored"]) == (2, 1, 0)
    assert first.keys() == second.keys()  # verl stacks them
    first, second = call_easyr1(for_easyr1(UNSCORED, dialect="gemex"), texts, truths)
    assert (first["overall"], first["unscored"], second["overall"], second["unscored"]) == (0, 1, 2, 0)
    assert all(math.isfinite(value) for value in first.values())


def test_reasoning_that_the_template_cut_off_is_put_back():
    text = TEXTS[1]
    thinking, _, response = text.removeprefix("<think>").partition("</think>")
    message = {"role": "assistant", "content": response, "reasoning_content": thinking}
    function, truth = for_trl("gemex", dialect="gemex"), records_to_columns(RECORDS[1:2])["ground_truth"]
    found = function(completions=[[message], [{"role": "tool", "content": text}], []], ground_truth=truth * 3)
    assert found == [2, 0, 0]


PUBLISHED = (3136, 12845056)


@pytest.mark.parametrize(
    ("size", "space", "limits"),
    [((2544, 3056), "qwen:3136:1003520", (3136, 1003520)), ((5000, 3000), "qwen", PUBLISHED),
     ((90, 60), "qwen:262144:4194304", (262144, 4194304)), ((30, 40), "qwen", PUBLISHED)],
)  # fmt: skip
def test_a_right_box_in_qwens_pixels_earns_its_reward_once_the_space_is_named(size, space, limits):
    """Resized by transformers' own function, which the processor calls."""
    processor = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    height, width = processor.smart_resize(size[1], size[0], 28, *limits)
    box = (size[0] // 4, size[1] // 8, size[0] // 2, size[1] // 2)
    sides = zip(box, 2 * (width, height), 2 * size, strict=True)
    written = [round(number * side / own) for number, side, own in sides]
    fields = {"question": "A mass?", "answer": "Yes", "references": [box], "image_size": size}
    columns, placed = {name: [value] for name, value in fields.items()}, f"{width}x{height}"
    for dialect, reply in (
        ("free", f'<answer>Yes</answer> {{"bbox_2d": {written}, "label": "mass"}}'),
        ("gemex", f"<response><answer>Yes</answer><location><ref>a</ref><box>{written}</box></location></response>"),
    ):
        for name, expected in (("", 0), (space, 1), (placed, 1)):
            function = for_trl([rewards.grounding], dialect=dialect, space=name)
            assert function(completions=[reply], **columns) == [expected]
        found = read_reply(reply, dialect, space=space, image_size=size).boxes(size)[0]
        assert abs(found - box).max() <= max(size[0] / width, size[1] / height) / 2 + 1e-9


def test_spaces_are_read_in_each_dialects_own_order():
    box = (64, 48, 320, 240)  # of 640 x 480: a tenth to a half
    for space, numbers in (("unit", (0.1, 0.1, 0.5, 0.5)), ("1000", (100, 100, 500, 500)), ("pixels", box)):
        x1, y1, x2, y2 = numbers
        for dialect, text in (
            ("medclm", f"Reasoning: the **mass** [{x1}, {y1}, {x2}, {y2}]\n\nAnswer: Yes"),
            ("lvkc", f'<LOC>a {{"box_2d": [{y1}, {x1}, {y2}, {x2}], "label": "mass"}}</LOC><VISUAL>b</VISUAL>'
             "<KNOWLEDGE>c</KNOWLEDGE><CON>d</CON><ANSWER>Yes</ANSWER>"),
        ):  # fmt: skip
            reply = read_reply(text, dialect, space=space, image_size=(640, 480))
            assert reply.is_well_formed
            assert reply.boxes((640, 480))[0].tolist() == pytest.approx(box)
    refuse(r"space .*: 'quen' is not one of pixels, unit, 1000, qwen", read_reply, "", "free", space="quen")
    refuse("space .*: 'qwen:5:1' has a MIN above its MAX", read_reply, "", "free", space="qwen:5:1")
    refuse(r"image_size: \[0, 0\] is no size .* 'qwen' requires", read_reply, "", "free", space="qwen")


def test_records_from_bare_fields():
    fields = {"question": "What is seen?", "image_size": [640, 480], "synonyms": None}
    record = Record.from_fields(
        answer="Edema", references=[[1, 2, 3, 4], {"label": "heart", "corners": [0, 0, 9, 9]}], **fields
    )
    assert (record.kind, record.references) == ("open", (Box("region", (1, 2, 3, 4)), Box("heart", (0, 0, 9, 9))))
    options = ["A. Nodule", "B. Mass"]
    kinds = {"Yes": ("closed", None), "B": ("single", options), "nodule": ("single", options), "C": ("open", None)}
    for answer, (kind, given) in kinds.items():
        record = Record.from_fields(question="?", answer=answer, options=given, kind="open" if answer == "C" else None)
        assert record.kind == kind
    assert Record.from_fields(question="?", answer=["A", "B"], options=options).answer == ("A", "B")
    row = {
        "question": "?",
        "choices": options,
        "answer": "mass",
        "references": [{"label": "lung", "box": [1, 2, 3, 4]}],
    }
    record = Record.from_fields(**row, image_size=(9, 9))  # names of records.jsonl
    assert (record.answer, record.references) == ("B", (Box("lung", (1, 2, 3, 4)),))
    columns = {name: [value] for name, value in {**row, "image_size": [9, 9]}.items()}
    assert for_trl()(completions=["B [1, 2, 3, 4]"], **columns) == [2.0]
    joined = {"label": "lung", "box": None, "corners": [1, 2, 3, 4]}  # columns of rows that differ
    sparse = Record.from_fields(**{**row, "options": [], "references": [joined]}, image_size=(9, 9))
    assert (sparse.answer, sparse.references) == (record.answer, record.references)
    assert Record.from_fields(question="?", answer="Yes", options=[], choices=[]).kind == "closed"
    for words, wrong in (
        ("^answer: 'C' is a letter without options", {"answer": "C"}), ("^answer: Expected", {"answer": 3}),
        ("^answer: Expected .*got `null`", {"answer": None}),
        ("^options: Expected `array`", {"answer": "C", "options": "A, B, C"}),
        ("^answer: 'C' is not one of A, B", {"answer": "C", "options": options}),
        ("^letters: not a field of a record", {"answer": "A", "letters": options}),
        (r"^answer: \['edema'\] is a list", {"answer": ["edema"]}), ("^answer: .* is a list", {"answer": []}),
        ("^references: Expected `array`", {"answer": "Yes", "references": 5}),
        ("^choices: options is given too", {"answer": "A", "options": options, "choices": options}),
        ("^references: a box has both", {"answer": "Yes", "references": [{"box": 4 * [1], "corners": 4 * [1]}]}),
    ):  # fmt: skip
        refuse(words, Record.from_fields, question="What is seen?", **wrong)


def test_what_cannot_be_used_is_refused_where_the_function_is_made_or_with_its_row():
    for words, given in (("rewards: 'best' is not", {"rewards": "best"}), ("dialect must be", {"dialect": "auto"})):
        refuse(words, for_trl, **given)
    refuse(r"space .*: 'quen' is not one of", for_verl, space="quen")
    refuse("^row 1, ground_truth: answer: 'C' is a letter", for_trl(), completions=["C", "C"], answer=["Yes", "C"])
    refuse("no column ground_truth or answer; found solution", for_trl(), completions=["C"], solution=["C"])
    refuse(r"^reward_inputs\[0\], ground_truth: JSON is malformed", call_easyr1, for_easyr1(), ["C"], ["{C}"])


def test_it_needs_neither_jax_nor_flax():
    script = (
        "import sys; from stepcot_jax.rewards.adapters import for_trl; "
        "print(for_trl(dialect='free')(completions=['Yes'], answer=['Yes'], question=['A mass?']), "
        "{'jax', 'flax', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1.0] set()"
