"""Stages of records that `data vqa` and `annotate vqa --task=lvkc` make, scored against their own facts."""

import functools
import math

import msgspec
import pytest
from annotate.phantom_records import phantom_folder, phantom_questions

from stepcot_jax.annotate.recipes import lvkc
from stepcot_jax.annotate.recipes.items import TaskSettings
from stepcot_jax.evaluation.stage_quality import label_stages
from stepcot_jax.record import STAGE_NAMES

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
