import math

import msgspec
import numpy as np
import pytest
from annotate.phantom_records import phantom_folder, phantom_questions

from stepcot_jax.annotate.recipes import lvkc
from stepcot_jax.annotate.recipes.items import TaskSettings
from stepcot_jax.evaluation import stage_claims as tested
from stepcot_jax.evaluation.statistics import count_once
from stepcot_jax.reasoning import claims
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.reasoning.rules import KNOWLEDGE

NAN = math.nan
FACTS = {"side": "left", "zone": "Lower lung zone", "detection": "Increased opacity", "distribution": "Focal"}
FACTS |= {"pattern": "Consolidation", "morphology": "Ill-defined", "secondary": "Pleural effusion"}
FACTS |= {"diagnosis": "Pneumonia"}
TRUE = {
    "localisation": "The change lies in the left lower lung zone.",
    "visual": "There is focal increased opacity with airspace consolidation and indistinct margins. "
    "A small pleural effusion accompanies this.",
    "knowledge": "Airspace filling in one or several areas without loss of volume suggests infection.",
    "conclusion": "This is most consistent with pneumonia. So the answer is B, pleural effusion.",
}


@pytest.mark.parametrize(
    ("stage", "text", "value"),
    [
        ("localisation", "In the right upper zone.", 0),
        ("localisation", "In the left upper zone.", 0.5),
        ("localisation", "In both lower zones.", 0.5),  # the right one is not
        ("visual", "Focal lucency.", 0.5),
        ("visual", "Focal opacity without pneumothorax.", 1),
        ("visual", "Focal opacity without effusion.", 0.5),
        ("visual", "Focal opacity; mediastinal shift is absent.", 1),
        ("knowledge", KNOWLEDGE["Pneumonia"][0].upper(), 1),
        ("knowledge", f"{KNOWLEDGE['Pneumonia'][0]} This is how a mass looks.", 0),
        ("knowledge", f"{KNOWLEDGE['Pneumonia'][0]} {KNOWLEDGE['Mass'][1]}", 0),
        ("knowledge", KNOWLEDGE["Mass"][0], 0),
        ("knowledge", "This is how pneumonia looks.", 0),  # no rule
        ("conclusion", "Pneumonia rather than a mass.", 1),
        ("conclusion", "Pneumonia or a mass.", 0),
        ("conclusion", "So the answer is Pneumonia.", NAN),  # the answer has a score of its own
        ("conclusion", "A mass. So the answer is Pneumonia.", 0),
    ],
)
def test_labels(stage, text, value):
    names = ("localisation", "visual", "knowledge", "conclusion")
    np.testing.assert_equal(tested.label_stages({**TRUE, stage: text}, FACTS)[names.index(stage)], value)


def test_missing_stages_and_unknown_facts():
    assert tested.label_stages(TRUE, FACTS) == (1, 1, 1, 1)
    assert np.isnan(tested.label_stages(TRUE, FACTS | {"asked": "Effusion"})).all()  # stages about another finding
    assert tested.label_stages({}, FACTS) == (0, 0, 0, 0)
    assert all(map(math.isnan, tested.label_stages(TRUE, {})))
    found = tested.label_stages(TRUE, {"diagnosis": "Pneumonia"})
    assert found == pytest.approx((NAN, NAN, 1, 1), nan_ok=True)
    assert math.isnan(tested.label_stages(TRUE, {"diagnosis": "Rib fracture"})[2])  # the table has no rule of it
    # Nothing is known of the pattern: the claim is not borne out.
    assert claims.find_claims(
        "Focal reticular change.", stage="visual", facts={"distribution": "Focal"}
    ) == claims.Claims(1, 0, 1)
    elsewhere = {"zone": "costophrenic angle"}  # in other words
    assert claims.find_claims("Left costophrenic angle.", stage="localisation", facts=elsewhere) == claims.Claims(
        1, 0, 1
    )


def test_nothing_lies_nowhere():
    facts = dict.fromkeys(FACTS, "N/A") | {"side": "", "detection": "No abnormality", "diagnosis": "Normal"}
    stages = {
        "localisation": "No place stands out; both lungs and the heart are looked over.",
        "visual": "The lungs are clear and the heart is of normal size.",
        "knowledge": KNOWLEDGE["Normal"][1],
        "conclusion": "The picture fits normal chest radiograph.",
    }
    assert tested.label_stages(stages, facts) == pytest.approx((NAN, 1, 1, 1), nan_ok=True)
    wrong = {**stages, "visual": "Focal opacity.", "knowledge": KNOWLEDGE["Mass"][0], "conclusion": "Pneumonia."}
    assert tested.label_stages(wrong, facts) == pytest.approx((NAN, 0, 0, 0), nan_ok=True)


def test_step_quality_by_hand():
    labels = np.array([[1, 0.5, 1, 0], [1, 1, NAN, NAN], [NAN, NAN, 1, 0], [0, 0, 1, 1], [NAN] * 4])
    expected = [[0.75, 0.5, math.sqrt(0.375)], [1, NAN, 1], [NAN, 0.5, 0.5], [0, 1, 0], [NAN, NAN, NAN]]
    np.testing.assert_allclose(tested.step_quality(labels), expected)
    found = tested.stage_figures(count_once(5), labels=labels)
    assert found["step_quality", "together"][0] == pytest.approx((math.sqrt(0.375) + 1 + 0.5 + 0) / 4)
    assert found["stage", "localisation"][0] == pytest.approx(2 / 3)
    assert found["stage", "conclusion"][0] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ({"localisation": "In the right lower zone.", "conclusion": "A mass of the right lung."}, 1.0),
        ({"localisation": "In the right lower zone.", "conclusion": "A mass of the left lung."}, 0.0),
        ({"localisation": "In the right lower zone.", "visual": "The left upper zone is dense."}, 0.0),
        ({"localisation": "In the right lower zone.", "visual": "The right upper zone is dense."}, 0.5),
        ({"localisation": "In both lower zones.", "visual": "The right base is dense."}, 1.0),
        ({"knowledge": "A mass is large.", "conclusion": "This is no mass but pneumonia."}, 0.0),
        ({"knowledge": "A mass is large.", "conclusion": "A mass."}, 1.0),
        ({"localisation": "In the right lung.", "conclusion": "A mass."}, np.nan),
        ({}, np.nan),
    ],
)
def test_stages_agree_with_each_other(stages, expected):
    np.testing.assert_equal(claims.stage_consistency(Reply("lvkc", stages=stages)), expected)


def test_annotated_records_have_full_marks():
    settings = TaskSettings(root=phantom_folder(), folder=phantom_folder(), num_regions=4, num_templates=3)
    items = lvkc.TASK.plan(phantom_questions(), settings)
    records = [lvkc.assemble(item, lvkc.write_parts(item)) for item in items]
    labels = np.array([tested.label_stages(msgspec.structs.asdict(record.stages), record.facts) for record in records])
    known = ~np.isnan(labels)
    assert (labels[known] == 1).all()
    assert (known.mean(axis=0) > 0.5).all()
