"""Reports from answers, by hand."""

import msgspec
import pytest

from stepcot_jax.box import Box
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.questions.written_reports import NORMAL_REPORT, write_chain_report, write_reply_report
from stepcot_jax.reasoning.dialects import write_reply
from stepcot_jax.record import Record, Stages

EFFUSION = ("Increased opacity", "Focal", "Consolidation", "Lower lung zone", "Ill-defined", "Cardiomegaly", "Effusion")


def labels_of(answers, chain=DEFAULT_CHAIN):
    return [step.read_answer(answer) for step, answer in zip(chain.steps, answers, strict=True)]


@pytest.mark.parametrize(
    ("answers", "written"),
    [
        (
            EFFUSION,
            "FINDINGS: There is focal increased opacity in the lower lung zone with airspace consolidation and "
            "ill-defined margins. There is associated cardiomegaly. IMPRESSION: Pleural effusion.",
        ),
        (("No abnormality", *["N/A"] * 5, "Normal"), str(NORMAL_REPORT)),
        (("", *["N/A"] * 4, "Pleural effusion", ""), "FINDINGS: There is an associated pleural effusion."),
        (
            ("", "", "", "Cardiac", "", "", "Mass"),
            "FINDINGS: There is an abnormality over the cardiac silhouette. IMPRESSION: Lung mass.",
        ),
        ([""] * 7, ""),
    ],
)
def test_the_published_steps_become_sentences(answers, written):
    labels = labels_of(answers)
    assert (NOT_ANNOTATED in labels) == ("" in answers)
    assert str(write_chain_report(DEFAULT_CHAIN, labels)) == written


def test_other_chains_are_listed():
    chain = Chain((Step("Size", "How large?", ("Small", "Large")), Step("Kind", "Which?", ("Cyst", "Tumour", "N/A"))))
    assert str(write_chain_report(chain, [1, 0])) == "FINDINGS: Size: Large. IMPRESSION: Cyst."
    assert str(write_chain_report(chain, [0, 2])) == "FINDINGS: Size: Small."
    assert str(write_chain_report(chain, [NOT_ANNOTATED, 1])) == "IMPRESSION: Tumour."


MAIN = Record(
    id="a", image="a.png", image_size=(100, 100), patient="p", kind="open", topic="main abnormality", question="What?",
    answer="lung mass", references=(Box("Mass", (10, 20, 30, 40)),),
    thinking="I look at the **left lung** ([10, 20, 30, 40]) and see a round shadow. I look at the **heart** "
    "([1, 2, 3, 4]): It is large. I look at the **spine** ([1, 2, 3, 4]). So the answer is lung mass.",
    stages=Stages("The left lung.", "The picture shows a round shadow.", "Masses are round.", "So it is a lung mass."),
)  # fmt: skip
NO = msgspec.structs.replace(MAIN, id="b", kind="closed", topic="presence of pleural effusion", answer="No")
CHOICE = msgspec.structs.replace(
    MAIN, id="c", kind="multi", topic="present", options=("edema", "lung mass"), answer=("A", "B"),
    thinking="Option A fits. Left lung: a round shadow. So the answer is A, B.",
)  # fmt: skip


@pytest.mark.parametrize("dialect", ["gemex", "lvkc", "medclm"])
def test_replies_become_what_is_seen_and_answered(dialect):
    records = [MAIN, NO, CHOICE, msgspec.structs.replace(MAIN, id="d", kind="closed", topic="size", answer="Yes")]
    replies = {record.id: write_reply(record, dialect) for record in records}
    written = write_reply_report(records, replies, dialect)
    seen = {"lvkc": "The picture shows a round shadow."}.get(dialect, "Left lung: a round shadow. It is large.")
    assert written.findings == seen
    assert written.impression == "Lung mass. No pleural effusion. Edema."
    assert str(write_reply_report(records, {"a": "no form", "b": ""}, dialect)) == ""
