"""Records without any box: a run in the dialect "plain", what it refuses, and that no figure of boxes is anywhere."""

import json

import msgspec
import numpy as np
import pytest
from PIL import Image
from policies.policy_workdir import small_settings
from run.small_run import read_log

import stepcot_jax as sc
from stepcot_jax.data.questions.record_files import read_vqa_records, write_vqa_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record
from stepcot_jax.run.training_run import Run
from stepcot_jax.tools.evaluate_replies.command import main as evaluate_replies
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
    for number in range(60):
        side = int(rng.integers(2))
        pixels = np.full((24, 32), 20, np.uint8)
        pixels[:, 16 * side : 16 * side + 16] = 220
        Image.fromarray(pixels).save(root / f"{number}.png")
        modality, organ = (("xray", "chest"), ("CT", "abdomen"))[number % 2]
        base = Record(
            id=f"{number}", image=f"{number}.png", patient=f"p{number}", kind="closed", question="Is it on the left?",
            answer="no" if side else "yes", split=("train", "train", "train", "val", "test")[number % 5],
            modality=modality, organ=organ,
        )  # fmt: skip
        changes = (
            {}, {"question": "Left or right?", "answer": SIDES[side]},
            {"kind": "open", "question": "Where is it bright?", "answer": f"on the {SIDES[side].lower()}"},
            {"kind": "single", "question": "Where?", "options": SIDES, "answer": SIDES[side]},
            {"kind": "multi", "question": "Which?", "options": (*SIDES, "Bright"), "answer": (SIDES[side], "Bright")},
        )  # fmt: skip
        asked += [
            msgspec.structs.replace(base, id=f"{number}_{place}", **change) for place, change in enumerate(changes)
        ]
    write_vqa_records(root / "records.jsonl", asked)
    return root


def settings_of(folder, **changes):
    return small_settings(**{**CHANGES, "vqa.root": str(folder), **changes})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "replies of config.vqa.dialect='plain' have no box"),
        ({"vqa.dialect": "medclm"}, "no training record has a box"),
    ],
)
def test_the_reward_of_boxes_is_refused_where_there_is_none(folder, tmp_path, changes, why):
    rewards = {"rewards.functions": ("answer=1", "grounding=1")}
    with pytest.raises(BadInput, match=f"^config.rewards.functions: grounding rewards boxes, but {why}; expected "):
        Run(settings_of(folder, **rewards, **changes), tmp_path)
    Run(settings_of(folder, job="sft", **rewards, **changes), tmp_path / "sft")  # which has no reward


@pytest.mark.slow
def test_a_run_on_plain_questions(folder, tmp_path, capsys):
    workdir = tmp_path / "run"
    Run(settings_of(folder), workdir).execute()
    told = capsys.readouterr().out
    found = json.loads((workdir / "report.json").read_text())
    assert set(found["test"]["grpo"]) == {"A", "A_open", "A_closed", "A_single", "A_multi", "well_formed"}
    assert found["test"]["sft"]["A"] > found["baseline"]["A"] + 0.2
    assert set(found["unread"]["sft"]) == {"answers"}
    names = {name for entry in read_log(workdir) for name in entry}
    assert "rollouts/reward/answer" in names
    assert not [name for name in names if "V" in name or "passed" in name or "boxes" in name or "grounding" in name]
    assert "  V" not in told.partition("test split")[2]
    scores = [entry["sft/score"] for entry in read_log(workdir) if "sft/score" in entry]
    examples = [json.loads(line) for line in (workdir / "examples").glob("*.jsonl").__next__().read_text().splitlines()]
    assert "v_score" not in examples[0]
    assert 0 < max(scores) <= 1

    replies = str(workdir / "replies" / "grpo_test.jsonl")
    evaluate_replies([str(folder), replies, "--dialect=plain", "--out", str(tmp_path / "out"), "--num-resamples=20"])
    figures = json.loads((tmp_path / "out" / "metrics.json").read_text())["models"]["grpo_test"]["figures"]
    assert figures["a_score"]["mean"]["value"] == pytest.approx(found["test"]["grpo"]["A"])
    assert set(figures) == {"a_score", "format"}
    assert "V (" not in (tmp_path / "out" / "table.md").read_text()
    report([str(workdir), "--out", str(tmp_path / "page.html")])
    assert "true boxes</span>" not in (tmp_path / "page.html").read_text()

    (record,) = [record for record in read_vqa_records(folder).records if record.id == "4_1"]
    shown = {"modality": record.modality, "organ": record.organ}
    answered = sc.load(workdir).answer(folder / "4.png", record.question, kind="open", **shown)
    assert answered.answer in ("left", "right", "on the left", "on the right")
    assert "box" not in str(answered)
