"""Every dialect: what is written is read back; any text is read, in time linear in its length."""

import functools
import random

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from reasoning_records import SPACES, STAGES, WITHOUT_NAMES, make_record, records
from refusals import refuse
from timing import least_seconds

from stepcot_jax.box import Box, convert_rounded, pixels
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.answers import read_answer
from stepcot_jax.reasoning.dialects import DIALECTS, WRITTEN, read_reply, write_question, write_reply
from stepcot_jax.rewards.options import PRESETS
from stepcot_jax.rewards.presets import reward

KINDS = ("open", "closed", "single", "multi")


def assert_read_back(record, dialect, text):
    reply = read_reply(text, dialect)
    assert reply.problems == ()
    assert reply.dialect == dialect
    written = record.answer.strip() if isinstance(record.answer, str) else ", ".join(record.answer)
    assert reply.answer == written
    if not record.is_answered_in_words:
        assert read_answer(reply.answer, record) == record.answer
    if dialect == "plain":
        assert (reply.references, reply.thinking) == ((), record.thinking.strip())
        return reply
    size = pixels(record.image_size)
    boxes = [reference.corners for reference in record.references]
    expected = convert_rounded(boxes, source=size, target=SPACES.get(dialect, size))
    np.testing.assert_array_equal([region.corners for region in reply.references], expected)
    expected_names = [reference.label for reference in record.references]
    if dialect in WITHOUT_NAMES:
        expected_names = [""] * len(boxes)
    assert [region.label for region in reply.references] == expected_names
    found = reply.boxes(record.image_size)
    step = {"lvkc": max(record.image_size) / 1000, "medclm": max(record.image_size) / 10000}.get(dialect, 1)
    assert np.abs(found - np.array(boxes)).max() <= step / 2 * (1 + 1e-9)
    return reply


@pytest.mark.parametrize("dialect", WRITTEN)
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_of_each_kind_is_read_back(dialect, kind):
    many = tuple(Box(f"região {k}", (k, 2 * k, k + 7, 2 * k + 5)) for k in range(150))
    record = make_record(kind, references=many, thinking="All of them.")
    assert_read_back(record, dialect, write_reply(record, dialect))
    record = make_record(kind, preamble="A frontal radiograph.")
    reply = assert_read_back(record, dialect, write_reply(record, dialect))
    if dialect == "gemex":
        assert reply.thinking == record.thinking
        assert [(region.label, region.corners) for region in reply.regions] == [("bilateral lung", (64, 42, 257, 262))]
    if dialect == "lvkc":
        assert reply.preamble == "A frontal radiograph."
        assert reply.stages == {name: getattr(record.stages, name) for name in record.stages.__struct_fields__}
    if dialect == "lvkc_released":
        assert reply.stages == {"visual": STAGES.visual, "knowledge": STAGES.knowledge, "conclusion": reply.answer}


@settings(max_examples=60)
@given(record=records())
def test_any_record_is_read_back_or_refused_by_field(record):
    assume(record.references)
    for dialect in WRITTEN:
        field = ""
        try:
            assert_read_back(record, dialect, write_reply(record, dialect))
        except BadInput as error:
            field = str(error).partition(":")[0].partition(".")[0]
        assert field in ("", "thinking", "answer", "preamble", "stages")


def broken(stage):
    return msgspec.structs.replace(STAGES, **{stage: "a </CON>"})


@pytest.mark.parametrize(
    ("dialect", "changes", "field"),
    [
        ("gemex", {"thinking": "a </think> b"}, "thinking"), ("gemex", {"thinking": "a <ref> b"}, "thinking"),
        ("gemex", {"kind": "open", "answer": "x</answer>"}, "answer"), ("gemex", {"references": ()}, "references"),
        ("gemex_plain", {"thinking": ""}, "thinking"), ("gemex_plain", {"thinking": "a <location> []"}, "thinking"),
        ("gemex_plain", {"kind": "open", "answer": "a <reason> b"}, "answer"), ("lvkc", {"stages": None}, "stages"),
        ("lvkc", {"preamble": "a <LOC>"}, "preamble"), ("lvkc", {"kind": "open", "answer": "</CON>"}, "answer"),
        ("lvkc_released", {"stages": None}, "stages"),
        ("lvkc_released", {"kind": "open", "answer": "<VIS>"}, "answer"),
        ("medclm", {"thinking": "a\nAnswer: No"}, "thinking"), ("medclm", {"thinking": "a [1, 2, 3, 4]"}, "thinking"),
        ("medclm", {"thinking": "a [0.1, 0.2, 0.3, 0.4]"}, "thinking"),
        ("medclm", {"kind": "open", "answer": "a\nReasoning: b"}, "answer"),
        *(("plain", {"kind": "open", "answer": text}, "answer") for text in ("answer: a", "<LOC>", "a</s>", "<think>")),
        *(("plain", {"thinking": text}, "thinking") for text in ("a </think> b", "[THINK] a", "&lt;think&gt;")),
        *(("lvkc", {"stages": broken(stage)}, rf"stages\.{stage}") for stage in STAGES.__struct_fields__),
        *(("lvkc_released", {"stages": broken(stage)}, rf"stages\.{stage}") for stage in ("visual", "knowledge")),
    ],
)  # fmt: skip
def test_a_text_that_would_break_the_markup_is_refused(dialect, changes, field):
    refuse(f"^{field}: ", write_reply, make_record(**changes), dialect)
    for call in (lambda: write_reply(make_record(), "xml"), lambda: read_reply("", "GEMEX")):
        refuse("dialect must be one of gemex, gemex_plain, lvkc, lvkc_released, medclm, plain, free; got", call)
    assert (*WRITTEN, "free") == DIALECTS
    for write in (write_reply, write_question):
        refuse("dialect must be one of .*, medclm, plain; got 'free'", write, make_record(), "free")


@pytest.mark.parametrize("dialect", WRITTEN)
def test_prompts_name_the_kind_and_the_choices(dialect):
    for kind, word in zip(KINDS, ("open-ended", "closed-ended", "single-", "multi-"), strict=True):
        record = make_record(kind)
        prompt = write_question(record, dialect)
        assert prompt.startswith("What is seen?\n")
        assert word in prompt
        assert ("<choices>: [A: Nodule, B: Effusion, C: Normal, D: Mass]" in prompt) == (kind in ("single", "multi"))
        assert "think" not in write_question(record, dialect, with_thinking=False)
        assert "Pleural effusion" not in prompt


def test_the_prompt_is_the_papers():
    question = "What is the primary finding regarding the lungs in this CXR?"
    options = ("Focal consolidation", "Clear", "Pleural effusion", "Pneumothorax")
    assert write_question(make_record("single", question=question, options=options), "gemex") == (
        f"{question}\n<choices>: [A: Focal consolidation, B: Clear, C: Pleural effusion, D: Pneumothorax]\n"
        "This is a single-choice question. Please output the thinking process in <think> </think> and final answer (an "
        "option) with corresponding visual location in <response> </response> tags."
    )


PIECES = (
    *("<think>", "</think>", "<response>", "</response>", "<answer>", "</answer>", "<location>", "</location>"),
    *("<ref>", "</ref>", "<box>", "</box>", "<reason>", "<LOC>", "</LOC>", "<VISUAL>", "</VISUAL>", "<VIS>", "</VIS>"),
    *("<KNOWLEDGE>", "</KNOWLEDGE>", "<KNO>", "</KNO>", "<CON>", "</CON>", "<ANSWER>", "</ANSWER>", "<THINK>", "</ref"),
    *("Reasoning:", "Answer:", "\n\nAnswer: ", "\n", " ", "[1, 2, 3, 4]", "([1, 2, 3, 4])", "[0.1, 0.2, 0.3, 0.4]"),
    *("[nan, 1, 2, 3]", "[inf, -inf, 1e999, 0x1]", "[1e400, 1, 1, 1]", "9" * 400, "[" * 30, "{" * 30, "**", "**a**"),
    *('{"box_2d": [1, 2, 3, 4], "label": "a"}', '{"point": [1, 2], "label": "a"}', '{"box_2d": [NaN, 2, 3, 1e999]}'),
    *('{"bbox_xyxy_pixel": [[1, 2, 3, 4]]}', '{"bbox_xyxy_pixel": []}', "Yes", "No", "A", "B, C", "\x00", "\ud800"),
    *('{"label": 1}', '{"box_2d": [' + "1" * 25 + ', 1, 1, 1], "label": "a"}', "\u2028", "\U0001f600", '"', "\\", "é"),
)


def mutate(generator, text):
    """Delete, repeat, cut, change the case of, insert, replace, or swap something."""
    for _ in range(generator.randrange(1, 4)):
        start = generator.randrange(len(text) + 1)
        end = min(len(text), start + generator.choice((1, 3, 10, 60)))
        piece, other = generator.choices(PIECES, k=2)
        first, middle, last = text[:start], text[start:end], text[end:]
        text = generator.choice(
            (
                first + last, first + 2 * middle + last, first, first + middle.swapcase() + last, last + first + middle,
                first + piece + middle + last, text.replace(piece, other, 1),
            )
        )  # fmt: skip
    return text


@pytest.mark.parametrize("dialect", WRITTEN)
def test_any_of_2000_replies_a_dialect_is_read(dialect):
    generator = random.Random(dialect)  # noqa: S311
    known = [make_record(kind) for kind in KINDS]
    well_formed = [write_reply(record, dialect) for record in known]
    num_formed = 0
    for number in range(2_000):
        if number % 4 == 0:
            text = "".join(generator.choice(PIECES) for _ in range(generator.randrange(12)))
        else:
            text = mutate(generator, generator.choice(well_formed))
        reply = read_reply(text, dialect)
        num_formed += reply.is_well_formed
        if reply.is_well_formed:
            assert reply.answer is not None
            assert reply.references is not None
        assert reply.answer is None or reply.answer.strip()
        record = known[number % 4]
        if reply.references:
            assert np.isfinite(reply.boxes(record.image_size)).all()
        assert all(len(problem) < 100 and problem.isprintable() for problem in reply.problems)
        earned = reward(reply, record, PRESETS["released"])
        assert 0 <= earned["total"] <= 1
        if not reply.is_well_formed:
            assert earned["total"] == earned["well_formed"] == 0
        if not reply.counts:
            assert (earned["answer"], earned["grounding"]) == (0, 0)
    assert 10 < num_formed < 1_500


FRAMES = {
    "gemex": "<think>{}</think><response><answer>Yes</answer><location>{}</location></response>",
    "gemex_plain": "<answer> {} <reason> {} <location> [{}]",
    "lvkc": "{}<LOC>{}</LOC><VISUAL>{}</VISUAL><KNOWLEDGE>a</KNOWLEDGE><CON>b</CON><ANSWER>{}</ANSWER>",
    "lvkc_released": "<LOC>{}</LOC><VIS>{}</VIS><KNO>{}</KNO><CON>b</CON>",
    "medclm": "Reasoning: {}\n\nAnswer: {}",
    "plain": "<think>{}</think>\n{}",
}
UNITS = (
    *("**", "(", "[", "{", "<ref>", "9", "<", "</", "[1,", "(\n", "[ ", "([1, 2, 3, 4]) ", "**a** ([0, 0, 1, 1]) "),
    *('{"box_2d": [1, 2, 3, 4], "label": "a"} ', "<box>[1, 2, 3, 4]</box>", "[1, 2, 3, 4], ", '{"a":', "\nAnswer:"),
    *("<think>", "<LOC>", "<answer>", '"', "\\", '"\\', " "),
)


@pytest.mark.parametrize("dialect", WRITTEN)
@pytest.mark.parametrize("frame", ["{}", "framed", "after_start"])
def test_reading_takes_linear_time(dialect, frame):
    """A long reply takes under 0.05 s of an idle core; reading that is quadratic takes 1.5 s at least."""
    frame = {"framed": FRAMES[dialect], "after_start": FRAMES[dialect].partition("{}")[0] + "{}"}.get(frame, frame)
    for unit in UNITS:
        text = frame.replace("{}", unit * (120_000 // len(unit)))
        assert least_seconds(functools.partial(read_reply, text, dialect), 1.2) < 1.2, unit
