import collections

import numpy as np
import pytest
from data.test_batches import PREPROCESSING
from refusals import refuse
from run.small_run import assert_same, final_state, kill_at_entry, small_run

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.pixels import PixelCache
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.record import Record
from stepcot_jax.run.inputs import choose_supervision
from stepcot_jax.run.settings import load_settings

NUM_TRAIN, NUM_CASES = 200, 260


def make_data():
    rng = np.random.default_rng(0)
    answers = np.stack([rng.integers(0, count, NUM_CASES) for count in DEFAULT_CHAIN.answers_per_step], axis=1)
    answers[5:25, 3] = NOT_ANNOTATED
    cases = [
        Record(patient=f"P{i // 3}", image=f"{i}.png", answers=tuple(row), reasoning=("",) * 7)
        for i, row in enumerate(answers.tolist())
    ]
    splits = Splits(tuple(range(NUM_TRAIN)), tuple(range(201, 230)), tuple(range(231, NUM_CASES)))
    return Dataset(DEFAULT_CHAIN, cases, splits, PixelCache(lambda i: None, budget_bytes=0), PREPROCESSING)


DATA = make_data()
BEFORE = DATA.labels


def choose(**changes):
    return choose_supervision(load_settings("plain", **{"data.split_seed": 5, **changes}), DATA)


def changed(data):
    """Whether each label of the training cases is another; those of other cases are not."""
    np.testing.assert_array_equal(data.labels[NUM_TRAIN:], BEFORE[NUM_TRAIN:])
    np.testing.assert_array_equal(data.training_targets, data.labels[:NUM_TRAIN])
    np.testing.assert_array_equal(data.labels[:NUM_TRAIN, -1], BEFORE[:NUM_TRAIN, -1])
    return data.labels[:NUM_TRAIN] != BEFORE[:NUM_TRAIN]


def test_a_part_of_the_training_cases_is_nested_and_by_patient_and_the_rest_as_ever():
    parts = [choose(**{"data.num_train": number}) for number in (30, 90, 200)]
    train = [set(part.splits.train) for part in parts]
    assert train[0] < train[1] < train[2] == set(range(NUM_TRAIN))
    for part, members, wanted in zip(parts, train, (30, 90, 200), strict=True):
        assert wanted <= len(members) <= wanted + 2  # of the last patient
        patients = {DATA.cases.patient_ids[case] for case in members}
        assert members == {case for case in range(NUM_TRAIN) if DATA.cases.patient_ids[case] in patients}
        assert (part.splits.val, part.splits.test) == (DATA.splits.val, DATA.splits.test)
        assert f"{len(members)} of 200 training cases (config.data.num_train)" in part.splits_source
    assert set(choose(**{"data.num_train": 30, "data.split_seed": 6}).splits.train) != train[0]
    refuse(r"config\.data\.num_train: 201 of 200 training cases", choose, **{"data.num_train": 201})


def test_shuffled_steps_keep_all_that_labels_say_of_each_other():
    shuffled = choose(**{"baseline.steps": "shuffled"})
    rows = changed(shuffled).any(axis=1)
    assert rows.all()  # no case keeps its own
    chains = [collections.Counter(map(tuple, labels[:NUM_TRAIN].tolist())) for labels in (BEFORE, shuffled.labels)]
    assert chains[0] == chains[1]
    assert choose(**{"baseline.steps": "shuffled"}).digest == shuffled.digest  # a function of the seed


def test_shares_of_training_labels_are_withheld_and_the_diagnosis_stays():
    some, more = (choose(**{"data.withhold_chains": share}) for share in (0.5, 0.8))
    hidden = [(part.labels[:NUM_TRAIN, :-1] == NOT_ANNOTATED).all(axis=1) for part in (some, more)]
    assert [cases.sum() for cases in hidden] == [100, 160]
    assert (hidden[0] <= hidden[1]).all()
    np.testing.assert_array_equal(changed(some), (BEFORE[:NUM_TRAIN] >= 0) & hidden[0][:, None] & (np.arange(7) < 6))
    singly = choose(**{"data.withhold_answers": 0.3})
    lost = changed(singly)
    assert (lost.sum(), lost[:, -1].any()) == (round(0.3 * (6 * NUM_TRAIN - 20)), False)
    assert (singly.labels[:NUM_TRAIN][lost] == NOT_ANNOTATED).all()
    assert lost.sum(axis=0)[:-1].min() > 30


@pytest.mark.slow
def test_a_run_with_its_own_number_of_updates_goes_on_to_the_same_bits(tmp_path, monkeypatch, capsys):
    changes = {
        "training__updates_per_epoch": 6, "data__num_train": 20, "data__withhold_answers": 0.3, "seed": 2,
        "training__teacher_epochs": 0, "training__joint_epochs": 2, "training__schedule": "cosine",
    }  # fmt: skip
    whole = final_state(small_run(tmp_path / "whole", monkeypatch, **changes), monkeypatch)
    assert int(whole[1].step) == 12  # 20 cases in batches of 8: each is drawn nearly five times
    assert {int(best.step) for best in whole[2].values()} <= {6, 12}
    killed = small_run(tmp_path / "killed", monkeypatch, training__checkpoint_minutes=1e-9, **changes)
    assert kill_at_entry(killed, 10, monkeypatch) == 8
    found = final_state(small_run(tmp_path / "killed", monkeypatch, **changes), monkeypatch)
    assert "resuming from step 8" in capsys.readouterr().err
    assert_same(found[1], whole[1])
    assert (found[0]["test"], found[2]) == (whole[0]["test"], whole[2])
