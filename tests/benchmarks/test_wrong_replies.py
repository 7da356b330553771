"""What wrong replies earn: by hand for a few phantoms, and the table of docs/rewards.md."""

import re

import pytest
from wheels import ROOT

import stepcot_jax as sc
from benchmarks.wrong_replies import DIALECTS, MAKE, NOT_SURE, ask, find_wrong, main, measure, supported, write
from stepcot_jax.rewards import PRESETS

DOCUMENT = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
ASKED = ask(5)
# Answer, mean IoU and format of each kind of reply; None for another number of boxes.
PARTS = {
    "right": (1, 1, 1),
    '"I am not sure", right boxes': (0, 1, 1),
    "negation turned": (0, 1, 1),
    "other lung": (1, 0, 1),
    "right for a wrong reason": (1, 1, 1),
    "repeated boxes": (1, None, 1),
    "empty thinking": (1, 1, 0),
    "thinking that contradicts": (1, 1, 1),
    "answer before thinking": (1, 1, 0),
    "all options": (0, 1, 1),
}


@pytest.fixture(scope="module")
def measured():
    return measure(ASKED)


@pytest.mark.parametrize("name", PARTS)
def test_wrong_replies_earn_what_the_formulas_say(name, measured):
    answer, grounding, form = PARTS[name]
    earned = measured[name]
    assert len(earned["gemex"]) >= 4
    expected = {
        "gemex": (answer + (grounding or 0)) * form,
        "paper": 0.9 * answer + 0.1 * form,
        "released": 0 if grounding is None or not form else 0.6 * answer + 0.3 * grounding + 0.1,
        "supported": float(name in ("right", "right for a wrong reason")),
    }
    for preset, total in expected.items():
        assert earned[preset] == pytest.approx([total] * len(earned[preset]), abs=1e-9)


def test_boxes_and_answers_are_wrong_by_what_is_drawn():
    """By masks of pixels, and by the findings that the phantom has."""
    for asked in ASKED:
        true = {pixel for box in asked.record.references for pixel in pixels(box)}
        moved = MAKE["other lung"](asked)
        assert moved is None or not any(true & set(pixels(box)) for box in moved.references)
        whole = MAKE["box of the whole picture"](asked)
        assert whole is None or max(len(pixels(box)) for box in asked.record.references) <= 64 * 64 / 2
        assert (
            asked.absent.casefold()
            not in " ".join((*asked.record.accepted_texts, *(box.label for box in asked.record.references))).casefold()
        )
        assert not set(find_wrong(asked).split(", ")) & {*asked.record.answer, asked.record.answer}


def pixels(box):
    return [(x, y) for x in range(int(box.x1), int(box.x2)) for y in range(int(box.y1), int(box.y2))]


def test_what_the_document_says_of_other_replies():
    asked = next(each for each in ASKED if each.record.kind == "single")
    right, record = write("right", asked, "gemex"), asked.record

    def earn(text):
        return sc.rewards.reward(sc.read_reply(text, "gemex"), record, PRESETS["gemex"])["total"]

    assert earn(re.sub("<think>.*</think>", "<think>.</think>", right)) == 2  # a dot is a thinking
    assert earn(right.replace("<answer>", f"<answer>{find_wrong(asked)} or ")) == 1  # two letters are no answer
    assert set(PRESETS) < set(DIALECTS)


def test_the_documents_own_reward_is_the_measured_one():
    scope = {"sc": sc}
    exec(re.search(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)[1], scope)  # noqa: S102
    for name in MAKE:
        pairs = [(write(name, asked, "gemex"), asked.record) for asked in ASKED]
        replies, records = zip(*[(sc.read_reply(text, "gemex"), record) for text, record in pairs if text], strict=True)
        assert scope["supported"](replies, records) == supported(replies, records)


@pytest.mark.slow
def test_the_table_of_the_document(capsys):
    main([])
    assert capsys.readouterr().out.strip() in DOCUMENT
    assert NOT_SURE in DOCUMENT
