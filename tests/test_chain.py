import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuse

from stepcot_jax.chain import (
    DETECTION_OPTIONS,
    DIAGNOSIS_OPTIONS,
    NOT_ANNOTATED,
    PUBLISHED_STEPS,
    Chain,
    Step,
    fold,
    read_options,
)
from stepcot_jax.host.errors import BadInput

PATTERN = Step("Pattern", "Which pattern?", ("Consolidation", "Reticular", "Ill-defined  nodules", "N/A"))
ANSWERS = {
    0: ("Consolidation",),
    1: ("Reticular",),
    2: ("C", "c", " C ", "C.", "C)", "C:", "(C)", "C. Ill-defined nodules", "(C) ILL-DEFINED  nodules",
        "C.Ill-defined nodules", "Ill-defined nodules", "  ill-DEFINED \n nodules "),
    3: ("N/A", "n/a", "D", "D. N/A"),
    NOT_ANNOTATED: (None, "", " \t"),
}  # fmt: skip


@pytest.mark.parametrize(("label", "answer"), [(label, answer) for label, own in ANSWERS.items() for answer in own])
def test_reads_every_form_of_an_answer(label, answer):
    assert PATTERN.read_answer(answer) == label


@pytest.mark.parametrize(
    "answer", ["E", "Z.", "A. Reticular", "A Consolidation", "Consolidation.", "AB", "0", "?", "x" * 500]
)
def test_refuses_other_answers_and_says_what_is_accepted(answer):
    with pytest.raises(BadInput) as caught:
        PATTERN.read_answer(answer)
    assert f"{answer[:80]!r} is not one of" in str(caught.value)
    assert "A. Consolidation, B. Reticular, C. Ill-defined  nodules, N/A or null" in str(caught.value)
    refuse("'N/A' is not one of", Step("Size", "How large?", ("Small", "Large")).read_answer, "N/A")


def test_writes_letters_and_not_applicable():
    assert PATTERN.lettered_options == ("A. Consolidation", "B. Reticular", "C. Ill-defined  nodules", "N/A")
    assert [PATTERN.written(label) for label in (0, 2, 3, NOT_ANNOTATED)] == ["A", "C", "N/A", None]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["A. Focal", "B. Diffuse", "N/A"], ("Focal", "Diffuse", "N/A")),
        (["B) Diffuse", "A) Focal"], ("Focal", "Diffuse")),
        (["(a) Focal", "(b) Diffuse"], ("Focal", "Diffuse")),
        (["Focal", "Diffuse"], ("Focal", "Diffuse")),
        (["n/a", "Focal", "Diffuse"], ("Focal", "Diffuse", "N/A")),
        (["A. Focal", "B. Diffuse", "C. N/A"], ("Focal", "Diffuse", "N/A")),
        (["  Focal\tlesion ", "Diffuse"], ("Focal lesion", "Diffuse")),
    ],
)
def test_reads_options_with_and_without_letters_in_any_order(options, expected):
    assert read_options(options) == expected


@pytest.mark.parametrize("options", [["A. Focal", "C. Diffuse"], ["A. Focal", "A. Diffuse"], ["B. Focal"]])
def test_refuses_letters_with_gaps_or_repetitions(options):
    refuse(r"option letters \[.*\] must be \[", read_options, options)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        *(((), "0 options; 2 to 26"), (("Only",), "1 options"), (("Same", "same "), "must be distinct")),
        *((("One", " "), "not empty"), (("N/A", "One"), "N/A must be the last option")),
    ],
)
def test_refuses_options_that_make_no_step(options, found):
    with pytest.raises(BadInput, match=found) as caught:
        Step("Size", "How large?", options)
    assert "step 'Size'" in str(caught.value)
    refuse("at least one step", Chain, ())


def test_the_published_chain():
    assert len(PUBLISHED_STEPS) == 7
    assert (len(DETECTION_OPTIONS), len(DIAGNOSIS_OPTIONS)) == (4, 9)
    steps = tuple(Step(name, question, ("a text", "b text")) for name, question in PUBLISHED_STEPS)
    assert Chain(steps).num_steps == 7
    assert Chain(steps).answers_per_step == (2,) * 7


words = st.text(string.ascii_letters + "äßİ()., :/0123456789", min_size=2, max_size=12)
steps = st.builds(
    lambda options, offers_none: Step("s", "q", (*options, *(["N/A"] if offers_none else []))),
    st.lists(words.map(lambda text: " ".join(f"o{text}".split())), min_size=2, max_size=25, unique_by=fold),
    st.booleans(),
)


@given(steps)
def test_every_written_label_reads_back(step):
    for label in [*range(step.num_answers), NOT_ANNOTATED]:
        assert step.read_answer(step.written(label)) == label
    for label, option in enumerate(step.lettered_options):
        assert step.read_answer(option) == label
        assert step.read_answer(step.options[label].upper()) == label
    assert read_options(step.lettered_options) == step.options
