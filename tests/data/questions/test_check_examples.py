"""Wrong attempts and checks: wrong answers, true statements, draws by seed and place."""

import collections

import numpy as np
import pytest
from reasoning_records import make_record

from stepcot_jax.data.questions.check_examples import draw_check_examples, is_wrong
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.settings import load_settings


@pytest.fixture(scope="module")
def dataset():
    sizes = {"phantom.num_cases": 60, "phantom.image_size": 32, "image_encoder.image_size": 32}
    return load_vqa_dataset(load_settings("vqa_quickstart", **sizes))


def _draw(dataset, **changes):
    chosen = {"share": 0.5, "seed": 0, "dialect": "gemex"} | changes
    return draw_check_examples(dataset.records, dataset.splits.train, **chosen)


ATTEMPTS = [("closed", "Yes", "No", True), ("single", "A", "A", False), ("single", "A", "D", True)]
ATTEMPTS += [("multi", ("A", "C"), ("A",), True), ("multi", ("A", "C"), ("A", "C"), False)]
ATTEMPTS += [("open", "A mass", text, text == "fluid") for text in ("a  Mass", "tumour", "fluid")]


@pytest.mark.parametrize(("kind", "answer", "other", "wrong"), ATTEMPTS)
def test_an_attempt_is_wrong_if_its_answer_is(kind, answer, other, wrong):
    record = make_record(kind, answer=answer, synonyms=("Tumour",) if kind == "open" else ())
    assert is_wrong(make_record(kind, answer=other), record) == wrong


def test_examples_are_wrong_replies_of_the_training_split_by_seed_and_place(dataset):
    examples, train = _draw(dataset, share=1.0), set(dataset.splits.train)
    assert len(examples) > 0.9 * len(train)
    topics = collections.Counter()
    for place, example in examples.items():
        record, wrong = dataset.records[place], dataset.records[example.wrong]
        assert {place, example.wrong} <= train
        assert record.kind == wrong.kind
        assert is_wrong(wrong, record)
        assert example.shows_check
        topics[record.topic == wrong.topic] += 1
    assert topics[True] > 0.8 * len(examples)
    half = _draw(dataset)
    assert half == _draw(dataset)
    assert half != _draw(dataset, seed=1)
    assert 0.35 < len(half) / len(dataset.splits.train) < 0.65
    assert half.items() <= _draw(dataset, share=0.9).items()
    assert _draw(dataset, share=0.0) == {}
    shown = [example.shows_check for example in _draw(dataset, share=1.0, hides_check=True).values()]
    assert 0.3 < np.mean(shown) < 0.7
    records = [make_record(id=str(place), answer="Yes") for place in range(4)]
    assert draw_check_examples(records, range(4), share=1.0, seed=0, dialect="gemex") == {}


def test_checks_state_what_the_record_states(dataset):
    wordings = set()
    for place, example in _draw(dataset, share=1.0).items():
        record, wrong = dataset.records[place], dataset.records[example.wrong]
        names = ("Visual grounding: ", "Visual analysis: ", "Knowledge: ")
        grounding, analysis, knowledge = (
            example.check.partition(name)[2].partition(after)[0]
            for name, after in zip(names, (*names[1:], "~"), strict=True)
        )
        boxes = {each.corners for each in record.references}
        for each in record.references:
            written = f"{each.label} ([{', '.join(str(int(edge)) for edge in each.corners)}])"
            assert (written in grounding) == (boxes != {each.corners for each in wrong.references})
        assert (record.stages.visual in analysis) == (record.stages.visual != wrong.stages.visual)
        assert record.stages.knowledge in knowledge
        assert (wrong.answer if isinstance(wrong.answer, str) else ", ".join(wrong.answer)) in knowledge
        assert "<" not in example.check
        wordings.add(example.check.replace(record.stages.visual, "").replace(record.stages.knowledge, "")[:60])
    assert len(wordings) > 10
