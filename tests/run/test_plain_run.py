"""Records without any box: a run in the dialect "plain", what it refuses, and that no figure of boxes is anywhere."""

import json

import msgspec
import numpy as np
import pytest
from PIL import Image
from policies.policy_workdir import small_settings
from refusals import refuse
from run.small_run import read_log

import stepcot_jax as sc
from stepcot_jax.data.questions.record_files import write_vqa_records
from stepcot_jax.record import Record
from stepcot_jax.run.training_run import Run
from stepcot_jax.tools.report.command import main as report

SIDES = ("Left", "Right")
CHANGES = {
    "vqa.source": "folder", "vqa.dialect": "plain", "vqa.with_thinking": False, "vqa.num_validated": 0,
    "rewards.functions": ("answer=1", "well_formed=0.1"), "sft.epochs": 16, "sft.batch_size": 4,
    "sft.learning_rate": 1e-2, "grpo.epochs": 1, "grpo.updates_per_epoch": 2, "grpo.batch_size": 8,
    "grpo.group_size": 3, "grpo.learning_rate": 1e-4, "evaluation.num_resamples": 20, "parallel.num_devices": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """60 pictures with a bright half each, and five questions about each."""
    root, rng, asked = tmp_path_factory.mktemp("plain"), np.random.default_rng(0), []
    for number, side in enumerate(rng.integers(2, size=60).tolist()):
        where, pixels = SIDES[side], np.array([[220, 20][:: 1 - 2 * side]], np.uint8).repeat(24, 0).repeat(16, 1)
        Image.fromarray(pixels).save(root / f"{number}.png")
        modality, organ = (("xray", "chest"), ("CT", "abdomen"))[number % 2]
        split = ("train", "train", "train", "val", "test")[number % 5]
        base = Record(image=f"{number}.png", patient=f"p{number}", split=split, modality=modality, organ=organ)
        forms = (
            ("closed", "Is it on the left?", "no" if side else "yes", ()), ("closed", "Left or right?", where, ()),
            ("open", "Where is it bright?", f"on the {where.lower()}", ()), ("single", "Where?", where, SIDES),
            ("multi", "Which?", (where, "Bright"), (*SIDES, "Bright")),
        )  # fmt: skip
        for at, (kind, question, answer, options) in enumerate(forms):
            fields = {"kind": kind, "question": question, "answer": answer, "options": options}
            asked.append(msgspec.structs.replace(base, id=f"{number}_{at}", **fields))
    write_vqa_records(root / "records.jsonl", asked)
    return root


def settings_of(folder, **changes):
    return small_settings(**{**CHANGES, "vqa.root": str(folder), **changes})


def test_the_reward_of_boxes_is_refused_where_there_is_none(folder, tmp_path):
    why = {"plain": "replies of config.vqa.dialect='plain' have no box", "medclm": "no training record has a box"}
    for dialect, reason in why.items():
        changes = {"rewards.functions": ("answer=1", "grounding=1"), "vqa.dialect": dialect}
        words = f"^config.rewards.functions: grounding rewards boxes, but {reason}; expected"
        refuse(words, Run, settings_of(folder, **changes), tmp_path)
        Run(settings_of(folder, job="sft", **changes), tmp_path / dialect)  # which has no reward


@pytest.mark.slow
def test_a_run_on_plain_questions(folder, tmp_path, capsys):
    workdir, page = tmp_path / "run", tmp_path / "page.html"
    Run(settings_of(folder), workdir).execute()
    assert "  V" not in capsys.readouterr().out.partition("test split")[2]
    found = json.loads((workdir / "report.json").read_text())
    assert set(found["test"]["grpo"]) == {"A", "A_open", "A_closed", "A_single", "A_multi", "well_formed"}
    assert found["test"]["sft"]["A"] > found["baseline"]["A"] + 0.2
    assert set(found["unread"]["sft"]) == {"answers"}
    names = {name for entry in read_log(workdir) for name in entry}
    assert {"rollouts/reward/answer", "sft/score"} <= names
    assert not [name for name in names if "V" in name or "passed" in name or "boxes" in name or "grounding" in name]
    assert not any("v_score" in path.read_text() for path in (workdir / "examples").glob("*.jsonl"))

    report([str(workdir), "--out", str(page)])
    assert "true boxes</span>" not in page.read_text()
    answered = sc.load(workdir).answer(folder / "4.png", "Where is it bright?", modality="xray", organ="chest")
    assert answered.answer in ("left", "right", "on the left", "on the right")
    assert "box" not in str(answered)
