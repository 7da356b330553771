import ast
import dataclasses
import pathlib
import pickle

import numpy as np
import pytest

import stepcot_jax
from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.dataset import ClosedFeatures, TestSplitClosed
from stepcot_jax.run.inputs import Inputs, load_cases
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.settings import load_settings

OPENERS = {
    "run/chain_task.py": ("open_test", "digest", "check_same_splits", "write_facts", "finish"),
    "run/policy_task.py": ("finish",),
    "run/inputs.py": ("choose_then_open", "open_test", "write"),
}
"""Functions that open the test split: last evaluations; the account of the data, its digest, the copied records."""


def calls_of(text):
    for function in ast.walk(ast.parse(text if "open_test" in text else "")):
        if isinstance(function, ast.FunctionDef) and "open_test" in {
            node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)
        }:
            yield function.name


def test_the_listed_functions_alone_open_the_test_split():
    package = pathlib.Path(stepcot_jax.__file__).parent
    found = {str(path.relative_to(package)): {*calls_of(path.read_text())} for path in package.rglob("*.py")}
    assert {name: calls for name, calls in found.items() if calls} == {
        name: {*calls} for name, calls in OPENERS.items()
    }


@pytest.fixture(scope="module")
def whole():
    sizes = {"phantom.num_cases": 40, "phantom.image_size": 32, "image_encoder.image_size": 32}
    return load_cases("tables_phantom", **sizes)


def test_the_view_of_chains_lacks_labels_and_pictures_of_test_cases_alone(whole):
    view, held_out = whole.hold_out()
    assert held_out.open_test() is whole
    assert view.splits == whole.splits
    test = np.zeros(len(whole.cases), bool)
    test[list(whole.splits.test)] = True
    assert (view.labels[test] == NOT_ANNOTATED).all()
    np.testing.assert_array_equal(view.labels[~test], whole.labels[~test])
    assert (whole.labels[test] != NOT_ANNOTATED).any()
    for index in range(len(whole.cases)):
        if not test[index]:
            np.testing.assert_array_equal(view.pixels[index], whole.pixels[index])
            assert view.cases[index] == whole.cases[index]
            continue
        case, own = view.cases[index], whole.cases[index]
        assert (case.patient, case.image, case.origin, case.view) == (own.patient, own.image, own.origin, own.view)
        assert (case.report, case.boxes, "".join(case.reasoning)) == ("", (), "")
        for pixels in (view.pixels, pickle.loads(pickle.dumps(view.pixels))):  # noqa: S301
            with pytest.raises(TestSplitClosed, match=f"image {index} is of the test split"):
                pixels[index]
            with pytest.raises(TestSplitClosed):
                pixels.select([index], whole.pixels.read)
    assert not any(case.boxes for case, closed in zip(view.cases, test, strict=True) if closed)


def test_no_door_to_the_test_split_stays_open(whole):
    """A field that the view shares with the whole must be listed here, so a new one cannot leak unseen."""
    number, test = len(whole.labels), list(whole.splits.test)
    cases, features = (
        whole.cases.with_labels(whole.labels, np.zeros((number, 7), int)),
        np.zeros((number, 2), np.float32),
    )
    full = dataclasses.replace(whole, cases=cases, features=features, images=object(), digests={test[0]: "0"})
    view, _ = full.hold_out()
    shared = {name for name in vars(full) if getattr(view, name) is getattr(full, name)}
    assert shared == {"chain", "splits", "preprocessing", "set_aside", "splits_source", "uncertain"}
    assert (view.images, view.digests) == (None, {})
    assert (view.cases.uncertain == NOT_ANNOTATED).all(axis=1).nonzero()[0].tolist() == sorted(test)
    assert len(view.batch(whole.splits.val)["image_features"]) == len(whole.splits.val)
    of_run, _ = Inputs(full, None, None, dict).hold_out()
    for closed in (view, dataclasses.replace(view, features=None), of_run.dataset):
        with pytest.raises(TestSplitClosed):
            closed.batch(test[:1])


def test_features_of_test_cases_are_closed_however_they_are_asked_for():
    features = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    closed = ClosedFeatures(features, [2])
    assert (closed.shape, len(closed)) == ((4, 3), 4)
    np.testing.assert_array_equal(closed[1], features[1])
    np.testing.assert_array_equal(closed[[0, 3]], features[[0, 3]])
    for index in (2, -2, slice(1, 3), np.array([0, 2])):
        with pytest.raises(TestSplitClosed):
            closed[index]


def test_the_view_of_questions_has_the_prompts_and_no_answer_of_test_records():
    whole = load_vqa_dataset(load_settings("vqa_quickstart", **{"phantom.num_cases": 40}))
    view, _ = whole.hold_out()
    test, answers = set(whole.splits.test), {}
    for place, (record, own) in enumerate(zip(view.records, whole.records, strict=True)):
        if place not in test:
            assert record == own
            continue
        names = ("id", "question", "options", "kind")
        assert [getattr(record, name) for name in names] == [getattr(own, name) for name in names]
        assert (record.references, record.thinking, record.stages, record.boxes, record.facts) == ((), "", None, (), {})
        answers.setdefault((record.kind, len(record.options)), set()).add(record.answer)
        with pytest.raises(TestSplitClosed):
            view.load_images([int(view.image_of[place])])
    assert {len(found) for found in answers.values()} == {1}
