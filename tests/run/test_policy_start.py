import dataclasses
import json
import shutil

import jax
import msgspec
import numpy as np
import pytest
from memory_store import put_workdir
from policies.policy_workdir import BEST, SIZES, make_policy_workdir
from refusals import refuse
from sections import section

from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.settings import load_settings, write_settings
from stepcot_jax.run.start import read_policy_start, refuse_seen_patients
from stepcot_jax.run.stored import PATIENTS_FILE, write_patients
from stepcot_jax.run.training_run import Run
from stepcot_jax.training.checkpoints import restore_params

TINY = {
    **SIZES,
    **section("grpo", batch_size=8, group_size=2, epochs=1, updates_per_epoch=1, learning_rate=1e-3),
    **section("evaluation", batch_size=8, num_resamples=10),
    "job": "grpo",
    "sft.batch_size": 8,
    "vqa.num_validated": 8,
}


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "run"
    _, _, params = make_policy_workdir(folder)
    return folder, params


def start_from(folder, **changes):
    return load_settings("base", **{**TINY, "policy.start": str(folder), **changes})


@pytest.mark.slow
def test_grpo_starts_from_the_last_phases_best_and_measures_from_there(before, tmp_path):
    folder, params = before
    report = Run(start_from(folder, **{"sft.epochs": 0}), tmp_path / "run").execute()
    assert set(report["best"]) == set(report["test"]) == {"grpo"}
    kept = restore_params(tmp_path / "run" / "checkpoints", 1)
    best = params[BEST["grpo"].step]
    jax.tree.map(np.testing.assert_array_equal, kept["reference"], best)
    same = jax.tree.leaves(jax.tree.map(np.array_equal, kept["policy"], best))
    assert not all(same)
    assert set(json.loads((tmp_path / "run" / PATIENTS_FILE).read_text())) == {"train", "val", "test"}
    words = [json.loads((each / "vocabulary.json").read_text()) for each in (folder, tmp_path / "run")]
    assert words[0] == words[1]


OTHERS = {
    "policy.width": 32, "policy.grid": 4, "image_encoder.image_size": 64, "policy.tokenizer": "elsewhere",
    "data.split_seed": 1,
}  # fmt: skip


def test_a_missing_start_and_other_sizes_tokenizers_and_splits_are_refused_by_name(before, tmp_path):
    refuse(r"^config\.policy\.start: .*nowhere.*no such folder", read_policy_start, start_from(tmp_path / "nowhere"))
    for key, value in OTHERS.items():
        refuse(rf"other values of config\.{key}; expected", read_policy_start, start_from(before[0], **{key: value}))
    other_phantoms = {"phantom.seed": 1, "phantom.num_cases": 40, "data.split_seed": 1}
    assert read_policy_start(start_from(before[0], **other_phantoms)).phase == "grpo"


def test_patients_that_the_start_has_learnt_from_are_refused(before, tmp_path):
    """The settings of the splits are the same, but the records of the folder have moved between them."""
    folder = shutil.copytree(before[0], tmp_path / "run")
    settings = start_from(folder)
    dataset = load_vqa_dataset(settings)
    write_patients(folder, dataset)
    refuse_seen_patients(settings, dataset)
    for split in ("val", "train"):
        places = getattr(dataset.splits, split)
        moved = dataclasses.replace(dataset, splits=dataclasses.replace(dataset.splits, test=places))
        of_test = {dataset.records[place].patient for place in places}
        found = rf"^config\.policy\.start: .*run has learnt from {len(of_test)} of the {len(of_test)} patients of this"
        said = refuse(found, refuse_seen_patients, settings, moved)
        assert not [patient for patient in of_test if patient in said]
    refuse_seen_patients(start_from(folder, **{"phantom.seed": 1}), moved)  # other phantoms
    # Neither may a run that starts from it.
    later = tmp_path / "later"
    later.mkdir()
    write_settings(later / "settings.json", settings)
    write_patients(later, dataset)
    (later / PATIENTS_FILE).write_text(json.dumps({"train": [], "val": [], "test": []}))
    refuse(found, refuse_seen_patients, start_from(later), moved)


def test_a_word_that_the_start_does_not_know_is_named(before, tmp_path, monkeypatch):
    from stepcot_jax.run import inputs

    load = inputs.load_vqa_dataset

    def load_with_a_new_word(settings, **more):
        dataset = load(settings, **more)
        first = msgspec.structs.replace(dataset.records[0], question="Is there a zebra?")
        return dataclasses.replace(dataset, records=(first, *dataset.records[1:]))

    monkeypatch.setattr(inputs, "load_vqa_dataset", load_with_a_new_word)
    words = r"config\.policy\.start: .*cannot write these records: .*' zebra' is not among"
    refuse(words, Run, start_from(before[0]), tmp_path / "run")


def test_a_start_may_be_on_a_store(before, tmp_path, monkeypatch):
    folder, params = before
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = read_policy_start(start_from(put_workdir(folder, monkeypatch)))
    jax.tree.map(np.testing.assert_array_equal, found.params, params[BEST["grpo"].step])
