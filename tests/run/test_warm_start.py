import dataclasses
import json

import numpy as np
import pytest
from memory_store import objects, put_workdir
from refusals import refuse
from run.small_run import first_params, small_run, small_settings, train

from stepcot_jax.chain import DEFAULT_CHAIN, Chain
from stepcot_jax.extras.cloud.stores import StoreFolder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run import loading, start
from stepcot_jax.run.settings import write_settings
from stepcot_jax.run.start import read_warm_start
from stepcot_jax.training.checkpoints import Best
from stepcot_jax.training.state import flatten

pytestmark = pytest.mark.slow
FRESH = 1
"""Place of the step that only the new chain has."""

CHANGES = {"phantom__num_cases": 150, "training__given_answers": "none", "training__joint_epochs": 0}


@pytest.fixture
def other_chain(monkeypatch):
    """Phantoms whose last step but one, and last answer, have other names than in the run that is the start."""
    steps = list(DEFAULT_CHAIN.steps)
    steps[-2] = dataclasses.replace(steps[-2], name="Texture")
    steps[-1] = dataclasses.replace(steps[-1], options=(*steps[-1].options[:-1], "Fracture"))
    monkeypatch.setattr(loading, "DEFAULT_CHAIN", Chain(tuple(steps)))


def test_weights_are_those_of_the_other_run_and_other_steps_are_fresh(trained, other_chain, tmp_path, monkeypatch):
    plain = first_params(small_run(tmp_path / "plain", monkeypatch, **CHANGES), monkeypatch)
    warm = small_run(tmp_path / "warm", monkeypatch, **CHANGES, start__checkpoint=str(trained.workdir))
    found = first_params(warm, monkeypatch)
    step = trained.report["best"]["teacher"]["step"]
    there = {path: np.asarray(leaf) for path, leaf in flatten(trained.states[step]).items()}
    assert found.keys() == there.keys() == plain.keys()
    last = FRESH + 1
    for path, leaf in found.items():
        if f"classifier_{FRESH}/" in path or f"head_{FRESH}/" in path or path.startswith("plain/"):
            np.testing.assert_array_equal(leaf, plain[path])
        elif f"classifier_{last}/" in path or f"head_{last}/" in path:
            np.testing.assert_array_equal(leaf[..., :-1], there[path][..., :-1])
            np.testing.assert_array_equal(leaf[..., -1], plain[path][..., -1])
        elif path.startswith(("teacher/heads/", "teacher/image_projections/")):
            np.testing.assert_array_equal(leaf[FRESH], plain[path][FRESH])
            others = np.arange(len(leaf)) != FRESH
            np.testing.assert_array_equal(leaf[others], there[path][others])
        else:
            np.testing.assert_array_equal(leaf, there[path])
    assert any(np.any(there[path] != leaf) for path, leaf in plain.items())
    written = json.loads((tmp_path / "warm" / "start.json").read_text())
    assert written["fresh"] == ["network plain", "step 'Texture'", "answers of 'Diagnosis': Fracture"]
    assert "Texture" not in written["steps_taken_over"]
    assert 0 < written["numbers_taken_over"] < written["numbers"] == sum(leaf.size for leaf in found.values())


def test_a_run_whose_start_was_on_a_store_resumes_without_it(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    address = put_workdir(trained.workdir, monkeypatch)
    changes = {**CHANGES, "start__checkpoint": address}
    best = train(small_run(tmp_path / "warm", monkeypatch, **changes), monkeypatch)
    StoreFolder(address).remove(objects(address))
    assert train(small_run(tmp_path / "warm", monkeypatch, **changes), monkeypatch) == best
    with pytest.raises(BadInput, match=rf"^config\.start\.checkpoint: {address}: holds no files"):
        small_run(tmp_path / "new", monkeypatch, **changes)
    lost = small_run(tmp_path / "chained", monkeypatch, **CHANGES, start__checkpoint=str(tmp_path / "warm"))
    assert lost.task.start.notes[0].startswith(f"an earlier start cannot be read ({address}: holds no files")


def test_a_start_that_cannot_be_used_is_named(trained, tmp_path):
    def read(folder, **changes):
        return read_warm_start(small_settings(**{**CHANGES, **changes}, start__checkpoint=str(folder)))

    refuse(r"config.start.checkpoint: .*nowhere is not a folder; expected the workdir", read, tmp_path / "nowhere")
    notes = read(trained.workdir, prompts__template="{question}").notes
    assert notes == ("config.prompts.template differs: its inputs were made otherwise",)
    write_settings(tmp_path / "settings.json", small_settings(job="baseline"))
    refuse(r"trained no teacher \(config.job='baseline'\)", read, tmp_path)


def test_a_start_from_a_plain_run_is_its_best_update(tmp_path, monkeypatch):
    write_settings(tmp_path / "settings.json", small_settings(job="baseline", baseline__form="heads"))
    monkeypatch.setattr(start, "read_reading", lambda workdir: None)
    monkeypatch.setattr(start, "read_best", lambda folder: (9, {"plain": Best(0.5, 4)}))
    assert read_warm_start(small_settings(**CHANGES, start__checkpoint=str(tmp_path))).step == 4


def test_images_by_which_the_start_chose_its_weights_are_refused(trained):
    settings = small_settings(**CHANGES, start__checkpoint=str(trained.workdir))
    dataset = trained.run.task.open_test().inputs.dataset
    val = dataset.splits.val
    moved = dataclasses.replace(dataset, splits=dataclasses.replace(dataset.splits, val=(), test=val))
    with pytest.raises(BadInput, match=rf"has learnt from {len(val)} images of this run's test patients"):
        read_warm_start(settings).refuse_seen_cases(settings, moved)


def test_test_cases_that_the_start_has_learnt_from_are_refused(trained, tmp_path, monkeypatch):
    def make(name, **changes):
        return small_run(tmp_path / name, monkeypatch, **{**CHANGES, **changes})

    source = str(trained.workdir)
    with pytest.raises(BadInput, match=r"has learnt from \d+ images of this run's test patients \(first 'images/"):
        make("split", data__split_seed=3, start__checkpoint=source)
    before = make("before", start__checkpoint=source)
    train(before, monkeypatch)
    (before.workdir / "splits.json").unlink()
    with pytest.raises(BadInput, match=f"{source} has learnt from"):  # by way of the run between
        make("chained", data__split_seed=3, start__checkpoint=str(before.workdir))
    assert make("other images", data__split_seed=3, phantom__seed=1, start__checkpoint=source).task.start.notes == ()
    unknown = make("unknown", start__checkpoint=str(before.workdir)).task.start.notes
    assert [note.partition(" does not say")[0] for note in unknown] == [str(before.workdir)]
