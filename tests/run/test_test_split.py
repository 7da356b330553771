import dataclasses
import hashlib
import json

import jax
import msgspec
import numpy as np
import pytest
from run import small_policy_run, small_run

from stepcot_jax.box import Box
from stepcot_jax.data.dataset import TestSplitClosed
from stepcot_jax.data.images.pixels import PixelCache
from stepcot_jax.run import chain_task, inputs
from stepcot_jax.run.training_run import Run
from stepcot_jax.systems.grpo import Rollouts
from stepcot_jax.training.checkpoints import restore_params, saved_steps

pytestmark = pytest.mark.slow


class NoisyPixels(PixelCache):
    def __init__(self, whole, noisy):
        self.whole, self.noisy = whole, frozenset(noisy)

    def compact(self, index):
        pixels = self.whole.compact(index)
        if index not in self.noisy:
            return pixels
        return np.random.default_rng(index).integers(0, 256, pixels.shape, np.uint8)


def with_noise(inputs):
    """Inputs of a run whose test cases have random answers and pictures."""
    dataset, rng = inputs.dataset, np.random.default_rng(0)
    labels, test = dataset.labels.copy(), list(dataset.splits.test)
    labels[test] = np.stack([rng.integers(-1, n, len(test)) for n in dataset.chain.answers_per_step], axis=1)
    labels[labels == -1] = -100
    pixels = NoisyPixels(dataset.pixels, test)
    noisy = dataclasses.replace(
        dataset, cases=dataset.cases.with_labels(labels, dataset.cases.uncertain), pixels=pixels
    )
    return dataclasses.replace(inputs, dataset=noisy)


def with_noisy_records(dataset):
    """Records of which those of the test split have other answers, boxes and thinking; pictures are noise."""
    records, rng = list(dataset.records), np.random.default_rng(0)
    for place in dataset.splits.test:
        record, thinking = records[place], f"Noise {place}."
        answer = {
            "closed": "No" if record.answer == "Yes" else "Yes",
            "single": str(rng.choice(list(record.letters or "A"))),
            "multi": tuple(record.letters[:2]),
            "open": f"noise {place}",
        }[record.kind]
        x, y = rng.integers(0, 8, 2).tolist()
        references = (Box("noise", (x, y, x + 5, y + 7)),)
        records[place] = msgspec.structs.replace(
            record, answer=answer, references=references, thinking=thinking, synonyms=()
        )
    pixels = NoisyPixels(dataset.pixels, dataset.image_of[list(dataset.splits.test)].tolist())
    return dataclasses.replace(dataset, records=tuple(records), pixels=pixels)


def reward_records(rollouts, replies):
    """Rewards that depend on everything of the record that a reward may see."""
    del rollouts
    seen = [
        (int(tokens.sum()), record.answer, [box.corners for box in record.references]) for record, tokens in replies
    ]
    totals = [hashlib.sha256(repr(each).encode()).digest()[0] / 255 for each in seen]
    return dict.fromkeys(("answer", "grounding", "total"), totals)


FILES = ("calibration.json", "pairs.json", "joint.json", "gate.npz", "normal_picture.npz", "vocabulary.json",
         "policy.json")  # fmt: skip


def decided(workdir):
    folder = workdir / "checkpoints"
    found = {
        f"{step}{jax.tree_util.keystr(path)}": leaf.tobytes()
        for step in saved_steps(folder)
        for path, leaf in jax.tree_util.tree_flatten_with_path(restore_params(folder, step))[0]
    }
    found |= {name: (workdir / name).read_bytes() for name in FILES if (workdir / name).is_file()}
    if "calibration.json" in found:  # beside what was fitted it has the errors measured on the test split
        found["calibration.json"] = json.dumps(json.loads(found["calibration.json"]) | {"errors": {}})
    report = json.loads((workdir / "report.json").read_text())
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    found["log"] = json.dumps([line for line in lines if line["kind"] != "test" and line.pop("cases_per_second", 1)])
    found["best"], points = report["best"], workdir / "points.json"
    found["heads"] = report.get("heads", {}).get("l2")
    for model, steps in (json.loads(points.read_text())["models"] if points.is_file() else {}).items():
        for step, points in steps.items():
            for answer, point in points.items():
                found["threshold", model, step, answer] = point["threshold"], point["validation"]
    records = workdir / "records" / "test.jsonl"
    return found, (report["test"], records.read_bytes() if records.is_file() else b"")


def compare(run, tmp_path, noise):
    run(tmp_path / "plain")
    noise()
    small_run.PROGRAMS.clear()  # a program may hold numbers that were counted in labels, such as class weights
    run(tmp_path / "noisy")
    (plain, tested), (noisy, of_noise) = (decided(tmp_path / name) for name in ("plain", "noisy"))
    assert plain.keys() == noisy.keys()
    for name, value in plain.items():
        assert noisy[name] == value, name
    assert of_noise != tested  # else the noise did not reach the evaluation
    return plain


SHORT = {"phantom__num_cases": 60, "evaluation__gate_false_alarms": 0.3}
CHAIN_JOBS = {
    "teacher": {"training__teacher_job_epochs": 2},
    "distill": {"training__teacher_epochs": 0, "training__joint_epochs": 2, "data__fold": "2/5",
                "training__given_answers": "random", "data__sampling": "inverse_frequency",
                "loss__class_weights": "inverse_frequency"},
    "baseline": {"baseline__epochs": 2},
}  # fmt: skip


@pytest.mark.parametrize("job", CHAIN_JOBS)
def test_networks(tmp_path, monkeypatch, job):
    def add_noise():
        load = chain_task.load_inputs
        monkeypatch.setattr(chain_task, "load_inputs", lambda *a, **k: with_noise(load(*a, **k)))

    changes = {**SHORT, "job": job, **CHAIN_JOBS[job]}
    found = compare(lambda folder: small_run.small_run(folder, monkeypatch, **changes).execute(), tmp_path, add_noise)
    assert {"calibration.json", "pairs.json", "gate.npz"} <= found.keys()
    assert ("joint.json" in found) == (job != "baseline")
    assert any(name[0] == "threshold" for name in found if isinstance(name, tuple))


@pytest.mark.parametrize(
    "changes",
    [
        {"job": "grpo", "sft__epochs": 1, "grpo__updates_per_epoch": 2, "vqa__dialect": "lvkc",
         "self_check__enabled": True},
        {"job": "sft", "sft__epochs": 2, "sft__pack_length": 0, "curriculum__schedule": "mixed"},
    ],
    ids=lambda changes: changes["job"],
)  # fmt: skip
def test_policies(tmp_path, monkeypatch, changes):
    def add_noise():
        load = inputs.load_vqa_dataset
        monkeypatch.setattr(inputs, "load_vqa_dataset", lambda *a, **k: with_noisy_records(load(*a, **k)))

    monkeypatch.setattr(Rollouts, "reward_all", reward_records)
    settings = small_policy_run.small_settings(**changes)
    found = compare(lambda workdir: Run(settings, workdir).execute(), tmp_path, add_noise)
    assert {"vocabulary.json", "best"} <= found.keys()


def test_the_feed_of_a_training_has_no_test_split(tmp_path, monkeypatch):
    """Not even the rows: what fits or chooses asks the task's feed."""
    task = small_run.small_run(tmp_path, monkeypatch, phantom__num_cases=60).task
    assert task.feed.inputs is task.inputs
    assert task.feed.sample_rows("val", 2)["labels"].shape[0] == 2
    with pytest.raises(TestSplitClosed):
        task.feed.sample_rows("test", 2)
    assert task.open_test().sample_rows("test", 2)["labels"].shape[0] == 2
