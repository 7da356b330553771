import dataclasses
import json
import shutil

import msgspec
import numpy as np
import pytest
from PIL import Image
from refusals import refuse
from run.small_policy_run import small_settings
from run.small_run import read_log

from stepcot_jax.data.questions.record_files import read_vqa_records, write_vqa_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.policies import policy_files
from stepcot_jax.reasoning.dialects import write_reply
from stepcot_jax.run import inputs, policy_task
from stepcot_jax.run.training_run import Run
from stepcot_jax.tools.data.command import main as data_command
from stepcot_jax.tools.evaluate_replies.command import main as evaluate_replies

BRIEF = {"job": "sft", "sft__epochs": 1, "vqa__num_validated": 1}


def refused(workdir, message, **changes):
    refuse(message, Run, small_settings(**changes), workdir)
    assert not (workdir / "checkpoints").exists()


BATCH, EMPTY = r"batch_size: 6 is not a multiple of 4 \(4 devices", {"sft__epochs": 0, "grpo__epochs": 0}


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (rf"^config.sft.{BATCH}", {"sft__batch_size": 6, "parallel__num_devices": 4}),
        (rf"^config.grpo.{BATCH}", {"grpo__batch_size": 6, "parallel__num_devices": 4}),
        (r"^config.sft.epochs: 0 with config.job='sft'.*nothing to train", {"job": "sft", **EMPTY}),
        (r"^config.sft.epochs: 0 with config.job='grpo'.*nothing to train", {"job": "grpo", **EMPTY}),
    ],
)
def test_a_run_that_cannot_train_is_refused_before_loading(tmp_path, monkeypatch, message, changes):
    monkeypatch.setattr(inputs, "load_vqa_dataset", None)
    refused(tmp_path, message, **changes)


def test_a_limit_that_cuts_every_reply_is_refused_and_one_that_cuts_some_is_said(tmp_path):
    refused(tmp_path, r"^config.policy.longest_reply: 5 tokens cut every training reply", policy__longest_reply=5)
    whole = Run(small_settings(**BRIEF), tmp_path / "whole").task
    assert "cuts" not in whole.describe_data()
    lengths = sorted(len(record.target) for record in whole.tokens.encoded.values())
    middle = lengths[len(lengths) // 2]
    cut = Run(small_settings(policy__longest_reply=middle, **BRIEF), tmp_path / "cut").task
    number = sum(length > middle for length in lengths)
    assert 0 < number < len(lengths)
    assert f"replies up to {middle} (config.policy.longest_reply cuts {number} of {len(lengths)}" in cut.describe_data()


def test_no_word_of_a_held_out_answer_is_in_the_vocabulary(tmp_path):
    task = Run(small_settings(**BRIEF, vqa__with_thinking=True), tmp_path).task
    counted = inputs.count_vocabulary(task.settings, task.dataset)
    for split, is_same in (("val", True), ("test", True), ("train", False)):
        records, index = list(task.dataset.records), getattr(task.dataset.splits, split)[0]
        records[index] = msgspec.structs.replace(records[index], thinking=40 * "Zygomycosis ")
        other = inputs.count_vocabulary(task.settings, dataclasses.replace(task.dataset, records=tuple(records)))
        assert (other.pieces == counted.pieces) == is_same, split


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("vqa") / "out"
    data_command(["vqa", str(out), "--num-cases=30", "--size=64"])
    return out


def of_folder(root, **changes):
    return small_settings(vqa__source="folder", vqa__root=str(root), **BRIEF, **changes)


@pytest.mark.parametrize("splits", [("val", "test"), ("train", "val"), ("train",)])
def test_a_split_without_records_is_refused(folder, tmp_path, splits):
    records = [record for record in read_vqa_records(folder).records if record.split in splits]
    shutil.copytree(folder / "images", tmp_path / "images")
    write_vqa_records(tmp_path / "records.jsonl", records)
    missing = next(name for name in ("train", "val", "test") if name not in splits)
    refuse(f"split '{missing}' has no record; expected at least one", Run, of_folder(tmp_path), tmp_path / "run")


@pytest.fixture(scope="module")
def of_a_folder(folder, tmp_path_factory):
    """The workdir of a finished run on a folder, with one validated question and mostly true replies."""

    def reply(task, params, indices, data):
        del task, params
        records = [data.dataset.records[index] for index in indices]
        texts = [write_reply(record, "gemex") for record in records]
        return [text[: len(text) // 2] if place % 3 == 0 else text for place, text in enumerate(texts)]

    workdir = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_task.PolicyTask, "reply", reply)
        Run(of_folder(folder), workdir).execute()
    return workdir


def test_the_command_that_scores_replies_gives_the_figures_of_the_run(of_a_folder, tmp_path, capsys):
    workdir = of_a_folder
    files = [str(workdir / "records" / "test.jsonl"), str(workdir / "replies" / "sft_test.jsonl")]
    evaluate_replies([*files, "--out", str(tmp_path / "out"), "--num-resamples", "20"])
    capsys.readouterr()
    figures = json.loads((tmp_path / "out" / "metrics.json").read_text())["models"]["sft_test"]["figures"]
    own = json.loads((workdir / "report.json").read_text())["test"]["sft"]
    named = {
        "A": ("a_score", "mean"), "A_single": ("a_score", "single"), "V": ("v_score", "all"),
        "V_findings": ("v_score", "findings"), "passed": ("grounding", "all"), "well_formed": ("format", "all"),
    }  # fmt: skip
    assert {name: figures[first][second]["value"] for name, (first, second) in named.items()} == {
        name: own[name] for name in named
    }
    assert all(0 < own[name] < 1 for name in named)
    (score,) = (entry for entry in read_log(of_a_folder) if entry["kind"] == "val")
    assert 0 <= score["sft/score"] <= 1  # of one validated question


@pytest.mark.parametrize("change", ["word", "split", "picture"])
def test_other_data_are_refused_on_resuming(folder, of_a_folder, tmp_path, change):
    workdir, records = tmp_path / "run", list(read_vqa_records(folder).records)
    shutil.copytree(of_a_folder, workdir)
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    try:
        if change == "word":
            records[0] = msgspec.structs.replace(records[0], question=f"{records[0].question} Zygomycosis")
        elif change == "split":
            patient = next(record.patient for record in records if record.split == "train")
            records = [
                msgspec.structs.replace(each, split="val") if each.patient == patient else each for each in records
            ]
        else:
            path = folder / records[0].image
            pixels = np.array(Image.open(path))
            Image.fromarray(255 - pixels).save(path)
        write_vqa_records(folder / "records.jsonl", records)
        with pytest.raises(BadInput, match="records, images or splits differ from those the run started with"):
            Run(of_folder(folder), workdir).execute()
    finally:
        for path, content in kept.items():
            path.write_bytes(content)
    before = {path.relative_to(of_a_folder): path.read_bytes() for path in of_a_folder.glob("*.json*")}
    assert {path.relative_to(workdir): path.read_bytes() for path in workdir.glob("*.json*")} == before


class Letters:
    num_words, pad, stop, more_stops, closed = 2**16, 0, 1, (), None

    def __init__(self, is_lossy):
        self.is_lossy = is_lossy

    def encode(self, text):
        return [ord(letter) for letter in (text.lower() if self.is_lossy else text)]

    encode_prompt = encode

    def decode(self, tokens):
        return "".join(map(chr, tokens[: tokens.index(1)] if 1 in tokens else tokens))


def test_a_tokenizer_that_changes_replies_is_refused(tmp_path, monkeypatch):
    settings = small_settings(policy__tokenizer="letters", **BRIEF)
    monkeypatch.setattr(policy_files, "load_pretrained", lambda name: Letters(False))
    assert Run(settings, tmp_path / "letters").task.lengths.num_words == Letters.num_words
    monkeypatch.setattr(policy_files, "load_pretrained", lambda name: Letters(True))
    with pytest.raises(BadInput, match=r"^config.policy.tokenizer: decoding changes the reply of record 'phantom_"):
        Run(settings, tmp_path / "lossy")
