"""Uncertain answers: what each setting makes of them in training, and that no figure takes them for the truth."""

import dataclasses
import json

import numpy as np
import pytest
from data.records.test_records import NAMES, change_step, make_record, read, refusal, root, write
from data.test_batches import PREPROCESSING
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuse

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.batches import evaluation_batches, training_batches
from stepcot_jax.data.check import CheckOptions, check_root
from stepcot_jax.data.columns import RecordTable
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.pixels import PixelCache
from stepcot_jax.data.records.records import read_records, write_records
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.data.statistics import compute_statistics
from stepcot_jax.data.uncertain import UncertainAnswers, make_targets
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.record import Record
from stepcot_jax.run.run_checks import check_annotated
from stepcot_jax.tools.data.statistics import UNCERTAIN_NAME, write_tables

__all__ = ["root"]  # a fixture

NO = NOT_ANNOTATED
CHAIN = Chain((Step("Detection", "?", ("Yes", "No abnormality")), Step("Zone", "?", ("Upper", "Lower", "N/A"))))
LABELS = np.array([[0, NO], [NO, 1], [1, 2], [NO, NO]])
UNCERTAIN = np.array([[NO, 0], [0, NO], [NO, NO], [NO, 1]])


def targets(treatment, weight=0.5, chain=CHAIN):
    return make_targets(labels=LABELS, uncertain=UNCERTAIN, chain=chain, rule=UncertainAnswers(treatment, weight))


HARD = {
    "ignore": [[0, NO], [NO, 1], [1, 2], [NO, NO]],
    "positive": [[0, 0], [0, 1], [1, 2], [NO, 1]],
    "negative": [[0, 2], [1, 1], [1, 2], [NO, 2]],
}


@pytest.mark.parametrize(("treatment", "expected"), HARD.items())
def test_hard_treatments(treatment, expected):
    found = targets(treatment)
    assert (found.labels.tolist(), found.labels.dtype, found.distributions) == (expected, np.int32, None)


@given(st.floats(0, 1, width=32))
def test_soft_targets_share_between_the_answer_and_the_negative_option(weight):
    found = targets("soft", weight).distributions
    certain = LABELS >= 0
    for label, own in zip(LABELS[certain], found[certain], strict=True):
        assert own.tolist() == (np.arange(3) == label).tolist()
    np.testing.assert_allclose(found[0, 1], [weight, 0, 1 - weight], atol=1e-6)
    np.testing.assert_allclose(found[1, 0], [weight, 1 - weight, 0], atol=1e-6)
    np.testing.assert_allclose(found[3, 1], [0, weight, 1 - weight], atol=1e-6)
    assert not found[3, 0].any()


@pytest.mark.parametrize(("weight", "treatment"), [(1.0, "positive"), (0.0, "negative")])
def test_the_limits_of_soft_targets_are_hard(weight, treatment):
    soft, hard = targets("soft", weight), targets(treatment)
    np.testing.assert_array_equal(soft.labels, hard.labels)
    np.testing.assert_array_equal(soft.distributions, (hard.labels[..., None] == np.arange(3)).astype(np.float32))


@pytest.mark.parametrize("treatment", ["negative", "soft"])
def test_a_step_without_a_negative_option_is_refused(treatment):
    chain = Chain((CHAIN.steps[0], Step("Zone", "?", ("Upper", "Lower", "Middle"))))
    message = r"config\.data\.uncertain: .*'Zone' \(2 uncertain training answers\) offers none"
    refuse(message, targets, treatment, chain=chain)
    assert targets("positive", chain=chain).labels[3, 1] == 1
    rule, certain = UncertainAnswers(treatment), np.full_like(LABELS, NO)
    found = make_targets(labels=LABELS, uncertain=certain, chain=chain, rule=rule)
    np.testing.assert_array_equal(found.labels, LABELS)


def make_dataset(treatment="ignore", weight=0.5):
    cases = RecordTable(Record(patient=f"p{n}", image=f"{n}.png", answers=(0, 0), reasoning=("", "")) for n in range(8))
    table = cases.with_labels(np.tile(LABELS, (2, 1)), np.tile(UNCERTAIN, (2, 1)))
    pixels = PixelCache(lambda n: np.full((4, 4, 3), n, np.uint8), budget_bytes=0)
    rule, splits = UncertainAnswers(treatment, weight), Splits((0, 1, 2, 3), (4, 5, 6, 7), ())
    return Dataset(CHAIN, table, splits, pixels, PREPROCESSING, uncertain=rule)


@pytest.mark.parametrize("treatment", ["ignore", "negative", "positive", "soft"])
def test_training_follows_the_setting_and_evaluation_never_sees_an_uncertain_answer(treatment):
    dataset = make_dataset(treatment)
    batch = training_batches(dataset, batch_size=4, seed=0)[0]
    np.testing.assert_array_equal(batch["labels"], targets(treatment).labels[batch["index"]])
    if treatment == "soft":
        np.testing.assert_array_equal(batch["targets"], targets("soft").distributions[batch["index"]])
    else:
        assert "targets" not in batch
    held_out = evaluation_batches(dataset, "val", batch_size=4)[0]
    np.testing.assert_array_equal(held_out["labels"], LABELS)
    assert "targets" not in held_out
    np.testing.assert_array_equal(dataset.batch(range(4))["labels"], LABELS)


def test_the_last_step_alone_forgets_the_other_steps_marks():
    batch = training_batches(make_dataset("positive").with_last_step_alone(), batch_size=4, seed=0)[0]
    assert batch["labels"][np.argsort(batch["index"])].tolist() == [[NO, 0], [NO, 1], [NO, 2], [NO, 1]]


@pytest.mark.parametrize(
    ("treatment", "noted"), [("ignore", True), ("positive", True), ("negative", False), ("soft", False)]
)
def test_notes_on_the_train_split_are_of_its_targets(treatment, noted):
    """The certain answers of step 1 are all the first option; what its uncertain ones are taken for decides."""
    labels, uncertain = np.array([[0, 0], [NO, 1]] * 4), np.array([[NO, NO], [0, NO]] * 4)
    dataset = make_dataset(treatment, 0.7)
    dataset = dataclasses.replace(dataset, cases=dataset.cases.with_labels(labels, uncertain))
    of_train = [note for note in check_annotated(dataset) if "case of the train split" in note]
    assert [f"at {CHAIN.steps[0].name} (1 of 2 steps)" in note for note in of_train] == [True] * noted


def test_the_digest_notices_marks_alone_and_a_doubtful_negative_option_has_no_soft_target():
    plain, marked = make_dataset(), make_dataset()
    unmarked = dataclasses.replace(marked, cases=plain.cases.with_labels(LABELS.repeat(2, 0), np.full((8, 2), NO)))
    moved = dataclasses.replace(marked, cases=plain.cases.with_labels(LABELS.repeat(2, 0), UNCERTAIN.repeat(2, 0)))
    assert (len({unmarked.digest, moved.digest}), plain.digest) == (2, marked.digest)
    negative = np.array([[NO, 2], [1, NO], [NO, NO], [NO, 1]])  # N/A?, No abnormality?
    rule = UncertainAnswers("soft", 0.7)
    found = make_targets(labels=LABELS, uncertain=negative, chain=CHAIN, rule=rule)
    assert found.labels.tolist() == [[0, NO], [NO, 1], [1, 2], [NO, 1]]
    assert not found.distributions[0, 1].any()
    assert not found.distributions[1, 0].any()
    soft = found.distributions.max(axis=-1) < 1  # what `certain_labels` takes no answer from
    assert soft[found.labels != LABELS].all()


def test_a_mark_survives_reading_and_writing_and_needs_an_answer(root):
    collection = read(root, [change_step(make_record(), 1, uncertain=True), make_record("b")])
    doubtful, certain = collection.cases
    assert (doubtful.answers, doubtful.uncertain, doubtful.stated) == ((0, NO), (NO, 1), (0, 1))
    assert (certain.answers, certain.uncertain, certain.stated) == ((0, 1), (), (0, 1))
    write_records(root, chain=collection.chain, cases=collection.cases)
    assert read_records(root, step_names=NAMES).cases == collection.cases
    written = json.loads((root / "data.json").read_text())
    assert [["uncertain" in entry for entry in record["vqa_chain"]] for record in written] == [
        [False, True],
        [False] * 2,
    ]
    assert written[0]["vqa_chain"][1]["answer"] == "B"
    record = change_step(make_record(), 0, uncertain=True, answer=None)
    assert "vqa_chain[0].uncertain: true without an answer" in refusal(root, [record])
    assert "vqa_chain[0].uncertain" in refusal(root, [change_step(make_record(), 0, uncertain="yes")])
    assert read(root, [change_step(make_record(), 0, uncertain=False)]).cases[0].uncertain == ()


def test_check_and_stats_count_uncertain_answers(root, tmp_path):
    write(root, [change_step(make_record(), 1, uncertain=True), make_record("b"), make_record("c")])
    facts = check_root(root, CheckOptions(images="none", step_names=NAMES), terminal=Terminal(silent=True))
    assert [(step["annotated"], step["uncertain"]) for step in facts["steps"]] == [(3, 0), (2, 1)]
    (note,) = (note for note in facts["notes"] if note.startswith("1 answers are uncertain"))
    assert note.endswith("training ignores them (config.data.uncertain=ignore)")
    collection = read_records(root, step_names=NAMES)
    splits = Splits((0,), (1,), (2,))
    statistics = compute_statistics(collection.cases, collection.chain, splits, splits_source="here")
    write_tables(tmp_path, statistics)
    lines = (tmp_path / "answers.csv").read_text().splitlines()
    assert [line for line in lines if UNCERTAIN_NAME.split(",")[0] in line] == [f'Diagnosis,"{UNCERTAIN_NAME}",1,']
    assert "Diagnosis,(not annotated),1," in lines


def test_check_counts_what_training_takes(root):
    """All answers of step 2 are uncertain."""
    doubtful = {"options": ["A. Mass", "B. Nodule"], "answer": "B", "uncertain": True}
    write(root, [change_step(make_record(f"p{number}"), 1, **doubtful) for number in range(12)])

    def check(treatment):
        options = CheckOptions(images="none", step_names=NAMES, uncertain=treatment)
        return check_root(root, options, terminal=Terminal(silent=True))

    ignored, taken, refused = (check(treatment) for treatment in ("ignore", "positive", "negative"))
    num_train = ignored["splits"][0]["cases"]
    assert [step["trained"] for step in ignored["steps"]] == [num_train, 0]
    assert [step["trained"] for step in taken["steps"]] == [num_train, num_train]
    untrained = "nobody answered Diagnosis in the train split: not trained"
    assert [untrained in facts["notes"] for facts in (ignored, taken)] == [True, False]
    assert any("takes them for certain (config.data.uncertain=positive)" in note for note in taken["notes"])
    assert (ignored["stops"], taken["stops"]) == ([], [])
    assert [("'negative' needs a negative option" in stop) for stop in refused["stops"]] == [True]
