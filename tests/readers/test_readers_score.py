"""Filled forms: whole and unaltered ones are scored against independent figures, any other is refused by name."""

import csv
import itertools
import shutil

import msgspec
import numpy as np
import pytest
from evaluation.small_splits import of_arrays
from hypothesis import given
from hypothesis import strategies as st
from readers.reader_samples import CHAIN, fill, guess, make_sample, read_cells, write_cells, write_folder
from refusals import assert_says, refuse
from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score, recall_score

from stepcot_jax.annotate.agreement import fleiss_kappa
from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.chains import bootstrap, bootstrap_differences
from stepcot_jax.evaluation.predictions import write_predictions
from stepcot_jax.evaluation.statistics import draw_weights, flip_signs
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.ranges import Interval
from stepcot_jax.tools.readers import command as tool
from stepcot_jax.tools.readers.forms import FilledForm, read_forms
from stepcot_jax.tools.readers.scores import compare_readers, read_answers, tabulate_agreement, tabulate_gains

READERS = ("Ann", "Bo", "Cy")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "root")


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
    folder, key = sample
    return compare_readers(key, read_forms(key, folder, forms), predictions, num_resamples=100, seed=4)


def truth_of(key):
    return np.array([case.labels for case in key.cases])


def test_answers_come_back_in_the_keys_order_whoever_filled_them(sample, answers, forms):
    folder, key = sample
    found = read_forms(key, folder, forms[::-1])
    assert [form.reader for form in found] == list(READERS)
    for form in found:
        np.testing.assert_array_equal(form.labels, answers[form.reader])
    assert [form.reader for form in read_forms(key, folder, forms[1:2])] == ["Bo"]


@pytest.mark.parametrize("way", ["semicolons", "sorted", "texts", "spaces", "in place"])
def test_what_spreadsheets_and_people_do_to_a_form_changes_no_answer(sample, answers, root, tmp_path, way):
    folder, key = sample
    path = tmp_path / "form.csv"
    if way == "in place":
        folder, path = tmp_path / "again", tmp_path / "again" / "Ann" / "form.csv"
        assert make_sample(folder, root, readers=READERS, num_cases=24) == key
    else:
        shutil.copy(folder / "Ann" / "form.csv", path)
    fill(path, key, answers["Ann"])
    rows = read_cells(path)
    for row in rows:
        step = key.chain.steps[int(row["step"][-1]) - 1]
        label = step.read_answer(row["answer"])
        row["answer"] = {"texts": step.options[label].upper(), "spaces": f" {row['answer'].lower()} "}.get(
            way, row["answer"]
        )
        if way == "spaces":
            row |= {name: row[name].replace(" ", "  ") for name in ("question", "options")}
    if way == "sorted":
        rows.sort(key=lambda row: (row["step"], row["case"]))
    write_cells(path, rows, **({"delimiter": ";"} if way == "semicolons" else {}))
    np.testing.assert_array_equal(read_forms(key, folder, [path])[0].labels, answers["Ann"])


def put(place, **cells):
    return lambda rows: rows[place].update(cells)


FIRST = "row 2 (case {case}, Step 1)"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(0, answer=""), ["case {case}, Step 1: no answer; expected answers to all 168"]),
        (put(0, answer="E"), [FIRST, "'answer': 'E' is not one of A. No abnormality, B. Increased"]),
        (put(0, question="Is it?"), [FIRST, "'question': 'Is it?' was changed; expected '</script>"]),
        (put(0, image="case_0000.png"), [FIRST, "'image': 'case_0000.png'"]),
        (put(0, case="99"), ["row 2, 'case': '99' is not one of 1 to 24"]),
        (lambda rows: rows.append(dict(rows[3])), ["row 170 (case {case}, Step 4) repeats row 5"]),
        (put(0, form="form-0"), ["row 2, 'form': 'form-0' is of another sample", "Ann, Bo, Cy"]),
        (lambda rows: rows.clear() or rows.append(dict.fromkeys("abc", "")), ["row 1: columns ['a', 'b'"]),
    ],
)
def test_incomplete_and_altered_forms_are_refused_by_name(sample, answers, tmp_path, change, words):
    folder, key = sample
    path = fill(folder / "Ann" / "form.csv", key, answers["Ann"], out=tmp_path / "ann.csv", change=change)
    message = refuse("", read_forms, key, folder, [path])
    assert message.startswith(f"{path}, ")
    assert_says(message, *(word.format(case=key.readers[0].order[0]) for word in words))


def test_a_form_of_another_sample_or_twice_and_files_that_are_none_are_refused(sample, forms, answers, root, tmp_path):
    folder, key = sample
    other = make_sample(tmp_path / "other", root, readers=READERS, num_cases=24, seed=1)
    path = fill(tmp_path / "other" / "Ann" / "form.csv", other, answers["Ann"])
    refuse("is of another sample", read_forms, key, folder, [path])
    message = refuse("", read_forms, key, folder, [*forms, forms[1]])
    assert message.startswith(f"{forms[1]}: a second form of Bo (the first is {forms[1]})")
    (folder, key), path = sample, tmp_path / "form.csv"
    header = b"form,case,image,step,question,options,answer\r\n"
    for content, words in (
        *((None, "cannot be read"), (header, "no rows after the first")),
        *((header + b"1,2\r\n", "row 2 has 2 cells, not 7"), (b"\xff\xfe\x00", "UTF-8")),
    ):
        if content is not None:
            path.write_bytes(content)
        refuse(words, read_forms, key, folder, [path])
    refuse("not a regular file", read_forms, key, folder, [tmp_path])


def test_changed_images_are_refused(root, tmp_path):
    folder = tmp_path / "sample"
    key = make_sample(folder, root, readers=("Ann",), num_cases=3)
    back = tmp_path / "back"
    back.mkdir()
    form = fill(folder / "Ann" / "form.csv", key, guess(key, 0), out=back / "Ann answers.csv")
    assert len(read_forms(key, folder, [form])) == 1

    shutil.copytree(folder / "Ann" / "images", back / "images")
    assert len(read_forms(key, folder, [form])) == 1
    for path in (back / "images" / "case_0002.png", folder / "Ann" / "images" / "case_0001.png"):
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + b"?")
        assert refuse("", read_forms, key, folder, [form]).startswith(f"{path} was changed")
        path.write_bytes(whole)
    (folder / "Ann" / "images" / "case_0003.png").unlink()
    refuse(r"case_0003\.png cannot be read", read_forms, key, folder, [form])


def test_accuracy_is_scikit_learns_over_the_cases_with_an_answer(sample, answers, comparison, predictions):
    _, key = sample
    truth = truth_of(key)
    student = read_answers(predictions, key)["student"]
    for place, step in enumerate(comparison.steps):
        known = truth[:, place] != NOT_ANNOTATED
        assert step.num_cases == known.sum()
        each = {name: accuracy_score(truth[known, place], answers[name][known, place]) for name in READERS}
        for name in READERS:
            assert step.accuracy[f"reader {name}"].value == pytest.approx(each[name])
        assert step.accuracy["readers"].value == pytest.approx(np.mean(list(each.values())))
        assert step.accuracy["teacher"].value == 1.0
        assert step.accuracy["student"].value == pytest.approx(
            accuracy_score(truth[known, place], student[known, place])
        )
        assert step.gains["student"].value == pytest.approx(
            step.accuracy["student"].value - step.accuracy["readers"].value
        )
    assert 0 < comparison.steps[2].num_cases < 24


def macro(score, truth, answers):
    """scikit-learn's macro average over the answers that are true ones."""
    return score(truth, answers, average="macro", labels=np.unique(truth), zero_division=0)


def test_sensitivity_and_f1_are_scikit_learns_macro_averages(sample, answers, comparison, predictions):
    _, key = sample
    truth = truth_of(key)
    models = read_answers(predictions, key)
    for place, step in enumerate(comparison.steps):
        known = truth[:, place] != NOT_ANNOTATED
        for found, score in ((step.sensitivity, recall_score), (step.f1, f1_score)):
            each = [macro(score, truth[known, place], answers[name][known, place]) for name in READERS]
            assert [found[f"reader {name}"].value for name in READERS] == pytest.approx(each)
            assert (found["readers"].value, found["teacher"].value) == (pytest.approx(np.mean(each)), 1.0)
            assert found["student"].value == pytest.approx(
                macro(score, truth[known, place], models["student"][known, place])
            )
    # One reader's answers in print, at the first step: neither figure is the accuracy.
    first = comparison.steps[0]
    assert len({round(found["reader Ann"].value, 6) for found in (first.accuracy, first.sensitivity, first.f1)}) == 3


def test_intervals_of_f1_are_those_of_the_resampled_cases(answers, comparison, sample):
    """Each resample written out as cases, given to scikit-learn, and the mean taken over the readers."""
    _, key = sample
    truth, step = truth_of(key)[:, 0], comparison.steps[0]
    patients = np.array([case.patient_id for case in key.cases])
    drawn = []
    for counts in np.concatenate(list(draw_weights(patients, num_resamples=100, seed=4))).astype(int):
        own = np.repeat(truth, counts)
        drawn.append([macro(f1_score, own, np.repeat(answers[name][:, 0], counts)) for name in READERS])
    for name, found in (("readers", np.mean(drawn, axis=1)), ("reader Bo", np.array(drawn)[:, 1])):
        low, high = np.quantile(found, [0.025, 0.975])
        assert (step.f1[name].low, step.f1[name].high) == (pytest.approx(low), pytest.approx(high))
        assert low < step.f1[name].value < high


def test_intervals_are_those_of_the_evaluator_for_answers_given_once_a_reader(sample, answers, comparison, predictions):
    """All readers as one model that reads every case three times, by the evaluator's own bootstrap."""
    _, key = sample
    truth, certain = truth_of(key).astype(np.int32), np.eye(9, dtype=np.float32)
    models = {
        "readers": np.concatenate([certain[answers[name]] for name in READERS]),
        "reader Bo": np.tile(certain[answers["Bo"]], (3, 1, 1)),
        "student": np.tile(certain[read_answers(predictions, key)["student"]], (3, 1, 1)),
    }
    patients = np.tile([case.patient_id for case in key.cases], 3)
    split = of_arrays(np.tile(truth, (3, 1)), models, case_id=[*map(str, range(72))], patient_id=patients)
    expected = bootstrap(split, CHAIN, num_resamples=100, seed=4)
    gains = bootstrap_differences(split, CHAIN, first="student", second="readers", num_resamples=100, seed=4)
    for place, step in enumerate(comparison.steps):
        for name in models:
            assert_same(step.accuracy[name], expected[name].steps[place].accuracy)
            assert_same(step.sensitivity[name], expected[name].steps[place].sensitivity)
        assert_same(step.f1["student"], expected["student"].steps[place].f1)
        assert_same(step.gains["student"], gains.steps[place].accuracy)
    assert comparison.steps[0].accuracy["readers"].low < comparison.steps[0].accuracy["readers"].value


def assert_same(found: Interval, expected: Interval):
    np.testing.assert_allclose(
        [found.value, found.low, found.high, found.undefined],
        [expected.value, expected.low, expected.high, expected.undefined],
        atol=1e-12,
    )


def test_agreement_is_cohens_of_two_and_fleiss_of_all(answers, comparison, sample, predictions):
    student = read_answers(predictions, sample[1])["student"]
    pairs = list(itertools.combinations(READERS, 2))
    for place, step in enumerate(comparison.steps):
        labels = {name: found[:, place] for name, found in answers.items()}
        counts = np.stack([sum(found == label for found in labels.values()) for label in range(9)], axis=1)
        among, *others = step.agreements
        assert (among.kind, among.names) == ("Fleiss", tuple(f"reader {name}" for name in READERS))
        assert among.kappa.value == pytest.approx(fleiss_kappa(counts).item())
        assert [found.names for found in others[:3]] == [(f"reader {a}", f"reader {b}") for a, b in pairs]
        for (one, other), pair in zip(pairs, others[:3], strict=True):
            assert pair.kappa.value == pytest.approx(cohen_kappa_score(labels[one], labels[other]))
            assert (pair.share.value, pair.num_cases) == (pytest.approx(np.mean(labels[one] == labels[other])), 24)
        [with_student] = [found for found in others if found.names == ("reader Bo", "student")]
        assert with_student.kappa.value == pytest.approx(cohen_kappa_score(labels["Bo"], student[:, place]))
        assert len(others) == 3 + 6


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning", "ignore:invalid value")
def test_intervals_of_agreement_are_those_of_the_resampled_cases(answers, comparison, sample):
    """Each resample written out as cases, patient by patient, and given to scikit-learn and to Fleiss' formula."""
    _, key = sample
    patients = np.array([case.patient_id for case in key.cases])
    weights = np.concatenate(list(draw_weights(patients, num_resamples=100, seed=4)))
    one, other = READERS[:2]
    for place, step in enumerate(comparison.steps[:2]):
        cohens, fleiss = [], []
        for counts in weights.astype(int):
            drawn = {name: np.repeat(found[:, place], counts) for name, found in answers.items()}
            cohens.append(cohen_kappa_score(drawn[one], drawn[other]))
            ratings = np.stack([sum(found == label for found in drawn.values()) for label in range(9)], axis=1)
            share = (ratings.sum(axis=0) / ratings.sum()) ** 2
            agree = (ratings * (ratings - 1)).sum(axis=1) / (len(READERS) * (len(READERS) - 1))
            fleiss.append((agree.mean() - share.sum()) / (1 - share.sum()))
        for found, expected in zip(step.agreements, (fleiss, cohens), strict=False):
            low, high = np.nanquantile(expected, [0.025, 0.975])
            assert (found.kappa.low, found.kappa.high) == (pytest.approx(low), pytest.approx(high))
            assert low < found.kappa.value < high
            assert found.share.low < found.share.value < found.share.high


def form_of(key, name, labels):
    return FilledForm(name, f"{name}.csv", np.asarray(labels, np.int32))


def test_a_gain_is_named_where_its_interval_excludes_zero_and_p_goes_by_patient(
    sample, predictions, answers, comparison
):
    _, key = sample
    truth = truth_of(key)
    wrong = np.where(truth == 0, 1, 0)
    right = np.maximum(truth, 0)
    names = {"better": wrong, "not significantly different": right}
    for expected, labels in names.items():
        table = tabulate_gains(compare_readers(key, [form_of(key, "Ann", labels)], predictions, num_resamples=200))
        assert {row[-1] for row in table.rows if row[1] == "teacher"} == {expected}
    student = [row for row in table.rows if row[1] == "student"]
    assert {row[-1] for row in student} == {"worse"}
    student = read_answers(predictions, key)["student"]
    for place, step in enumerate(comparison.steps):
        known = truth[:, place] != NOT_ANNOTATED
        by_patient = {}
        for case, patient in enumerate(case.patient_id for case in key.cases):
            if known[case]:
                more = 3 * (student[case, place] == truth[case, place])
                more -= sum(answers[name][case, place] == truth[case, place] for name in READERS)
                by_patient[patient] = by_patient.get(patient, 0) + int(more)
        assert step.num_patients == len(by_patient)
        assert step.p_values["student"] == pytest.approx(flip_signs(np.array([*by_patient.values()], np.int64)))


@given(st.lists(st.integers(-4, 4), max_size=9))
def test_flipped_signs_are_all_counted(differences):
    found = np.array(differences, np.int64)
    sums = [np.dot(signs, found) for signs in itertools.product((-1, 1), repeat=len(found))]
    assert flip_signs(found) == pytest.approx(np.mean(np.abs(sums) >= abs(found.sum())))


def test_one_reader_and_no_model_are_enough_and_predictions_of_other_cases_are_refused(sample, answers, predictions):
    _, key = sample
    comparison = compare_readers(key, [form_of(key, "Ann", answers["Ann"])], num_resamples=20)
    assert (comparison.models, comparison.steps[0].agreements) == ((), ())
    assert comparison.steps[0].accuracy["readers"] == comparison.steps[0].accuracy["reader Ann"]
    assert tabulate_agreement(comparison).rows == ()
    refuse("--num-resamples=0", lambda: compare_readers(key, [form_of(key, "Ann", answers["Ann"])], num_resamples=0))
    refuse("FORM is required", compare_readers, key, [])
    for changes, words in (
        ({"image_path": "images/no.png"}, "case 'images/no.png' is missing"),
        ({"labels": (0,) * 7}, "other labels than in the sample's key"),
    ):
        case = msgspec.structs.replace(key.cases[4], **changes)
        with pytest.raises(BadInput, match=words):
            read_answers(predictions, msgspec.structs.replace(key, cases=(*key.cases[:4], case, *key.cases[5:])))


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
