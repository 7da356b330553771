"""Questions and boxes as people have them, by the commands that people type: from files to scored replies."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

ROOT = pathlib.Path(__file__).parents[1]
TINY = (
    "--config.image_encoder.image_size=32", "--config.policy.grid=4", "--config.policy.encoder_widths=(8,16)",
    "--config.policy.width=32", "--config.policy.num_layers=1", "--config.policy.num_heads=2",
    "--config.policy.head_width=16", "--config.policy.mlp_width=64", "--config.evaluation.num_resamples=20",
)  # fmt: skip
pytestmark = pytest.mark.slow


def call(*command):
    """Run a command of the package in a process of its own, and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    words = [sys.executable, "-m", *map(str, command)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-4000:])
    return done.stdout


def write_slake(root):
    """40 pictures with a bright half in three splits, English and Chinese questions, and a blank answer."""
    rng, files = np.random.default_rng(0), {"train": [], "validation": [], "test": []}
    for number in range(40):
        name, is_left = f"xmlab{number}", bool(rng.integers(2))
        pixels = rng.integers(0, 60, (48, 48), np.uint8)  # no two are equal
        pixels[:, slice(0, 24) if is_left else slice(24, 48)] += 180
        (root / "imgs" / name).mkdir(parents=True)
        Image.fromarray(pixels).save(root / "imgs" / name / "source.jpg")
        rows = files["train" if number < 24 else "validation" if number < 30 else "test"]
        of_picture = {"img_name": f"{name}/source.jpg", "content_type": "Position", "base_type": "vqa"}
        of_picture |= {"modality": ("CT", "MRI")[number % 2], "location": ("Abdomen", "Brain_Tissue")[number % 2]}
        side = "Left" if is_left else "Right"
        asked = [
            ("Is it bright on the left?", "Yes" if is_left else "No", "CLOSED", "en"),
            ("Which side is bright, left or right?", side, "CLOSED", "en"),
            ("Where is it bright?", f"The {side.lower()} half", "OPEN", "en"),
            ("左边亮吗", "是" if is_left else "否", "CLOSED", "zh"),
        ]
        if number == 0:
            asked.append(("What is it?", " ", "OPEN", "en"))
        for question, answer, kind, language in asked:
            about = {"question": question, "answer": answer, "answer_type": kind, "q_lang": language}
            rows.append({"qid": f"{number}{len(rows):03}", **of_picture, **about})
    for split, rows in files.items():
        (root / f"{split}.json").write_text(json.dumps(rows))


def write_coco(root):
    """24 dark pictures, each with one bright box of one of two classes."""
    rng, images, annotations = np.random.default_rng(1), [], []
    (root / "annotations").mkdir(parents=True)
    for number in range(24):
        x, y, kind = int(rng.integers(4, 36)), int(rng.integers(4, 36)), number % 2
        pixels = np.full((64, 64), 30, np.uint8)
        pixels[y : y + 16, x : x + 16] = (150, 250)[kind]
        images.append({"id": number, "file_name": f"{number}.png", "width": 64, "height": 64})
        annotations.append({"id": number, "image_id": number, "category_id": kind + 1, "bbox": [x, y, 16, 16]})
        Image.fromarray(pixels).save(root / f"{number}.png")
    categories = [{"id": 1, "name": "nodule"}, {"id": 2, "name": "mass"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations" / "instances.json").write_text(json.dumps(content))


def test_from_slake_to_scored_replies(tmp_path):
    data, run, replies = tmp_path / "slake", tmp_path / "run", tmp_path / "replies.jsonl"
    write_slake(data)
    call("stepcot_jax", "data", "check", data, "--on-bad-record=skip", f"--json={tmp_path / 'facts.json'}")
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert (facts["layout"], facts["records"] - facts["set_aside"]) == ("slake", 120)
    call(
        "stepcot_jax.main", "--config=base", f"--workdir={run}", "--config.job=sft", "--config.vqa.source=folder",
        f"--config.vqa.root={data}", "--config.vqa.dialect=plain", "--config.vqa.with_thinking=False",
        "--config.data.on_bad_record=skip", "--config.sft.epochs=10", "--config.sft.batch_size=4",
        "--config.sft.learning_rate=0.01", *TINY,
    )  # fmt: skip
    report = json.loads((run / "report.json").read_text())
    assert (report["num_questions"], report["num_patients"]) == (30, 10)
    asked = ("stepcot_jax", "answer", f"--questions={data}", f"--out={replies}", "--on-bad-record=skip")
    call(*asked, f"--checkpoint={run}")
    lines = [json.loads(line) for line in replies.read_text().splitlines()]
    assert len(lines) == 30
    scores = tmp_path / "scores"
    call(
        "stepcot_jax", "evaluate_replies", data, replies, "--dialect=plain", "--on-bad-record=skip",
        f"--out={scores}", "--num-resamples=20",
    )  # fmt: skip
    written = json.loads((scores / "metrics.json").read_text())
    assert len(written["records"]["sha256"]) == 64  # of several files
    figures = written["models"]["replies"]["figures"]
    mean = figures["a_score"]["mean"]["value"]
    assert mean == pytest.approx(report["test"]["sft"]["A"])
    assert mean > report["baseline"]["A"] + 0.2
    assert set(figures) == {"a_score", "format"}  # none of boxes


def test_from_coco_to_a_curriculum(tmp_path):
    data, views, run = tmp_path / "coco", tmp_path / "views", tmp_path / "run"
    write_coco(data)
    call("stepcot_jax", "data", "check", data, "--layout=coco")
    call("stepcot_jax", "annotate", "vqa", data, "--task=medclm", f"--out={views}")
    records = [json.loads(line) for line in (views / "records.jsonl").read_text().splitlines()]
    stages = [record["provenance"]["stage"] for record in records]
    assert {stage: stages.count(stage) for stage in set(stages)} == dict.fromkeys(("easy", "medium", "hard"), 24)
    call(
        "stepcot_jax.main", "--config=medclm", f"--workdir={run}", f"--config.vqa.root={views}",
        "--config.policy.weights=", "--config.training.compute_dtype=float32", "--config.parallel.remat=False",
        "--config.sft.epochs=3", "--config.sft.batch_size=4", "--config.curriculum.schedule=epochs",
        "--config.curriculum.shares=(0.34,0.33,0.33)", "--config.training.log_every=1", *TINY,
    )  # fmt: skip
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    updates = [entry for entry in log if "sft/loss" in entry]
    assert np.isfinite([entry["sft/loss"] for entry in updates]).all()
    for epoch, stage in enumerate(("easy", "medium", "hard")):
        shown = [entry[f"curriculum/{stage}"] for entry in updates if entry["epoch"] == epoch]
        assert len(shown) >= 3
        assert set(shown) == {1.0}
    assert json.loads((run / "report.json").read_text())["num_questions"] > 0
