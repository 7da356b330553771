import dataclasses
import io
import os
import zipfile

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, make_split, of_arrays
from refusals import refuse

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.predictions import FACTS, join_models, read_predictions, write_predictions

SPLIT = make_split()


@pytest.fixture
def path(tmp_path):
    write_predictions(tmp_path / "test.npz", SPLIT, CHAIN)
    return tmp_path / "test.npz"


def rewrite(path, edit):
    with np.load(path) as archive:
        arrays = dict(archive)
    edit(arrays)
    np.savez(path.open("wb"), **arrays)


def replace(field, value):
    if field in FACTS:
        return dataclasses.replace(SPLIT, facts={**SPLIT.facts, field: value})
    return SPLIT.change(**{field: value})


def assert_same(found, expected) -> None:
    np.testing.assert_array_equal(found.predictions.index, expected.predictions.index)
    np.testing.assert_array_equal(found.predictions.labels, expected.predictions.labels)
    assert list(found.predictions.logits) == list(expected.predictions.logits)
    for model, logits in expected.predictions.logits.items():
        assert found.predictions.logits[model].dtype == np.float32
        np.testing.assert_array_equal(found.predictions.logits[model], logits)
    assert {fact: values.tolist() for fact, values in found.facts.items()} == {
        fact: expected.facts[fact].tolist() for fact in FACTS
    }


def test_what_is_written_comes_back_whatever_its_texts_and_without_cases(path):
    odd = replace("origin", np.array(["", "Łódź 胸部 🫁", "a/b\\c\n", *["x"] * 57]))
    empty = of_arrays(np.zeros((0, 3)), {"teacher/of all": np.zeros((0, 3, 4), np.float32)})
    for split in (SPLIT, odd, empty):
        write_predictions(path, split, CHAIN)
        assert_same(read_predictions(path, CHAIN), split)
        assert list(path.parent.iterdir()) == [path]


def test_the_wording_of_a_question_makes_no_other_chain_but_an_option_does(path):
    first = CHAIN.steps[0]
    worded = Chain((Step(first.name, "Is there anything?", first.options), *CHAIN.steps[1:]))
    assert_same(read_predictions(path, worded), SPLIT)
    for other in (
        Chain((Step(first.name, first.question, ("Yes", "No")), *CHAIN.steps[1:])),
        Chain((Step("Finding", first.question, first.options), *CHAIN.steps[1:])),
        Chain(CHAIN.steps[:2]),
    ):
        refuse(r"test.npz: predictions of another chain: .* not ", read_predictions, path, other)


class Trap:
    def __reduce__(self):
        return os.mkdir, ("trapped",)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda arrays: arrays.pop("labels"), "'labels'"),
        (lambda arrays: arrays.update(about=np.frombuffer(b"[]", np.uint8)), "read by stepcot_jax"),
        (lambda arrays: arrays.update(labels=np.array([Trap()], object)), "cannot be read"),
    ],
)
def test_another_layout_is_refused_and_no_code_is_run(path, tmp_path, monkeypatch, edit, message):
    monkeypatch.chdir(tmp_path)
    rewrite(path, edit)
    refuse(message, read_predictions, path, CHAIN)
    assert list(tmp_path.iterdir()) == [path]


def test_a_small_file_cannot_fill_the_memory(path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i4", "fortran_order": False, "shape": (2**50, 3)})
    for content, how, words in (
        (bytes(10**6), zipfile.ZIP_DEFLATED, "compressed"),
        (header.getvalue(), zipfile.ZIP_STORED, "cannot be read"),
    ):
        with zipfile.ZipFile(path, "w", how) as archive:
            archive.writestr("labels.npy", content)
        refuse(words, read_predictions, path, CHAIN)


def test_models_of_several_runs_are_matched_by_case():
    other = SPLIT.take(np.random.default_rng(0).permutation(60))
    joined = join_models({"here": (SPLIT, "teacher"), "there": (other, "teacher"), "small": (other, "student")})
    assert list(joined.predictions.logits) == ["here", "there", "small"]
    np.testing.assert_array_equal(joined.predictions.logits["there"], SPLIT.predictions.logits["teacher"])
    np.testing.assert_array_equal(joined.predictions.logits["small"], SPLIT.predictions.logits["student"])
    assert joined.facts["case_id"].tolist() == SPLIT.facts["case_id"].tolist()


@pytest.mark.parametrize(
    ("other", "model", "words"),
    [
        (SPLIT.take(np.arange(59)), "teacher", "there: its 59 cases are not the 60 of here"),
        (replace("case_id", np.array(["case-0"] * 60)), "teacher", "there: its 60 cases are not the 60 of here"),
        (SPLIT.change(labels=make_split(1).predictions.labels), "teacher", "there: its labels differ"),
        (SPLIT, "reader", "model 'reader' is not one of teacher, student"),
    ],
)
def test_models_over_other_cases_or_labels_are_not_joined(other, model, words):
    refuse(words, join_models, {"here": (SPLIT, "teacher"), "there": (other, model)})
