"""Splits of questions: pictures in several splits, near-duplicates, and the validation part that a source lacks."""

import collections

import numpy as np
import pytest
from reasoning_records import make_record

from stepcot_jax.data.questions.question_splits import SEEN, SplitOptions, name_patients, note_shared, split_records
from stepcot_jax.data.questions.record_files import VqaCollection


def collect(tmp_path, members):
    """A collection of one question for each (picture, split); equal pictures have equal patients."""
    records = [
        make_record(id=f"q{k}", image=f"{k}.png", patient=f"picture-{picture}", split=split)
        for k, (picture, split) in enumerate(members)
    ]
    records = note_shared(records, tmp_path)
    return VqaCollection(tmp_path, tuple(records), lines=tuple(range(len(records))), folder=tmp_path, unit="record")


MEMBERS = [(k // 2, "test" if k % 5 == 0 else "train") for k in range(40)]
SHARED = {picture for picture, split in MEMBERS if split == "test"} & {p for p, split in MEMBERS if split == "train"}


@pytest.mark.parametrize("shared", ["keep", "drop"])
def test_shared_pictures_leave_training_where_a_setting_says_so_and_never_the_test_part(tmp_path, shared):
    collection = collect(tmp_path, MEMBERS)
    split = split_records(collection, SplitOptions(shared=shared, val_share=0.2))
    counts = collections.Counter(record.split for record in split)
    assert [r.id for r in split if r.split == "test"] == [r.id for r in collection.records if r.split == "test"]
    seen = {record.id for record in split if SEEN in record.facts}
    assert seen == {f"q{k}" for k, (picture, name) in enumerate(MEMBERS) if name == "test" and picture in SHARED}
    pictures = collections.defaultdict(set)
    for record in split:
        pictures[record.patient].add(record.split)
    if shared == "drop":
        assert all(len(names) == 1 for names in pictures.values())
        assert counts["train"] + counts["val"] == 32 - len(SHARED)
    else:
        assert counts["train"] + counts["val"] == 32
        assert not any({"train", "val"} <= names for names in pictures.values())


def test_val_share_is_said_and_taken_from_training_alone(tmp_path, caplog):
    members = [(k, "test" if k >= 100 else "train") for k in range(120)]
    split = split_records(collect(tmp_path, members), SplitOptions(val_share=0.05, fractions=(0.5, 0.4, 0.1)))
    assert collections.Counter(record.split for record in split) == {"train": 95, "val": 5, "test": 20}
    assert "no validation split: 5 of 100 training pictures become it (config.vqa.val_share=0.05)" in caplog.text


@pytest.mark.parametrize("named", [True, False])
def test_near_duplicates_stay_together_or_leave_training(tmp_path, named):
    rng = np.random.default_rng(0)
    members = [(k, ("test" if k % 4 == 0 else "train") if named else "") for k in range(40)]
    hashes = {f"{k}.png": value for k, value in enumerate(rng.integers(0, 2**63, 40, np.uint64))}
    hashes["7.png"] = hashes["8.png"] ^ np.uint64(0b101)  # two bits apart; 8 is a test picture
    collection, how = collect(tmp_path, members), SplitOptions(near_duplicate_radius=2, shared="drop")
    assert not any(SEEN in record.facts for record in collection.records)
    split = {record.id: record for record in split_records(collection, how, hashes=hashes)}
    if named:
        assert "q7" not in split
        assert len(split) == 39
        assert split["q8"].facts[SEEN] == "picture"
        apart = split_records(collection, SplitOptions(near_duplicate_radius=1, shared="drop"), hashes=hashes)
        assert len(apart) == 40
    else:
        assert split["q7"].split == split["q8"].split
        assert {record.split for record in split.values()} == {"train", "val", "test"}


def test_a_patient_that_nobody_names_is_the_pictures_content(tmp_path):
    for name, content in (("a.png", b"one"), ("b.png", b"one"), ("c.png", b"two")):
        (tmp_path / name).write_bytes(content)
    records = [make_record(id=name, image=name, patient=name) for name in ("a.png", "b.png", "c.png", "none.png")]
    records.append(make_record(id="named", image="a.png", patient="p"))
    named, number = name_patients(records, tmp_path)
    first, same, other, missing, kept = (record.patient for record in named)
    assert number == 4
    assert (first == same != other, missing, kept) == (True, "none.png", "p")
