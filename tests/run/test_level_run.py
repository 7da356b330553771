"""Figure 3: a Qwen2.5-VL of two layers is fine-tuned by levels, and `constrain` asks it before and after."""

import json

import pytest
from policies.qwen.tiny_qwen import write_reader
from refusals import refuse
from run.small_qwen_run import settings_of
from run.small_run import read_log

from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.export.qwen_folder import export_qwen
from stepcot_jax.reading.cases import open_run
from stepcot_jax.run.training_run import Run
from stepcot_jax.tools.constrain.command import main as constrain

CHANGES = {
    "vqa.source": "folder", "vqa.dialect": "levels", "vqa.levels": (0, 1, 2), "vqa.level_forms": ("true",),
    "vqa.num_validated": 2, "policy.longest_reply": 400, "sft.epochs": 2,
}  # fmt: skip


@pytest.mark.slow
def test_constrain_asks_the_test_patients_before_and_after(tmp_path, capsys):
    data, before, workdir = tmp_path / "data", tmp_path / "before", tmp_path / "run"
    export_phantom(data, num_cases=24, seed=0, size=32, prevalence="flat")
    write_reader(before, max_pixels=4096)
    run = Run(settings_of("sft", before, **CHANGES, **{"vqa.root": str(data)}), workdir)
    run.execute()
    losses = [entry["sft/loss"] for entry in read_log(workdir) if "sft/loss" in entry]
    assert losses[-1] < losses[0] - 1
    export_qwen(workdir, tmp_path / "after")
    patients = json.loads((workdir / "records" / "patients.json").read_text())
    few = ["--levels=0,1", "--variants=constraints", "--image-size=32", "--max-answer-tokens=4", "--num-resamples=20"]
    for name in ("before", "after"):
        out = str(tmp_path / f"of_{name}")
        constrain(["--workdir", str(workdir), "--local", str(tmp_path / name), "--out", out, *few])
    replies = [(tmp_path / f"of_{name}" / "replies.jsonl").read_text().splitlines() for name in ("before", "after")]
    asked = [[(line["case"], line["level"]) for line in map(json.loads, lines)] for lines in replies]
    assert asked[0] == asked[1]
    cases = open_run(workdir, "test").cases
    assert {case.patient for case in cases} == set(patients["test"])
    assert sorted({case for case, _ in asked[0]}) == sorted(case.image for case in cases)
    assert replies[0] != replies[1]
    assert {case.patient for case in open_run(workdir, "val").cases} == set(patients["val"])
    export_phantom(tmp_path / "other", num_cases=2, size=32, seed=3)
    records = json.loads((tmp_path / "other" / "data.json").read_text())
    for record in records:
        record["patient_id"] = "another"
    (tmp_path / "other" / "data.json").write_text(json.dumps(records))
    refuse(r"no case of a patient in the test split", open_run, workdir, "test", root=tmp_path / "other")
