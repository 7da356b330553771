"""The checks that every report and annotation has to pass."""

import dataclasses

import pytest
from annotate.rules.tables import read_table

from stepcot_jax.annotate.annotation import Annotation, CannotAnnotate, Reason, Report
from stepcot_jax.annotate.checks import check_annotation, check_consistency, check_report
from stepcot_jax.annotate.rules.annotator import annotate_report
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain, Step

REPORT = Report("1", "1", "FINDINGS: A 2.5 cm nodule in the right apex. No effusion.", ("a.png",), "test")
GOOD = Annotation((1, 0, 2, 0, 4, 6, 1), ("A 2.5 cm nodule in the right apex.",) * 7)
NORMAL = Annotation((0, 3, 5, 6, 4, 6, 0), ("No effusion.",) * 7)


def reason(annotation, *, report=REPORT, chain=DEFAULT_CHAIN):
    try:
        check_annotation(report, annotation, chain=chain)
    except CannotAnnotate as error:
        return error.reason
    return None


def with_label(step, label, *, annotation=GOOD):
    labels = list(annotation.labels)
    labels[step - 1] = label
    return dataclasses.replace(annotation, labels=tuple(labels))


def with_reasoning(text):
    return dataclasses.replace(GOOD, reasoning=(text, *GOOD.reasoning[1:]))


def test_a_step_that_is_not_annotated_contradicts_none():
    for place in range(7):
        for annotation in (GOOD, NORMAL):
            check_consistency(with_label(place + 1, NOT_ANNOTATED, annotation=annotation).labels, chain=DEFAULT_CHAIN)
    check_consistency((NOT_ANNOTATED,) * 7, chain=DEFAULT_CHAIN)
    with pytest.raises(CannotAnnotate, match="in a normal chest"):
        check_consistency((NOT_ANNOTATED, 0, *(NOT_ANNOTATED,) * 4, 0), chain=DEFAULT_CHAIN)


def test_reports_and_annotations_that_pass_and_those_that_do_not():
    check_report(REPORT)
    for text in ("", "  ", "INDICATION: pneumonia.", "FINDINGS: ."):
        with pytest.raises(CannotAnnotate) as caught:
            check_report(dataclasses.replace(REPORT, text=text))
        assert caught.value.reason == Reason.NO_REPORT
    with pytest.raises(CannotAnnotate) as caught:
        check_report(dataclasses.replace(REPORT, images=()))
    assert caught.value.reason == Reason.NO_FRONTAL_IMAGE
    assert reason(GOOD) is None
    assert reason(NORMAL, report=dataclasses.replace(REPORT, text="No effusion. Clear lungs.")) is None
    assert reason(annotate_report(REPORT)) is None
    for label in (NOT_ANNOTATED, -1, 4):
        assert reason(with_label(1, label)) == Reason.INVALID_STEP
    # A step before the diagnosis may stay open without a reasoning.
    assert reason(dataclasses.replace(with_label(1, NOT_ANNOTATED), reasoning=("", *GOOD.reasoning[1:]))) is None
    unsaid = dataclasses.replace(with_label(7, NOT_ANNOTATED), reasoning=(*GOOD.reasoning[:6], ""))
    assert reason(unsaid) == reason(Annotation((1,), ("",))) == Reason.INVALID_STEP


@pytest.mark.parametrize(
    "annotation",
    [
        with_label(1, 0),  # no abnormality, and a nodule
        with_label(7, 0),  # increased opacity in a normal chest
        with_label(4, 2, annotation=NORMAL),  # a place of nothing
        with_label(6, 2, annotation=with_label(7, 4)),  # effusion with effusion
        with_label(6, 3, annotation=with_label(7, 8, annotation=with_label(1, 2))),
        with_label(6, 4, annotation=with_label(7, 6)),
        with_label(7, 8),  # pneumothorax that is dense
        with_label(1, 2),  # a nodule that is lucent
    ],
)
def test_chains_that_contradict_themselves(annotation):
    assert reason(annotation) == Reason.INCONSISTENT_CHAIN
    # A large heart says nothing of the density of the lungs.
    check_consistency(with_label(1, 2, annotation=with_label(7, 6)).labels, chain=DEFAULT_CHAIN)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('The report says "nodule in the right apex".', None),
        ('The report says "nodule  in the RIGHT\napex."', None),
        ("It says \u201cnodule in the right apex\u201d.", None),
        ('"A 2.5 cm nodule ... right apex" is an opacity.', None),
        ('The report says "nodule in the left apex".', Reason.REASONING_NOT_IN_REPORT),
        ('"A 2.5 cm nodule ... left apex" is an opacity.', Reason.REASONING_NOT_IN_REPORT),
        ("The nodule of 2.5 cm is dense.", None),
        ("The nodule of 3.5 cm is dense.", Reason.REASONING_NOT_IN_REPORT),
        ("The nodule of 5 cm is dense.", Reason.REASONING_NOT_IN_REPORT),
        *(("By steps 1 and 4 it is a nodule; step 5 agrees.", None), ("It lies on the right.", None)),
        ("It lies on the left.", Reason.REASONING_NOT_IN_REPORT),
        *(("It lies in the LUL.", Reason.REASONING_NOT_IN_REPORT), ("", None)),
    ],
)
def test_what_a_reasoning_may_cite(text, expected):
    assert reason(with_reasoning(text)) == expected
    # A side may be named where the report speaks of both.
    annotation = dataclasses.replace(GOOD, reasoning=("It lies on the left.", *[""] * 6))
    assert reason(annotation, report=dataclasses.replace(REPORT, text="FINDINGS: Nodules in both lungs.")) is None


NODULE = dataclasses.replace(GOOD, reasoning=("",) * 7)


DENIALS = """
NODULE CONFLICTING_FINDINGS: FINDINGS: No nodule. | FINDINGS: There is a nodule. No nodules.
NODULE CONFLICTING_FINDINGS: FINDINGS: Nodule. IMPRESSION: No nodule.
NODULE None: FINDINGS: No nodule. IMPRESSION: Nodule. | FINDINGS: There is a nodule. No other nodules.
NODULE None: FINDINGS: No large nodule. | FINDINGS: An opacity.
NORMAL NOT_NORMAL: FINDINGS: Probable mass. No effusion. | FINDINGS: Diffuse edema. No effusion.
NORMAL None: FINDINGS: Possible mass. No effusion. | FINDINGS: History of mass. No effusion.
NORMAL None: FINDINGS: Tortuous aorta, old rib fractures, pacemaker. No effusion.
NORMAL None: FINDINGS: Nodular density is the nipple. No effusion.
"""  # annotation and reason: reports


@pytest.mark.parametrize(("name", "text"), read_table(DENIALS))
def test_a_diagnosis_that_the_report_denies_and_a_normal_chest_with_an_asserted_finding(name, text):
    annotation, _, expected = name.partition(" ")
    annotation = NODULE if annotation == "NODULE" else NORMAL
    assert reason(annotation, report=dataclasses.replace(REPORT, text=text)) == getattr(Reason, expected, None)


def test_other_chains_are_checked_as_far_as_they_offer_the_answers():
    chain = Chain((Step("View", "Which?", ("PA", "AP")), Step("Quality", "How?", ("Good", "Bad", "N/A"))))
    assert reason(Annotation((0, 1), ("", "")), chain=chain) is None
    assert reason(Annotation((0, 3), ("", "")), chain=chain) == Reason.INVALID_STEP
    assert reason(Annotation((0,), ("",)), chain=Chain(chain.steps[:1])) is None
