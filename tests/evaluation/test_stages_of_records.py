"""Stages of records that `data vqa` and `annotate vqa --task=lvkc` make, scored against their own facts."""

import functools
import math

import msgspec
import pytest
from annotate.phantom_records import phantom_folder, phantom_questions

from stepcot_jax.annotate.recipes import lvkc
from stepcot_jax.annotate.recipes.items import TaskSettings
from stepcot_jax.evaluation.stage_quality import label_stages
from stepcot_jax.reasoning.rules import KNOWLEDGE
from stepcot_jax.record import STAGE_NAMES

RULES = [wordings[0] for wordings in KNOWLEDGE.values()]
SOURCES = ("data vqa", "lvkc")


@functools.cache
def records_of(source):
    if source == "data vqa":
        return [question.record for question in phantom_questions()]
    settings = TaskSettings(root=phantom_folder(), folder=phantom_folder(), num_regions=4, num_templates=3)
    return [lvkc.assemble(item, lvkc.write_parts(item)) for item in lvkc.TASK.plan(phantom_questions(), settings)]


def label(record, **changed):
    return dict(
        zip(STAGE_NAMES, label_stages(msgspec.structs.asdict(record.stages) | changed, record.facts), strict=True)
    )


@pytest.mark.parametrize("source", SOURCES)
def test_records_have_full_marks(source):
    labels = [label(record) for record in records_of(source)]
    for stage in STAGE_NAMES:
        known = [each[stage] for each in labels if not math.isnan(each[stage])]
        assert set(known) == {1.0}
        assert len(known) > len(labels) / 2


@pytest.mark.parametrize("source", SOURCES)
def test_damaged_records_have_less(source):
    turned = {"right": "left", "left": "right"}
    num_turned = 0
    for record in records_of(source)[::7]:
        if math.isnan(label(record)["knowledge"]):
            assert "asked" in record.facts
            continue
        other = [rule for rule in RULES if rule not in KNOWLEDGE[record.facts["diagnosis"]]]
        for rule in (*other, "", "Colourless green ideas sleep furiously."):
            assert label(record, knowledge=rule)["knowledge"] == 0
        wrong = "This is most consistent with emphysema. So the answer is Yes."
        assert label(record, conclusion=wrong)["conclusion"] == 0
        assert label(record, visual="Nothing else.")["visual"] == 0
        side = record.facts["side"]
        if f" {side} " in record.stages.localisation and side in turned:
            place = record.stages.localisation.replace(side, turned[side])
            assert label(record, localisation=place)["localisation"] < 1
            num_turned += 1
    assert num_turned > 5
