"""Trajectories of different kinds, supported and contradicting: which are kept, and why the others are refused."""

import dataclasses

import pytest

from stepcot_jax.annotate.annotation import CannotAnnotate, Reason
from stepcot_jax.annotate.recipes.items import Question
from stepcot_jax.annotate.support import check_conclusion, require_support
from stepcot_jax.box import Box
from stepcot_jax.reasoning.rules import ENTRIES, KNOWLEDGE, Entry
from stepcot_jax.record import Record

CONTRADICTION, UNSUPPORTED, OTHER = Reason.CONTRADICTION, Reason.UNSUPPORTED, Reason.OTHER_ANSWER


@dataclasses.dataclass(frozen=True)
class Case:
    """A question with its true answer, the stages L, V and C, and the reason to refuse them (None: kept)."""

    truth: str | tuple[str, ...]
    localisation: str
    visual: str
    told: str  # the conclusion, with the true answer behind it unless it has one
    reason: Reason | None = None
    question: str = "What does this chest radiograph show?"
    options: tuple[str, ...] = ()
    knowledge: str = "What is seen decides."
    region: str = ""

    @property
    def conclusion(self):
        return self.told if "So the answer" in self.told else f"{self.told} So the answer is {self.truth}."

    @property
    def item(self):
        closed, several = self.truth in ("Yes", "No"), isinstance(self.truth, tuple)
        record = Record(
            id="q", image="a.png", image_size=(9, 9), patient="p", question=self.question, answer=self.truth,
            kind="closed" if closed else "multi" if several else "single" if self.options else "open",
            options=self.options, references=(Box("x", (1, 1, 2, 2)),),
        )  # fmt: skip
        return Question(record, (Box("x", (1, 1, 2, 2), region=self.region),) if self.region else ())


CHOICES = ("Mass", "Pneumothorax", "Pleural effusion")
HEART, APEX, RLL = "The heart, in the middle of the chest.", "The right apex.", "The right lower lung zone."
BASE = "The base of the right lung, by the chest wall."
FLUID = "Context: the left lung is clear. Within the region: a dense zone with a level rim blunts the right angle."
WIDE = "Context: the lungs are clear. Within the region: the heart takes more than half of the chest's width."
AIR = "Context: the other lung is full of vessels. Within the region: a dark zone without vessels beyond a thin line."
DENSE = "Context: the heart is of normal size. Within the region: patchy density with blurred margins in the RLL."
EFFUSION, LARGE = {"question": "Is there a pleural effusion?"}, {"question": "Is the heart enlarged?"}

REFUSED = {
    "lung for heart": Case("cardiomegaly", HEART, "Context: the ribs are even. Within the region: a patchy opacity in "
        "the right lower lung zone.", "This is most consistent with cardiomegaly.", UNSUPPORTED),
    "lung for heart, without a place": Case("cardiomegaly", HEART, "Patchy opacity with air bronchograms.", "It fits.",
        UNSUPPORTED),
    "lung for heart, beside a normal heart": Case("cardiomegaly", RLL, DENSE, "It fits cardiomegaly.", CONTRADICTION),
    "heart for lung": Case("pneumonia", RLL, WIDE, "Airspaces are filled.", UNSUPPORTED),
    "heart for lung beside it": Case("cardiomegaly", RLL, "Within the region: increased density lateral to the right "
        "heart border in the lower lobe.", "The heart is large.", UNSUPPORTED),
    "signs denied": Case("pneumonia", RLL, "There is no opacity, density or consolidation; the lungs are clear.",
        "The picture fits pneumonia.", UNSUPPORTED),
    "signs that users name": Case("hepatic cyst", "The right lobe of the liver.", "A bright area with ragged margins.",
        "It fits a cyst.", UNSUPPORTED),
    "finding denied": Case("Yes", BASE, "Within the region: a dense shadow; there is no pleural effusion.",
        "Fluid blunts the angle.", CONTRADICTION, **EFFUSION),
    "normal size of what is large": Case("Yes", HEART, "The cardiac silhouette is normal in size.",
        "The heart is enlarged.", CONTRADICTION, **LARGE),
    "half of the chest": Case("Yes", HEART, "The heart takes less than half of the chest.", "It is wide.",
        CONTRADICTION, **LARGE),
    "present what is not": Case("No", HEART, "The heart is enlarged to both sides.", "It is not seen.",
        CONTRADICTION, **LARGE),
    "normal beside a mass": Case("no abnormality", "Both lungs.", "A large round mass in the left upper lobe.",
        "Nothing stands out.", CONTRADICTION),
    "wrong side concluded": Case("pleural effusion", BASE, FLUID, "Fluid gathers at the left base.", CONTRADICTION),
    "wrong side seen": Case("pleural effusion", "The base of the left lung.", FLUID, "Fluid.", CONTRADICTION),
    "wrong side of the region": Case("pleural effusion", BASE, FLUID, "Fluid gathers.", CONTRADICTION,
        region="left lower lung zone"),
    "wrong lobe in abbreviations": Case("pneumonia", RLL, DENSE, "The RUL is consolidated.", CONTRADICTION),
    "another diagnosis in other words": Case("pneumothorax", APEX, AIR, "This suggests pleural fluid.", OTHER),
    "another diagnosis abbreviated": Case("pneumonia", RLL, DENSE, "This indicates a PTX.", OTHER),
    "the diagnosis denied": Case("pneumothorax", APEX, AIR, "PTX is excluded here.", OTHER),
    "no before yes": Case("Yes", HEART, WIDE, "The heart is not enlarged.", OTHER, **LARGE),
    "yes before no": Case("No", BASE, "The costophrenic angle is sharp.", "A small pleural effusion is present.", OTHER,
        **EFFUSION),
    "another yes": Case("No", BASE, "The angle is sharp.", "So the answer is Yes.", Reason.WRONG_ANSWER, **EFFUSION),
    "another answer in other words": Case("pneumothorax", APEX, AIR, "So the answer is fluid in the pleural space.",
        Reason.WRONG_ANSWER),
    "another letter affirmed": Case("B", APEX, AIR, "Option A fits what I see.", Reason.WRONG_OPTION_AFFIRMED,
        options=CHOICES),
    "another letter matched": Case("B", APEX, AIR, "This matches option C.", Reason.WRONG_OPTION_AFFIRMED,
        options=CHOICES),
    "the right letter denied": Case("B", APEX, AIR, "Option B does not fit.", Reason.RIGHT_OPTION_DENIED,
        options=CHOICES),
    "another letter": Case("B", APEX, AIR, "So the answer is C.", Reason.WRONG_ANSWER, options=CHOICES),
    "a finding that no stage has": Case("Yes", HEART, WIDE, "The heart is enlarged and a pneumothorax is present.",
        UNSUPPORTED, **LARGE),
    "the rule of another diagnosis": Case("pneumothorax", APEX, AIR, "Air.", CONTRADICTION,
        knowledge=KNOWLEDGE["Mass"][1]),
}  # fmt: skip
KEPT = {
    "heart": Case("cardiomegaly", HEART, WIDE, "The enlarged heart shows it.", knowledge=KNOWLEDGE["Cardiomegaly"][0]),
    "heart by its outline": Case("cardiomegaly", "The cardiac region.", "The left heart border extends towards the "
        "chest wall.", "The wide shadow right and left fits cardiomegaly with no PTX."),
    "heart above normal": Case("Yes", HEART, "The heart is larger than normal.", "It is large.", **LARGE),
    "other side in the context": Case("pleural effusion", BASE, FLUID, "Fluid gathers at the right base.",
        region="right lower lung zone"),
    "lobe in abbreviations": Case("pneumonia", RLL, DENSE, "The RLL fits PNA rather than a mass."),
    "no": Case("No", BASE, "Within the region: the costophrenic angle is sharp; no fluid level is seen.",
        "No pleural effusion is seen.", **EFFUSION),
    "no, beside another finding": Case("No", BASE, DENSE, "The density is as in pneumonia.", **EFFUSION),
    "no, on one side alone": Case("No", "The base of the left lung.", "The left angle is sharp. There is a pleural "
        "effusion on the right.", "None is seen.", question="Is there a pleural effusion on the left?"),
    "letter, others refused": Case("B", APEX, AIR, "Option A, mass, does not fit. Option C is not seen.",
        options=CHOICES),
    "refused together": Case("B", APEX, AIR, "A focus (A) and fluid (C) are not seen.", options=CHOICES),
    "air without markings": Case("pneumothorax", "The left apex.", "There is absence of lung markings in the left "
        "upper zone.", "Air has left no vessels; this is consistent with a left PTX."),
    "normal": Case("no abnormality", "Both lungs.", "The lungs are clear without mass or effusion. The heart is of "
        "normal size.", "No finding stands out."),
    "both sides": Case("pleural effusion", "Both lung bases.", "Dense layers blunt the right and the left angle.",
        "Fluid gathers bilaterally."),
    "several letters": Case(("A", "C"), "The right lung.", "A large round density, and fluid that blunts the angle.",
        "A and C fit; no PTX is seen. So the answer is A, Mass; C, Pleural effusion.", options=CHOICES),
    "another organ": Case("hepatic cyst", "The right lobe of the liver.", "A sharp, dark round area.", "It is sharp."),
}  # fmt: skip
BASE_OF_USER = (Entry("hepatic cyst", "Fluid is dark and sharp.", "own", "dark* round*"), *ENTRIES)


@pytest.mark.parametrize("name", [*REFUSED, *KEPT])
def test_a_conclusion_must_follow_from_its_stages_and_be_the_truth(name):
    case = (REFUSED | KEPT)[name]
    parts = {stage: getattr(case, stage) for stage in ("localisation", "visual", "knowledge", "conclusion")}
    reason = None
    try:
        require_support(case.item, parts, BASE_OF_USER)
        check_conclusion(case.item, parts, BASE_OF_USER)
    except CannotAnnotate as error:
        reason = error.reason
    assert reason == case.reason
    assert (reason is None) == (name in KEPT)
