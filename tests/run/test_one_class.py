import json

import numpy as np
import pytest
from PIL import Image
from run.small_run import small_run

DIAGNOSES = {"train": ("Normal", "Nodule") * 8, "val": ("Nodule",), "test": ("Mass",)}


@pytest.mark.slow
def test_a_run_with_such_splits_ends_with_null(tmp_path, monkeypatch, capsys):
    rows = ["image,patient_id,split,diagnosis"]
    draw = np.random.default_rng(0)
    for split, diagnoses in DIAGNOSES.items():
        for number, diagnosis in enumerate(diagnoses):
            name = f"{split}{number}.png"
            Image.fromarray(draw.integers(0, 255, (32, 32), np.uint8)).save(tmp_path / name)
            rows.append(f"{name},{name[:-4]},{split},{diagnosis}")
    (tmp_path / "cases.csv").write_text("\n".join(rows))
    changes = {"data__source": "folder", "data__root": str(tmp_path), "training__teacher_epochs": 0}
    report = small_run(tmp_path / "run", monkeypatch, **changes, training__joint_epochs=1).execute()
    assert all(figures["mean_accuracy"] is None for figures in report["test"].values())
    entries = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert entries[-1]["kind"] == "test"
    assert entries[-1]["teacher/mean_accuracy"] is None
    assert "NaN" not in (tmp_path / "run" / "statistics.json").read_text()
    assert "every test case has the same answer at Detection" in capsys.readouterr().out
