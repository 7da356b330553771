"""Trajectories of different kinds, supported and contradicting: which are kept, and why the others are refused."""

import dataclasses

import pytest

from stepcot_jax.annotate.annotation import CannotAnnotate, Reason
from stepcot_jax.annotate.recipes.items import Question
from stepcot_jax.annotate.support import check_conclusion, require_support
from stepcot_jax.box import Box
from stepcot_jax.reasoning.rules import ENTRIES, KNOWLEDGE, Entry
from stepcot_jax.record import Record


@dataclasses.dataclass(frozen=True)
class Case:
    """A question with its true answer, the stages L, V and C, and the reason to refuse them (None: kept)."""

    truth: str | tuple[str, ...]
    localisation: str
    visual: str
    conclusion: str
    reason: Reason | None = None
    question: str = "What does this chest radiograph show?"
    options: tuple[str, ...] = ()
    knowledge: str = "What is seen decides."
    region: str = ""
    lesion: str = ""

    @property
    def item(self):
        closed, several = self.truth in ("Yes", "No"), isinstance(self.truth, tuple)
        record = Record(
            id="q", image="a.png", image_size=(9, 9), patient="p", question=self.question, answer=self.truth,
            kind="closed" if closed else "multi" if several else "single" if self.options else "open",
            options=self.options, references=(Box("x", (1, 1, 2, 2)),), lesion=self.lesion,
        )  # fmt: skip
        return Question(record, (Box("x", (1, 1, 2, 2), region=self.region),) if self.region else ())


CHOICES = ("Mass", "Pneumothorax", "Pleural effusion")
RLL = "The right lower lung zone."
BASE = "The base of the right lung, by the chest wall."
FLUID = "Context: the left lung is clear. Within the region: a dense zone with a level rim blunts the right angle."
WIDE = "Context: the lungs are clear. Within the region: the heart takes more than half of the chest's width."
AIR = "Context: the other lung is full of vessels. Within the region: a dark zone without vessels beyond a thin line."
CONSOLIDATION = (
    "Context: the heart is of normal size. Within the region: patchy density with blurred margins in the RLL."
)
EFFUSION = "Is there a pleural effusion?"

REFUSED = {
    "lung for heart": Case(
        "cardiomegaly", "The heart, in the middle of the chest.",
        "Context: the ribs are symmetric. Within the region: a patchy opacity in the right lower lung zone.",
        "This is most consistent with cardiomegaly. So the answer is cardiomegaly.", Reason.UNSUPPORTED,
    ),
    "lung for heart, the heart named as normal": Case(
        "cardiomegaly", RLL, CONSOLIDATION,
        "This is most consistent with cardiomegaly. So the answer is cardiomegaly.", Reason.CONTRADICTION,
    ),
    "signs that users name": Case(
        "hepatic cyst", "The right lobe of the liver.", "Within the region: a bright area with ragged margins.",
        "It fits a cyst. So the answer is hepatic cyst.", Reason.UNSUPPORTED,
    ),
    "heart for lung": Case("pneumonia", RLL, WIDE, "So the answer is pneumonia.", Reason.UNSUPPORTED),
    "signs denied": Case(
        "pneumonia", RLL, "There is no opacity, density or consolidation; the lungs are clear.",
        "The picture fits pneumonia. So the answer is pneumonia.", Reason.UNSUPPORTED,
    ),
    "finding denied": Case(
        "Yes", BASE, "Within the region: a dense shadow; there is no pleural effusion.",
        "Fluid blunts the angle. So the answer is Yes.", Reason.CONTRADICTION, question=EFFUSION,
    ),
    "normal size of what is large": Case(
        "Yes", "The heart.", "Within the region: the heart takes less than half of the chest.",
        "The heart is enlarged. So the answer is Yes.", Reason.CONTRADICTION, question="Is the heart enlarged?",
    ),
    "present what is not": Case(
        "No", "The heart.", "Within the region: the heart is enlarged to both sides.",
        "It is not seen. So the answer is No.", Reason.CONTRADICTION, question="Is the heart enlarged?",
    ),
    "normal beside a mass": Case(
        "no abnormality", "Both lungs.", "Within the region: a large round mass in the left upper lobe.",
        "Nothing stands out. So the answer is no abnormality.", Reason.CONTRADICTION,
    ),
    "wrong side concluded": Case(
        "pleural effusion", BASE, FLUID, "Fluid gathers at the left base. So the answer is pleural effusion.",
        Reason.CONTRADICTION,
    ),
    "wrong side seen": Case(
        "pleural effusion", "The base of the left lung.", FLUID, "Fluid gathers. So the answer is pleural effusion.",
        Reason.CONTRADICTION,
    ),
    "wrong side of the region": Case(
        "pleural effusion", BASE, FLUID, "Fluid gathers. So the answer is pleural effusion.", Reason.CONTRADICTION,
        region="left lower lung zone",
    ),
    "wrong lobe in abbreviations": Case(
        "pneumonia", RLL, CONSOLIDATION, "The RUL is consolidated. So the answer is pneumonia.",
        Reason.CONTRADICTION,
    ),
    "another diagnosis in other words": Case(
        "pneumothorax", "The right apex.", AIR,
        "This suggests a collection of pleural fluid. So the answer is pneumothorax.", Reason.OTHER_ANSWER,
    ),
    "another diagnosis abbreviated": Case(
        "pneumonia", RLL, CONSOLIDATION, "This indicates a PTX. So the answer is pneumonia.",
        Reason.OTHER_ANSWER,
    ),
    "the diagnosis denied": Case(
        "pneumothorax", "The right apex.", AIR, "PTX is excluded. So the answer is pneumothorax.", Reason.OTHER_ANSWER,
    ),
    "yes before no": Case(
        "No", BASE, "Within the region: the costophrenic angle is sharp.",
        "A small pleural effusion is present. So the answer is No.", Reason.OTHER_ANSWER, question=EFFUSION,
    ),
    "another yes": Case(
        "No", BASE, "The angle is sharp.", "So the answer is Yes.", Reason.WRONG_ANSWER, question=EFFUSION,
    ),
    "another answer in other words": Case(
        "pneumothorax", "The right apex.", AIR, "So the answer is fluid in the pleural space.", Reason.WRONG_ANSWER,
    ),
    "another letter affirmed": Case(
        "B", "The right apex.", AIR, "Option A fits what I see. So the answer is B.", Reason.WRONG_OPTION_AFFIRMED,
        options=CHOICES,
    ),
    "another letter": Case("B", "The right apex.", AIR, "So the answer is C.", Reason.WRONG_ANSWER, options=CHOICES),
    "a finding that no stage has": Case(
        "Yes", "The heart.", WIDE, "The heart is enlarged and a pneumothorax is present. So the answer is Yes.",
        Reason.UNSUPPORTED, question="Is the heart enlarged?",
    ),
    "the rule of another diagnosis": Case(
        "pneumothorax", "The right apex.", AIR, "So the answer is pneumothorax.", Reason.CONTRADICTION,
        knowledge=KNOWLEDGE["Mass"][1],
    ),
}  # fmt: skip
KEPT = {
    "heart": Case("cardiomegaly", "The heart.", WIDE, "The enlarged heart explains it. So the answer is cardiomegaly.",
                  knowledge=KNOWLEDGE["Cardiomegaly"][0]),
    "heart by its outline": Case(
        "cardiomegaly", "The cardiac region.", "The left heart border extends towards the chest wall.",
        "The wide shadow right and left fits cardiomegaly with no PTX. So the answer is cardiomegaly.",
    ),
    "other side in the context": Case(
        "pleural effusion", BASE, FLUID, "Fluid gathers at the right base. So the answer is pleural effusion.",
        region="right lower lung zone",
    ),
    "lobe in abbreviations": Case(
        "pneumonia", RLL, CONSOLIDATION,
        "The RLL is consolidated, which fits PNA rather than a mass. So the answer is pneumonia.",
    ),
    "no": Case(
        "No", BASE, "Within the region: the costophrenic angle is sharp; no fluid level is seen.",
        "No pleural effusion is seen. So the answer is No.", question=EFFUSION,
    ),
    "no, beside another finding": Case(
        "No", BASE, CONSOLIDATION, "The density lies in the lung, as in pneumonia. So the answer is No.",
        question=EFFUSION,
    ),
    "no, on one side alone": Case(
        "No", "The base of the left lung.", "The left angle is sharp. There is a pleural effusion on the right.",
        "None is seen on the left. So the answer is No.", question="Is there a pleural effusion on the left?",
    ),
    "letter, others refused": Case(
        "B", "The right apex.", AIR,
        "Option A, mass, does not fit. Option C is not seen. So the answer is B, Pneumothorax.", options=CHOICES,
    ),
    "air without markings": Case(
        "pneumothorax", "The left apex.", "There is absence of lung markings in the left upper zone.",
        "Air has left no vessels; this is consistent with a left PTX. So the answer is pneumothorax.",
    ),
    "normal": Case(
        "no abnormality", "Both lungs.", "The lungs are clear without mass or effusion. The heart is of normal size.",
        "No finding stands out. So the answer is no abnormality.",
    ),
    "both sides": Case(
        "pleural effusion", "Both lung bases.", "Within the region: dense layers blunt the right and the left angle.",
        "Fluid gathers bilaterally. So the answer is pleural effusion.",
    ),
    "several letters": Case(
        ("A", "C"), "The right lung.", "Within the region: a large round density, and fluid that blunts the angle.",
        "A and C fit; no PTX is seen. So the answer is A, Mass; C, Pleural effusion.", options=CHOICES,
    ),
    "another organ, without an entry": Case(
        "hepatic cyst", "The right lobe of the liver.", "Within the region: a sharp, dark round area.",
        "The sharp border fits a cyst. So the answer is hepatic cyst.", question="What does the CT show?",
    ),
}  # fmt: skip


BASE_OF_USER = (Entry("hepatic cyst", "Fluid is dark and sharp.", "own", "dark* round*"), *ENTRIES)


def reason_of(case):
    parts = {name: getattr(case, name) for name in ("localisation", "visual", "knowledge", "conclusion")}
    try:
        require_support(case.item, parts, BASE_OF_USER)
        check_conclusion(case.item, parts, BASE_OF_USER)
    except CannotAnnotate as error:
        return error.reason
    return None


@pytest.mark.parametrize("name", [*REFUSED, *KEPT])
def test_a_conclusion_must_follow_from_its_stages_and_be_the_truth(name):
    case = (REFUSED | KEPT)[name]
    assert reason_of(case) == case.reason
    assert (case.reason is None) == (name in KEPT)
