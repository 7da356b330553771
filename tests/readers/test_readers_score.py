"""Filled forms: whole and unaltered ones are scored against independent figures, any other is refused by name."""

import collections
import csv
import dataclasses
import functools
import itertools

import numpy as np
import pytest
from evaluation.small_splits import of_arrays
from hypothesis import given
from hypothesis import strategies as st
from readers.reader_samples import CHAIN, fill, guess, make_sample, read_cells, write_cells
from refusals import assert_says, refuse
from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score, recall_score

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.predictions import write_predictions
from stepcot_jax.evaluation.statistics import draw_weights, flip_signs
from stepcot_jax.tools.readers import command as tool
from stepcot_jax.tools.readers.forms import read_forms
from stepcot_jax.tools.readers.scores import compare_readers, read_answers, tabulate_agreement, tabulate_gains

READERS = ("Ann", "Bo", "Cy")


@pytest.fixture(scope="module")
def sample(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples") / "sample"
    key = make_sample(folder, root, readers=READERS, num_cases=24)
    return folder, key


@pytest.fixture(scope="module")
def answers(sample):
    return {name: guess(sample[1], seed) for seed, name in enumerate(READERS)}


@pytest.fixture(scope="module")
def forms(sample, answers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("forms")
    given, key = sample
    return [fill(given / name / "form.csv", key, answers[name], out=folder / f"{name}.csv") for name in READERS]


@pytest.fixture(scope="module")
def predictions(sample, tmp_path_factory):
    """A run's file in another order, with more cases than the sample has: a teacher that is right and a student."""
    path = tmp_path_factory.mktemp("run") / "test.npz"
    _, key = sample
    truth = np.array([*(case.labels for case in key.cases[::-1]), (0,) * 7], np.int32)
    paths = np.array([*(case.image_path for case in key.cases[::-1]), "images/other.png"])
    right = np.zeros((*truth.shape, 12), np.float32)
    np.put_along_axis(right, np.maximum(truth, 0)[:, :, None], 5.0, axis=2)
    student = np.random.default_rng(9).normal(size=right.shape).astype(np.float32)
    patients = [f"p{place}" for place in range(len(truth))]
    models = {"teacher": right, "student": student}
    split = of_arrays(truth, models, case_id=paths, image_path=paths, patient_id=patients)
    write_predictions(path, split, CHAIN)
    return path


@pytest.fixture(scope="module")
def comparison(sample, forms, predictions):
    _, key = sample
    return compare_readers(key, read_forms(key, forms), predictions, num_resamples=100, seed=4)


def truth_of(key):
    return np.array([case.labels for case in key.cases])


def test_what_spreadsheets_and_people_do_to_a_form_changes_no_answer(sample, answers, forms, tmp_path):
    folder, key = sample
    path = fill(folder / "Ann" / "form.csv", key, answers["Ann"], out=tmp_path / "form.csv")
    rows = sorted(read_cells(path), key=lambda row: (row["step"], row["case"]))
    for place, row in enumerate(rows):
        step = key.chain.steps[int(row["step"][-1]) - 1]
        texts = (row["answer"], f" {row['answer'].lower()} ", step.options[step.read_answer(row["answer"])].upper())
        row |= {name: row[name].replace(" ", "  ") for name in ("question", "options")}
        row["answer"] = texts[place % 3]
    write_cells(path, rows, delimiter=";")
    found = read_forms(key, [forms[1], path])
    assert list(found) == ["Ann", "Bo"]
    for name, labels in found.items():
        np.testing.assert_array_equal(labels, answers[name])


def put(place, **cells):
    return lambda rows: rows[place].update(cells)


FIRST = "row 2 (case {case}, Step 1), "


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(0, answer=""), ["(case {case}, Step 1), 'answer': 1 of 168 answers are missing"]),
        (lambda rows: rows.pop(), ["(case", "1 of 168 answers are missing"]),
        (put(0, answer="E"), [FIRST, "'answer': 'E' is not one of A. No abnormality, B. Increased"]),
        (put(0, question="Is it?"), [FIRST, "'question': 'Is it?' was changed; expected '</script>"]),
        (put(0, case="99"), ["row 2 (case 99, Step 1) is not one of cases 1 to 24, Step 1 to Step 7"]),
        (lambda rows: rows.append(dict(rows[3])), ["row 170 (case {case}, Step 4): a second answer to one question"]),
        (put(0, form="form-0"), ["row 2, 'form': 'form-0' is not of this sample, for Ann, Bo, Cy"]),
        (put(1, form="form-0"), ["row 3 (case {case}, Step 2), 'form': 'form-0' was changed"]),
        (lambda rows: rows.clear() or rows.append(dict.fromkeys("abc", "")), ["row 1: columns ['a', 'b'"]),
    ],
)
def test_incomplete_and_altered_forms_are_refused_by_row_and_column(sample, answers, tmp_path, change, words):
    folder, key = sample
    path = fill(folder / "Ann" / "form.csv", key, answers["Ann"], out=tmp_path / "ann.csv", change=change)
    message = refuse("", read_forms, key, [path])
    assert message.startswith(str(path))
    first = read_cells(folder / "Ann" / "form.csv")[0]["case"]
    assert_says(message, *(word.format(case=first) for word in words))


def test_a_second_form_and_files_that_are_none_are_refused(sample, forms, tmp_path):
    _, key = sample
    assert refuse("a second form of Bo", read_forms, key, [*forms, forms[1]]).startswith(f"{forms[1]}: ")
    path = tmp_path / "form.csv"
    header = b"form,case,image,step,question,options,answer\r\n"
    for content, words in (
        *((None, "cannot be read"), (header, "168 of 168 answers are missing")),
        *((header + b"1,2\r\n", "row 2 has 2 cells, not 7"), (b"\xff\xfe\x00", "UTF-8")),
    ):
        if content is not None:
            path.write_bytes(content)
        refuse(words, read_forms, key, [path])
    refuse("not a regular file", read_forms, key, [tmp_path])


def at(comparison, place):
    """The figures of a step: values by figure and name."""
    return lambda *names: comparison.figures[names][place].value


def macro(score, truth, answers):
    """scikit-learn's macro average over the answers that are true ones."""
    return score(truth, answers, average="macro", labels=np.unique(truth), zero_division=0)


SCORES = {
    "accuracy": accuracy_score,
    "sensitivity": functools.partial(macro, recall_score),
    "f1": functools.partial(macro, f1_score),
}


def test_figures_are_scikit_learns_over_the_cases_with_an_answer(sample, answers, comparison, predictions):
    _, key = sample
    truth = truth_of(key)
    everyone = {f"reader {name}": answers[name] for name in READERS} | read_answers(predictions, key)
    for place, num_annotated in enumerate(comparison.num_annotated):
        known, found = truth[:, place] != NOT_ANNOTATED, at(comparison, place)
        assert num_annotated == known.sum()
        for figure, score in SCORES.items():
            each = {name: score(truth[known, place], own[known, place]) for name, own in everyone.items()}
            each["readers"] = np.mean([each[f"reader {name}"] for name in READERS])
            assert {name: found(figure, name) for name in each} == pytest.approx(each)
        gain = found("accuracy", "student") - found("accuracy", "readers")
        assert (found("accuracy", "teacher"), found("gain", "student")) == (1.0, pytest.approx(gain))
    assert 0 < comparison.num_annotated[2] < 24
    # One reader's answers in print, at the first step: neither figure is the accuracy.
    assert len({round(at(comparison, 0)(name, "reader Ann"), 6) for name in SCORES}) == 3


def fleiss_by_hand(labels):
    counts = np.stack([sum(found == label for found in labels) for label in range(9)], axis=1)
    share = (counts.sum(axis=0) / counts.sum()) ** 2
    agree = (counts * (counts - 1)).sum(axis=1) / (len(labels) * (len(labels) - 1))
    return (agree.mean() - share.sum()) / (1 - share.sum())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning", "ignore:invalid value")
def test_agreement_is_cohens_of_two_and_fleiss_of_all(answers, comparison, sample, predictions):
    student = read_answers(predictions, sample[1])["student"]
    people = [f"reader {name}" for name in READERS]
    pairs = [*itertools.combinations(people, 2), *itertools.product(people, ("teacher", "student"))]
    agreed = [key for key in comparison.figures if key[0] in ("Fleiss", "Cohen")]
    assert agreed == [("Fleiss", *people), *(("Cohen", *pair) for pair in pairs)]
    everyone = {f"reader {name}": labels for name, labels in answers.items()} | {"student": student}
    for place in range(7):
        labels = {name: found[:, place] for name, found in everyone.items()}
        _, kappa = comparison.figures["Fleiss", *people][place]
        assert kappa.value == pytest.approx(fleiss_by_hand([labels[name] for name in people]))
        for one, other in pairs:
            if other != "teacher":
                share, kappa = comparison.figures["Cohen", one, other][place]
                assert kappa.value == pytest.approx(cohen_kappa_score(labels[one], labels[other]))
                assert share.value == pytest.approx(np.mean(labels[one] == labels[other]))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning", "ignore:invalid value")
def test_intervals_are_those_of_the_resampled_cases(answers, comparison, sample):
    """Each resample written out as cases, patient by patient, and given to scikit-learn and to Fleiss' formula."""
    _, key = sample
    truth = truth_of(key)
    patients = np.array([case.patient_id for case in key.cases])
    weights = np.concatenate(list(draw_weights(patients, num_resamples=100, seed=4))).astype(int)
    people = [f"reader {name}" for name in READERS]
    for place in (0, 2):
        drawn = collections.defaultdict(list)
        for counts in weights:
            own = np.repeat(truth[:, place], counts)
            known = own != NOT_ANNOTATED
            given = [np.repeat(answers[name][:, place], counts) for name in READERS]
            for figure, score in (("accuracy", accuracy_score), ("f1", functools.partial(macro, f1_score))):
                each = [score(own[known], labels[known]) for labels in given]
                drawn[figure, "readers"].append(np.mean(each))
                drawn[figure, "reader Bo"].append(each[1])
            drawn["Cohen", *people[:2]].append(cohen_kappa_score(*given[:2]))
            drawn["Fleiss", *people].append(fleiss_by_hand(given))
        for names, values in drawn.items():
            figure = comparison.figures[names][place]
            figure = figure[1] if isinstance(figure, list) else figure
            low, high = np.nanquantile(values, [0.025, 0.975])
            assert (figure.low, figure.high) == (pytest.approx(low), pytest.approx(high))
            assert low < figure.value < high


def test_a_gain_is_named_where_its_interval_excludes_zero_and_p_goes_by_patient(
    sample, predictions, answers, comparison
):
    _, key = sample
    truth = truth_of(key)
    wrong = np.where(truth == 0, 1, 0)
    right = np.maximum(truth, 0)
    for expected, labels in {"better": wrong, "not significantly different": right}.items():
        table = tabulate_gains(compare_readers(key, {"Ann": labels}, predictions, num_resamples=200))
        assert {row[-1] for row in table.rows if row[1] == "teacher"} == {expected}
    assert {row[-1] for row in table.rows if row[1] == "student"} == {"worse"}
    student = read_answers(predictions, key)["student"]
    for place, num_patients in enumerate(comparison.num_patients):
        by_patient = {}
        for case, patient in enumerate(case.patient_id for case in key.cases):
            if truth[case, place] != NOT_ANNOTATED:
                more = 3 * (student[case, place] == truth[case, place])
                more -= sum(answers[name][case, place] == truth[case, place] for name in READERS)
                by_patient[patient] = by_patient.get(patient, 0) + int(more)
        assert num_patients == len(by_patient)
        expected = flip_signs(np.array([*by_patient.values()], np.int64))
        assert comparison.p_values["student"][place] == pytest.approx(expected)


@given(st.lists(st.integers(-4, 4), max_size=9))
def test_flipped_signs_are_all_counted(differences):
    found = np.array(differences, np.int64)
    sums = [np.dot(signs, found) for signs in itertools.product((-1, 1), repeat=len(found))]
    assert flip_signs(found) == pytest.approx(np.mean(np.abs(sums) >= abs(found.sum())))


def test_one_reader_and_no_model_are_enough_and_predictions_of_other_cases_are_refused(sample, answers, predictions):
    _, key = sample
    alone = {"Ann": answers["Ann"]}
    comparison = compare_readers(key, alone, num_resamples=20)
    assert comparison.figures["accuracy", "readers"] == comparison.figures["accuracy", "reader Ann"]
    assert (comparison.models, tabulate_agreement(comparison).rows) == ((), ())
    for changes, words in (
        ({"image_path": "images/no.png"}, "case 'images/no.png' is missing"),
        ({"labels": (0,) * 7}, "other labels than in the sample's key"),
    ):
        case = dataclasses.replace(key.cases[4], **changes)
        refuse(words, read_answers, predictions, dataclasses.replace(key, cases=(*key.cases[:4], case, *key.cases[5:])))


def test_the_command_writes_every_table_with_published_figures_apart(sample, forms, predictions, tmp_path, capsys):
    folder, _ = sample
    out = tmp_path / "scores"
    arguments = ["--predictions", str(predictions), "--num-resamples", "50", "--out", str(out)]
    tool.main(["score", str(folder), *map(str, forms[:2]), *arguments])
    assert "without the forms of Cy" in capsys.readouterr().out
    kinds = ("", "_agreement", "_f1", "_gains", "_sensitivity")
    names = [f"readers{kind}.{ending}" for kind in kinds for ending in ("csv", "md", "tex")]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    columns = [f"published: {name}" for name in ("clinician", "teacher", "student")]
    published = {"": ["0.7212", "0.8851", "0.8037"], "_f1": ["0.3786", "0.5724", "0.5084"]}
    for kind, expected in (published | {"_sensitivity": ["0.3684", "0.5836", ""]}).items():
        with (out / f"readers{kind}.csv").open(newline="") as file:
            detection, *others = csv.DictReader(file)
        assert [detection[name] for name in columns] == expected
        assert float(detection["readers low"]) <= float(detection["readers"]) <= float(detection["readers high"])
        if kind:
            assert {row[name] for row in others for name in columns} == {""}
            assert "The paper does not say how it averages" in (out / f"readers{kind}.md").read_text()
        else:
            assert (others[-1][columns[0]], float(detection["teacher"])) == ("", 1.0)
    assert "| 72.12 |" in (out / "readers.md").read_text()
    assert r"\textit{published: clinician (\%)}" in (out / "readers.tex").read_text()
    assert "Holm" in (out / "readers_gains.md").read_text()
