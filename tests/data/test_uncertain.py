import contextlib
import dataclasses
import json

import numpy as np
import pytest
from data.checked import check
from data.records.test_records import NAMES, change_step, make_record, read, refusal, root, write
from data.test_batches import PREPROCESSING
from refusals import refuse

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.batches import evaluation_batches, iterate, training_batches
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.pixels import PixelCache
from stepcot_jax.data.record_table import RecordTable
from stepcot_jax.data.records.records import read_records, write_records
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.data.statistics import compute_statistics
from stepcot_jax.data.uncertain import make_targets
from stepcot_jax.evaluation.predictions import ValidationPredictions, collect
from stepcot_jax.record import Record
from stepcot_jax.run.results import Validated, choose, with_facts
from stepcot_jax.run.run_checks import check_annotated
from stepcot_jax.run.settings import load_settings
from stepcot_jax.tools.data.statistics import UNCERTAIN_NAME, write_tables

__all__ = ["root"]  # a fixture
NO = NOT_ANNOTATED
CHAIN = Chain((Step("Detection", "?", ("Yes", "No abnormality")), Step("Zone", "?", ("Upper", "Lower", "N/A"))))
LABELS = np.array([[0, NO], [NO, 1], [1, 2], [NO, NO]])
UNCERTAIN = np.array([[NO, 0], [0, NO], [NO, NO], [NO, 1]])


def targets(treatment, chain=CHAIN):
    return make_targets(labels=LABELS, uncertain=UNCERTAIN, chain=chain, treatment=treatment)


TAKEN = {
    "ignore": [[0, NO], [NO, 1], [1, 2], [NO, NO]],
    "positive": [[0, 0], [0, 1], [1, 2], [NO, 1]],
    "negative": [[0, 2], [1, 1], [1, 2], [NO, 2]],
}


@pytest.mark.parametrize(("treatment", "expected"), TAKEN.items())
def test_an_uncertain_answer_is_taken_for_what_the_setting_says(treatment, expected):
    found = targets(treatment)
    assert (found.tolist(), found.dtype) == (expected, np.int32)


def test_a_step_without_a_negative_option_is_refused():
    chain = Chain((CHAIN.steps[0], Step("Zone", "?", ("Upper", "Lower", "Middle"))))
    message = r"config\.data\.uncertain: .*'Zone' \(2 uncertain training answers\) offers none"
    refuse(message, targets, "negative", chain=chain)
    assert targets("positive", chain=chain)[3, 1] == 1
    found = make_targets(labels=LABELS, uncertain=np.full_like(LABELS, NO), chain=chain, treatment="negative")
    np.testing.assert_array_equal(found, LABELS)


def make_dataset(treatment="ignore", *, uncertain=UNCERTAIN, each=4):
    """Splits of so many cases each, with the labels and marks above over and over."""
    many = np.tile(LABELS, (3 * each // 4, 1))
    cases = RecordTable(
        Record(patient=f"p{n}", image=f"{n}.png", answers=(0, 0), reasoning=("", "")) for n in range(len(many))
    )
    table = cases.with_labels(many, np.tile(uncertain, (3 * each // 4, 1)))
    pixels = PixelCache(lambda n: np.full((4, 4, 3), n % 256, np.uint8), budget_bytes=0)
    splits = Splits(*(tuple(range(start, start + each)) for start in (0, each, 2 * each)))
    return Dataset(CHAIN, table, splits, pixels, PREPROCESSING, uncertain=treatment)


@pytest.mark.parametrize("treatment", TAKEN)
def test_training_alone_takes_an_uncertain_answer_for_something(treatment):
    dataset = make_dataset(treatment)
    batch = training_batches(dataset, batch_size=4, seed=0)[0]
    np.testing.assert_array_equal(batch["labels"], targets(treatment)[batch["index"]])
    for split in ("val", "test"):
        np.testing.assert_array_equal(evaluation_batches(dataset, split, batch_size=4)[0]["labels"], LABELS)
        np.testing.assert_array_equal(dataset.batch(dataset.splits.by_name()[split])["labels"], LABELS)


@pytest.mark.parametrize("treatment", TAKEN)
def test_calibration_never_counts_an_uncertain_answer(treatment):
    """Temperatures, thresholds, pairs and joint models are those of the same cases without marks."""
    logits = np.random.default_rng(0).normal(size=(400, 2, 3)).astype(np.float32)
    logits[:, 0, 2] = -1e9

    def choose_for(uncertain, treatment):
        dataset = make_dataset(treatment, uncertain=uncertain, each=400)
        with contextlib.closing(iterate(evaluation_batches(dataset, "val", batch_size=100), num_threads=1)) as read:
            predicted = collect(lambda batch: {"teacher": logits[batch["index"]]}, read)
        facts = with_facts(dataset, "val", predicted).facts
        return choose(dataset, Validated(ValidationPredictions(predicted, facts), {}), load_settings("base").evaluation)

    marked, plain = choose_for(UNCERTAIN, treatment), choose_for(np.full_like(UNCERTAIN, NO), "ignore")
    assert marked.calibration == plain.calibration
    assert marked.thresholds == plain.thresholds
    np.testing.assert_equal(marked.counts, plain.counts)


def test_the_last_step_alone_forgets_the_other_steps_marks():
    batch = training_batches(make_dataset("positive").with_last_step_alone(), batch_size=4, seed=0)[0]
    assert batch["labels"][np.argsort(batch["index"])].tolist() == [[NO, 0], [NO, 1], [NO, 2], [NO, 1]]


@pytest.mark.parametrize(("treatment", "noted"), [("ignore", True), ("positive", True), ("negative", False)])
def test_notes_on_the_train_split_are_of_its_targets(treatment, noted):
    """The certain answers of step 1 are all the first option; what its uncertain ones are taken for decides."""
    labels, uncertain = np.array([[0, 0], [NO, 1]] * 6), np.array([[NO, NO], [0, NO]] * 6)
    dataset = make_dataset(treatment)
    dataset = dataclasses.replace(dataset, cases=dataset.cases.with_labels(labels, uncertain))
    of_train = [note for note in check_annotated(dataset) if "case of the train split" in note]
    assert [f"at {CHAIN.steps[0].name} (1 of 2 steps)" in note for note in of_train] == [True] * noted


def test_the_digest_notices_marks_alone():
    plain, marked = make_dataset(), make_dataset()
    unmarked = dataclasses.replace(marked, cases=plain.cases.with_labels(LABELS.repeat(3, 0), np.full((12, 2), NO)))
    moved = dataclasses.replace(marked, cases=plain.cases.with_labels(LABELS.repeat(3, 0), UNCERTAIN.repeat(3, 0)))
    assert (len({unmarked.digest, moved.digest}), plain.digest) == (2, marked.digest)


def test_a_mark_survives_reading_and_writing_and_needs_an_answer(root):
    collection = read(root, [change_step(make_record(), 1, uncertain=True), make_record("b")])
    doubtful, certain = collection.cases
    assert (doubtful.answers, doubtful.uncertain, doubtful.stated) == ((0, NO), (NO, 1), (0, 1))
    assert (certain.answers, certain.uncertain, certain.stated) == ((0, 1), (), (0, 1))
    write_records(root, chain=collection.chain, cases=collection.cases)
    assert read_records(root, step_names=NAMES).cases == collection.cases
    written = json.loads((root / "data.json").read_text())
    has_marks = [["uncertain" in entry for entry in record["vqa_chain"]] for record in written]
    assert has_marks == [[False, True], [False, False]]
    assert written[0]["vqa_chain"][1]["answer"] == "B"
    record = change_step(make_record(), 0, uncertain=True, answer=None)
    assert "vqa_chain[0].uncertain: true without an answer" in refusal(root, [record])
    assert "vqa_chain[0].uncertain" in refusal(root, [change_step(make_record(), 0, uncertain="yes")])
    assert read(root, [change_step(make_record(), 0, uncertain=False)]).cases[0].uncertain == ()


def test_check_and_stats_count_uncertain_answers(root, tmp_path):
    write(root, [change_step(make_record(), 1, uncertain=True), make_record("b"), make_record("c")])
    facts = check(root, images="none", step_names=NAMES)
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
    how = {"images": "none", "step_names": NAMES}
    ignored, taken, refused = (check(root, uncertain=each, **how) for each in ("ignore", "positive", "negative"))
    num_train = ignored["splits"][0]["cases"]
    assert [step["trained"] for step in ignored["steps"]] == [num_train, 0]
    assert [step["trained"] for step in taken["steps"]] == [num_train, num_train]
    untrained = "nobody answered Diagnosis in the train split: not trained"
    assert [untrained in facts["notes"] for facts in (ignored, taken)] == [True, False]
    assert any("takes them for certain (config.data.uncertain=positive)" in note for note in taken["notes"])
    assert (ignored["stops"], taken["stops"]) == ([], [])
    assert [("'negative' needs a negative option" in stop) for stop in refused["stops"]] == [True]
