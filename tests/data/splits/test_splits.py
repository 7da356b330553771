import collections
import dataclasses
import hashlib
import io
import json
import zipfile

import hypothesis
import msgspec
import numpy as np
import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_says, edit_json, refuse

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.records.records import SetAside
from stepcot_jax.data.splits.making import form_groups, make_fold, make_splits
from stepcot_jax.data.splits.split_resolver import read_splits
from stepcot_jax.data.splits.splits import Splits, check_manifest, write_manifest
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record


def make_case(patient, image, label=0, origin=""):
    return Record(
        patient=str(patient), image=f"images/{image}.png", origin=origin, answers=(0, label), reasoning=("", "")
    )


SIZES = (3, 4, 7, 7, 5, 4, 12)  # answers of each step
CASES = (
    *(make_case("0001", "a"), make_case("0001", "b"), make_case("0020", "c"), make_case("P3", "d")),
    make_case("0x4", "e"),
)
IMAGE_ROWS = {
    "train": [["image_path"], ["images/a.png"], ["images/b.png"]],
    "val": [["image_path"], ["images/c.png"]],
    "test": [["image_path"], ["images/d.png"], ["images/e.png"]],
}
PATIENT_ROWS = {
    "train": [["patient_id"], ["0001"]],
    "val": [["patient_id"], ["0020"]],
    "test": [["patient_id"], ["P3"], ["0x4"]],
}
EXPECTED = Splits((0, 1), (2,), (3, 4))


def write_tables(root, tables, *, suffix="csv"):
    for name, rows in tables.items():
        if suffix == "csv":
            lines = (",".join(str("" if cell is None else cell) for cell in row) for row in rows)
            (root / f"{name}.csv").write_text("\n".join(lines), encoding="utf-8")
            continue
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(row)
        book.save(root / f"{name}.xlsx")


def refusal(root, tables=None, *, cases=CASES, **settings):
    if tables is not None:
        write_tables(root, {**IMAGE_ROWS, **tables})
    message = refuse("", read_splits, root, cases, **settings)
    assert str(root) in message
    return message


ODD_ROWS = {
    "train": [["No", "Image Path", "PATIENT_ID"], [1, "./images/a.png", "0001"], [2, "images\\b.png", "0001"]],
    "val": [["image_path", "patient_id", ""], ["images/c.png", None], [None, None], ["", ""]],
    "test": [[None, None], ["patient_id"], ["P3"], ["0x4"]],
}


@pytest.mark.parametrize("suffix", ["csv", "xlsx"])
@pytest.mark.parametrize("tables", [IMAGE_ROWS, PATIENT_ROWS, ODD_ROWS])
def test_reads_tables_by_image_or_patient_in_any_case_and_order_among_other_columns(tmp_path, suffix, tables):
    write_tables(tmp_path, tables, suffix=suffix)
    assert read_splits(tmp_path, CASES) == EXPECTED


@pytest.mark.parametrize("number", [1, 1.0, "1.0", "01"])
def test_a_number_means_the_patient_with_zeros_before_it(tmp_path, number):
    both = [["image_path", "patient_id"], ["images/a.png", number], ["images/b.png", number]]
    for tables in ({**PATIENT_ROWS, "train": [["patient_id"], [number]]}, {**IMAGE_ROWS, "train": both}):
        write_tables(tmp_path, tables, suffix="xlsx")
        assert read_splits(tmp_path, CASES) == EXPECTED


def test_a_number_means_every_spelling_of_a_patient(tmp_path):
    cases = (*CASES, make_case("01", "f"))
    write_tables(tmp_path, {**PATIENT_ROWS, "train": [["patient_id"], ["\uff11"]]})
    assert read_splits(tmp_path, cases).train == (0, 1, 5)
    message = refusal(tmp_path, {"test": [*IMAGE_ROWS["test"], ["images/f.png"]]}, cases=cases)
    assert_says(message, "patients are in more than one split", "train.csv row 2, test.csv row 4")
    refused = refusal(tmp_path, {"train": [["patient_id"], ["8.39861E+35"]]}, cases=cases)
    assert_says(refused, "train.csv: row 2: patient_id: is a number that a spreadsheet shortened")


def test_splits_that_the_records_name(tmp_path):
    splits = ["train", "train", "val", "test", "test"]
    named = [msgspec.structs.replace(case, split=split) for case, split in zip(CASES, splits, strict=True)]
    assert read_splits(tmp_path, named) == EXPECTED
    assert_says(refusal(tmp_path, cases=[*named, CASES[0]]), "cases are in no split: 'images/a.png'")
    write_tables(tmp_path, PATIENT_ROWS)
    assert read_splits(tmp_path, named) == EXPECTED
    named[2] = msgspec.structs.replace(named[2], split="test")
    message = refusal(tmp_path, {}, cases=named)
    assert_says(message, "records name another split than the tables: test for 'images/c.png'")


def test_formulas_without_stored_values_are_refused_where_they_matter(tmp_path):
    write_tables(tmp_path, {**PATIENT_ROWS, "train": [["patient_id", "n"], ["0001", "=1+1"]]}, suffix="xlsx")
    assert read_splits(tmp_path, CASES) == EXPECTED
    write_tables(tmp_path, {"train": [["patient_id"], ["=1"], ["=1+1"]]}, suffix="xlsx")
    refuse(r"train.xlsx: 2 cells have formulas without stored values; open and save it", read_splits, tmp_path, CASES)


BOTH, TWICE = ["patient_id", "image_path"], "a case that an earlier row of the table names: val.csv: row 3"
REFUSED = [
    ([["image_path"], ["images/z.png"]], "an image_path that data.json does not have: val.csv: row 2"),
    ([["patient_id"], ["P9"]], "a patient_id that data.json does not have: val.csv: row 2 (patient_id 'P9')"),
    ([["image_path"], [""], ["images/c.png"], ["x"]], "row 4 (image_path 'x')"),
    ([BOTH, ["P3", "images/c.png"]], "another patient than the image's in data.json: val.csv"),
    ([["image_path"], ["images/c.png"], ["./images/c.png"]], f"{TWICE} (image_path './images/c.png')"),
    ([BOTH, ["0020", ""], ["", "images/c.png"]], f"{TWICE} (image_path 'images/c.png')"),
    ([BOTH, ["", "images/c.png"], ["0020", ""]], f"{TWICE} (patient_id '0020'"),
    ([["image_path"], ["images/y.png"], ["images/z.png"], ["x"]], "3 rows name an image_path"),
    ([["name", "origin"], ["x", "y"]], "columns ['name', 'origin'] name no case; expected a table whose first row"),
    ([], "the table is empty"),
    ([["patient_id", "Patient ID"], ["P3", "P3"]], "column patient_id is there more than once"),
    ([["image_path"]], "splits have no case: val"),
]


@pytest.mark.parametrize(("rows", "found"), REFUSED)
def test_refuses_rows_and_tables_that_name_nothing_or_something_twice(tmp_path, rows, found):
    assert_says(refusal(tmp_path, {"val": rows}), found)


def zip_of(name):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, "<a/>")
    return stream.getvalue()


UNREADABLE = [
    ("val.xlsx", b"image_path\nimages/c.png", "val.xlsx: is not an .xlsx: no zip archive (a CSV?)"),
    ("val.xlsx", b"PK\x05\x06" + bytes(18), "val.xlsx: is a zip archive, but no .xlsx"),
    ("val.xlsx", b"\xd0\xcf\x11\xe0" + bytes(8), "is an .xls of before 2007, another old Office file"),
    ("val.xlsx", zip_of("content.xml"), "val.xlsx: is an OpenDocument spreadsheet (.ods)"),
    ("val.csv", b"PK\x03\x04", "val.csv: is a zip archive, as an .xlsx is"),
    ("val.csv", b"\n<!DOCTYPE html>", "val.csv: is an HTML page"),
    ("val.csv", "image_path\nimages/ä.png".encode("latin-1"), "val.csv: row 2 is not UTF-8 (Windows-1252?); save"),
    ("val.csv", b"image_path|patient_id\n", "val.csv: the columns are separated by '|'"),
    ("val.csv", b'image_path\n"images/c.png', "val.csv: the row at line 2 is malformed"),
    ("val.csv", b"image_path\n" + b"x" * 200_000, "val.csv: row 2 has a name of 200000 characters"),
]


@pytest.mark.parametrize(("name", "content", "found"), UNREADABLE)
def test_refuses_unreadable_tables(tmp_path, name, content, found):
    write_tables(tmp_path, {name: rows for name, rows in IMAGE_ROWS.items() if name != "val"})
    (tmp_path / name).write_bytes(content)
    assert_says(refusal(tmp_path), found)


def test_rows_of_records_that_were_set_aside_are_passed_over(tmp_path):
    aside = [(0, "./images/y.png", "", "0077"), (9, "", "", ""), (10, "images/a.png", "twice", "0001")]
    set_aside = [SetAside(*each) for each in aside]
    train, val = [*IMAGE_ROWS["train"], ["images/y.png"]], [["patient_id"], ["0020"], ["77"]]
    write_tables(tmp_path, {"train": train, "val": val, "test": PATIENT_ROWS["test"]})
    assert read_splits(tmp_path, CASES, set_aside=set_aside) == EXPECTED
    assert_says(refusal(tmp_path), "row 4 (image_path 'images/y.png')")


@st.composite
def case_lists(draw):
    num_patients = draw(st.integers(3, 60))
    num_images = draw(st.lists(st.integers(1, 5), min_size=num_patients, max_size=num_patients))
    label = st.sampled_from([NOT_ANNOTATED, 0, 0, 0, 1, 2, 3])
    origin = st.sampled_from(["", "x", "y"])
    return [
        make_case(f"p{patient}", f"{patient}-{image}", draw(label), draw(origin))
        for patient, num in enumerate(num_images)
        for image in range(num)
    ]


def images_of(splits, cases):
    return [{cases[index].image for index in indices} for indices in splits.by_name().values()]


@given(case_lists(), st.integers(-5, 2**40), st.randoms(use_true_random=False))
def test_made_splits_are_complete_disjoint_and_deterministic(cases, seed, order):
    splits = make_splits(cases, seed=seed)
    assert sorted([index for part in splits.by_name().values() for index in part]) == list(range(len(cases)))
    patients = [{cases[index].patient for index in part} for part in splits.by_name().values()]
    assert sum(map(len, patients)) == len({case.patient for case in cases})
    assert all(patients)
    shuffled = order.sample(cases, len(cases))
    assert images_of(make_splits(shuffled, seed=seed), shuffled) == images_of(splits, cases)


@st.composite
def stratified_case_lists(draw):
    cases = []
    for stratum in draw(st.sets(st.tuples(st.sampled_from([NOT_ANNOTATED, 0, 1, 2]), st.sampled_from("xyz")))):
        num_images = draw(st.lists(st.integers(1, 4), min_size=1, max_size=60))
        for patient, num in enumerate(num_images):
            name = f"{stratum[0]}{stratum[1]}{patient}"
            cases += [make_case(name, f"{name}-{image}", *stratum) for image in range(num)]
    hypothesis.assume(len({case.patient for case in cases}) >= 3)
    return cases


@given(stratified_case_lists(), st.integers(0, 100), st.sampled_from([(0.7, 0.15, 0.15), (0.5, 0.3, 0.2)]))
def test_a_large_stratum_is_off_its_share_by_less_than_one_patient_and_no_split_lacks_a_diagnosis(
    cases, seed, fractions
):
    parts = make_splits(cases, seed=seed, fractions=fractions).by_name().values()
    by_patient = collections.Counter((case.answers[-1], case.origin, case.patient) for case in cases)
    for stratum, total in collections.Counter((case.answers[-1], case.origin) for case in cases).items():
        largest = max(num for key, num in by_patient.items() if key[:2] == stratum)
        for part, share in zip(parts, fractions, strict=True):
            found = sum((cases[index].answers[-1], cases[index].origin) == stratum for index in part)
            assert min(fractions) * total < largest or abs(found - share * total) < largest
    patients = collections.Counter(label for label, _, _ in by_patient)
    enough = {label for label, number in patients.items() if number >= 3}
    assert all(enough <= {cases[index].answers[-1] for index in part} for part in parts)


def test_a_group_counts_for_what_is_rarest_in_it_and_for_no_annotation_last():
    cases = [make_case(patient, f"{patient}-{label}", label, "x") for patient in range(5) for label in (0, 1)]
    cases += [make_case(0, "none", NOT_ANNOTATED, "y"), make_case(9, "zero", 0, "x"), make_case(8, "null", -100, "x")]
    strata = {group.patients: group.stratum for group in form_groups(cases, [(0, 2)])}
    named = {"2": (1, "x"), "3": (1, "x"), "4": (1, "x"), "8": (NOT_ANNOTATED, "x"), "9": (0, "x")}
    assert strata == {("0", "1"): (1, "y")} | {(patient,): stratum for patient, stratum in named.items()}


PUBLISHED_ORIGINS = {"IU X-Ray": 3749, "PadChest-GR": 3230, "Med-Image-Reports": 3089}


def published_cases():
    """As many cases as published, of each diagnosis and origin; how these go together is not published."""
    origins = [origin for origin, num in PUBLISHED_ORIGINS.items() for _ in range(num)]
    np.random.default_rng(0).shuffle(origins)
    labels = [label for label, num in enumerate([6787, 851, 731, 723, 440, 276, 131, 88, 41]) for _ in range(num)]
    return [make_case(n, n, label, origin) for n, (label, origin) in enumerate(zip(labels, origins, strict=True))]


@pytest.mark.parametrize("seed", range(2))
def test_made_splits_have_the_published_sizes_and_proportions(seed):
    cases = published_cases()
    keys = (lambda case: case.answers[-1], lambda case: case.origin, lambda case: (case.answers[-1], case.origin))
    for part, share in zip(make_splits(cases, seed=seed).by_name().values(), (0.7, 0.15, 0.15), strict=True):
        assert abs(len(part) - share * len(cases)) < 1
        for key in keys:
            counts = collections.Counter(key(cases[index]) for index in part)
            for value, num in collections.Counter(map(key, cases)).items():
                assert abs(counts[value] - round(share * num)) <= 1


@given(case_lists(), st.integers(0, 100), st.data())
def test_joined_cases_are_on_one_side(cases, seed, data):
    place, fractions = st.integers(0, len(cases) - 1), (0.4, 0.3, 0.3)
    joined = data.draw(st.lists(st.tuples(place, place), max_size=6))
    try:
        splits = make_splits(cases, seed=seed, joined=joined, fractions=fractions)
    except BadInput as error:
        assert "to one group" in str(error) or "cannot fill 3 splits" in str(error)  # noqa: PT017
        return
    split_of = {index: name for name, indices in splits.by_name().items() for index in indices}
    assert sorted(split_of) == list(range(len(cases)))
    of_patients = {(case.patient, split_of[index]) for index, case in enumerate(cases)}
    assert len(of_patients) == len({case.patient for case in cases})
    assert all(split_of[one] == split_of[other] for one, other in joined)
    assert splits == make_splits(cases, seed=seed, joined=[pair[::-1] for pair in joined[::-1]], fractions=fractions)


def test_refuses_a_group_that_the_smallest_split_cannot_hold():
    cases = [make_case(number, number) for number in range(100)]
    chain = [(number, number + 1) for number in range(20, 35)]
    make_splits(cases, seed=0, joined=chain[:-1])
    group = r"16 patients with 16 images of 100 to one group \(one is 'images/20.png'\)"
    refuse(rf"{group}; the smallest split holds 15: a smaller radius", make_splits, cases, seed=0, joined=chain)


@pytest.mark.parametrize(
    "fractions", [(0.7, 0.2, 0.2), (1.0, 0.0, 0.0), (1.2, -0.1, -0.1), (0.5, 0.5), (float("nan"),) * 3]
)
def test_refuses_fractions_that_are_none(fractions):
    refuse(r"split fractions: .* three numbers above 0 with sum 1", make_splits, CASES, seed=0, fractions=fractions)


def test_a_manifest_accepts_its_own_data_in_the_same_splits_alone(tmp_path):
    path = tmp_path / "run" / "splits.json"
    write_manifest(path, EXPECTED, CASES, source="made")
    assert json.loads(path.read_text())["splits"]["val"] == ["images/c.png"]
    check_manifest(path, EXPECTED, CASES)
    check_manifest(path, Splits((3, 4), (2,), (0, 1)), CASES[::-1])
    check_manifest(path, Splits((0, 1), (2,), (3,)), CASES[:4], set_aside=[SetAside(4, "images/e.png", "")])
    check_manifest(path, EXPECTED, [msgspec.structs.replace(case, report="new") for case in CASES])
    others = (make_case("0001", "a", 1), *CASES[2:], make_case("P9", "z"))
    for words, splits, cases in (
        ("3 of 5 images are in another split now", Splits((0, 1), (3, 4), (2,)), CASES),
        ("the splits do not match the data", Splits((0, 1), (2,), (3,)), CASES[:4]),
        ("1 images are not in the data .* 1 of the data's 5 images are missing .* 1 images have", EXPECTED, others),
        ("1 images have another patient or other labels", EXPECTED, (*CASES[:-1], make_case("P9", "e"))),
    ):
        assert str(path) in refuse(words, check_manifest, path, splits, cases)
    edit_json(path, lambda content: content["checksums"]["val"].reverse() or content["checksums"]["test"].reverse())
    refuse("does not match its digest", check_manifest, path, EXPECTED, CASES)


def test_made_splits_stay_the_same_with_every_version_of_python():
    """From Python 3.12 on `sum` rounds floats in another way, which changed the third of these."""
    plain = [make_case(f"{number % 37:04d}", number, number % 5, "AB"[number % 2]) for number in range(200)]
    spelled = [
        make_case(f"{int(case.patient)}.0", n, n % 5, case.origin) if n > 99 else case for n, case in enumerate(plain)
    ]
    assert make_splits(spelled, seed=3) == make_splits(plain, seed=3)
    collections_of = [(plain, 3)]
    for number, seed in ((150, 2), (200, 1)):
        rng, cases = np.random.default_rng(seed), []
        for index in range(number):
            patient, answers = f"p{rng.integers(number)}", tuple(map(int, rng.integers(0, SIZES)))
            cases.append(Record(patient=patient, image=f"images/{index}.png", answers=answers, reasoning=()))
        collections_of.append((cases, seed))
    digests = [repr(dataclasses.astuple(make_splits(cases, seed=seed))) for cases, seed in collections_of]
    digests = [hashlib.sha256(digest.encode()).hexdigest()[:16] for digest in digests]
    assert digests == ["7421ed2a09829bf1", "e7ffcf748dc2af0a", "5f348b9c7b683aa6"]


def make_patients():
    rng, found = np.random.default_rng(0), []
    for patient in range(60):
        for image in range(int(rng.integers(1, 5))):
            label = int(rng.choice([0, 1, NOT_ANNOTATED], p=[0.5, 0.2, 0.3]))
            found.append(make_case(f"P{patient}", f"{patient}_{image}", label))
    return found


OF_FOLDS = make_patients()


def make_all(cases=OF_FOLDS, num_folds=5, **arguments):
    arguments = {"seed": 0, **arguments}
    return [make_fold(cases, fold=f"{number}/{num_folds}", **arguments) for number in range(1, num_folds + 1)]


@pytest.mark.parametrize("num_folds", [2, 5])
def test_every_case_is_a_test_case_once_and_in_one_split_of_each_fold(num_folds):
    folds = make_all(num_folds=num_folds)
    assert sorted(index for splits in folds for index in splits.test) == list(range(len(OF_FOLDS)))
    for splits in folds:
        assert sorted(splits.train + splits.val + splits.test) == list(range(len(OF_FOLDS)))
        patients = [{OF_FOLDS[index].patient for index in indices} for indices in splits.by_name().values()]
        assert sum(map(len, patients)) == len(set.union(*patients))


def test_folds_keep_the_ratio_of_training_to_validation():
    for splits in make_all(fractions=(0.6, 0.2, 0.2)):
        assert len(splits.val) == pytest.approx((len(splits.train) + len(splits.val)) / 4, abs=4)


def test_folds_are_of_one_size_depend_on_the_seed_and_keep_joined_patients():
    folds = make_all()
    sizes = [len(splits.test) for splits in folds]
    assert max(sizes) - min(sizes) <= 4  # images of the largest patient
    for label in (0, 1):
        counts = [sum(OF_FOLDS[index].answers[-1] == label for index in splits.test) for splits in folds]
        assert max(counts) - min(counts) <= 6
    order = np.random.default_rng(1).permutation(len(OF_FOLDS))
    shuffled = [OF_FOLDS[index] for index in order]
    found = [images_of(splits, OF_FOLDS) for splits in folds]
    assert [images_of(splits, shuffled) for splits in make_all(shuffled)] == found
    assert [images_of(splits, OF_FOLDS) for splits in make_all(seed=1)] != found
    first = {case.patient: index for index, case in reversed(list(enumerate(OF_FOLDS)))}
    pair = (first["P1"], first["P2"])
    for splits in make_all(joined=[pair]):
        split_of = {index: name for name, indices in splits.by_name().items() for index in indices}
        assert split_of[pair[0]] == split_of[pair[1]]
