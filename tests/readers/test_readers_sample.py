import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from readers.reader_samples import (
    CHAIN,
    DIAGNOSES,
    HOSTILE,
    SECRETS,
    make_cases,
    make_sample,
    read_cells,
    write_folder,
    write_run,
)
from refusals import refuse

from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.reading.cases import open_run
from stepcot_jax.tools.readers import command as tool
from stepcot_jax.tools.readers.forms import check_names, choose_stratified, name_image, read_key


@pytest.fixture(scope="module")
def sample(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples") / "sample"
    return folder, make_sample(folder, root)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.data())
def test_shares_are_off_by_less_than_one_and_add_up(sizes, data):
    strata = [label for label, size in enumerate(sizes) for _ in range(size)]
    total, names = data.draw(st.integers(1, len(strata))), [f"n{number}" for number in range(len(strata))]
    chosen = choose_stratified(names, strata, num_cases=total, seed=data.draw(st.integers(0, 3)))
    assert len(set(chosen)) == total
    for label, size in enumerate(sizes):
        assert abs([strata[index] for index in chosen].count(label) - total * size / len(strata)) < 1


def test_the_draw_depends_on_seed_and_names_alone():
    names, strata = [f"n{number}" for number in range(40)], [number % 3 for number in range(40)]
    drawn = [names[index] for index in choose_stratified(names, strata, num_cases=15, seed=0)]
    order = np.random.default_rng(0).permutation(40)
    shuffled = [names[index] for index in order], [strata[index] for index in order]
    again = [shuffled[0][index] for index in choose_stratified(*shuffled, num_cases=15, seed=0)]
    assert (drawn, len(set(drawn))) == (again, 15)
    assert {names[index] for index in choose_stratified(names, strata, num_cases=15, seed=1)} != set(drawn)
    # The order of a draw tells nothing of the strata.
    names, strata = [f"n{number}" for number in range(400)], [0] * 200 + [1] * 200
    drawn = [strata[index] for index in choose_stratified(names, strata, num_cases=100, seed=3)]
    assert sum(drawn) == 50
    assert 15 < sum(drawn[:50]) < 35


def test_cases_are_drawn_by_diagnosis_into_a_form_with_every_option_and_no_formula(sample):
    folder, key = sample
    diagnoses = [case.labels[-1] for case in key.cases]
    assert {label: diagnoses.count(label) for label in set(DIAGNOSES)} == {0: 6, 1: 4, 7: 2, -100: 0}
    assert key.chain == CHAIN
    rows = read_cells(folder / "Ann" / "form.csv")
    order = [int(row["case"]) for row in rows[::7]]
    assert sorted(order) == list(range(1, 13))
    assert order != [int(row["case"]) for row in read_cells(folder / "Bo" / "form.csv")[::7]]
    assert [(row["case"], row["step"]) for row in rows] == [
        (str(number), f"Step {place}") for number in order for place in range(1, 8)
    ]
    assert [row["image"] for row in rows[::7]] == [f"case_{number:04d}.png" for number in order]
    assert [key.readers[form] for form in {row["form"] for row in rows}] == ["Ann"]
    assert [row["options"] for row in rows[:7]] == ["; ".join(step.lettered_options) for step in CHAIN.steps]
    assert ({row["answer"] for row in rows}, rows[0]["question"]) == ({""}, HOSTILE)
    assert rows[6]["question"] == "'=What is it?"


def test_a_dicom_file_becomes_a_picture_without_its_patient(tmp_path):
    pytest.importorskip("pydicom", reason="needs the extra dicom")
    from data.images.test_dicom import MARKERS, make, write

    pixels = np.linspace(0, 4095, 80).astype(np.uint16).reshape(8, 10)
    case = msgspec.structs.replace(make_cases()[1], image="images/scan.dcm")
    root = write_folder(tmp_path / "root", [case, *make_cases()[2:4]])
    (root / "images" / "scan.dcm").write_bytes(write(make(pixels, BitsStored=12, HighBit=11)))
    key = make_sample(tmp_path / "sample", root, readers=("Ann",), num_cases=3)
    number = 1 + [each.image_path for each in key.cases].index("images/scan.dcm")
    path = tmp_path / "sample" / "Ann" / "images" / name_image(number)
    content = path.read_bytes()
    assert list_chunks(content) == {b"IHDR", b"IDAT", b"IEND"}
    given = np.asarray(Image.open(path))
    assert given.shape[:2] == (8, 10)
    assert (np.diff(given.reshape(80, -1)[:, 0].astype(int)) >= 0).all()
    assert given.max() - given.min() > 200
    assert not [value for value in MARKERS.values() if str(value).encode() in content]


def test_readers_get_a_form_and_pictures_and_nothing_that_tells(sample, root):
    folder, key = sample
    assert sorted(path.name for path in folder.iterdir()) == ["Ann", "Bo", "key.json"]
    for name in key.readers.values():
        files = {str(path.relative_to(folder / name)) for path in (folder / name).rglob("*")}
        assert files == {"form.csv", "images", *(f"images/case_{number:04d}.png" for number in range(1, 13))}
        for path in (folder / name).rglob("*.*"):
            assert not [word for word in SECRETS if word.encode() in path.read_bytes()], path
    for number, case in enumerate(key.cases, start=1):
        path = folder / "Bo" / "images" / name_image(number)
        assert list_chunks(path.read_bytes()) == {b"IHDR", b"IDAT", b"IEND"}
        np.testing.assert_array_equal(np.asarray(Image.open(path)), np.asarray(Image.open(root / case.image_path)))


def list_chunks(content):
    place, kinds = 8, set()
    while place < len(content):
        kinds.add(content[place + 4 : place + 8])
        place += 12 + int.from_bytes(content[place : place + 4], "big")
    return kinds


def test_the_key_comes_back_and_a_sample_is_made_again_alike(sample, root, tmp_path):
    folder, key = sample
    assert (read_key(folder), make_sample(tmp_path / "again", root)) == (key, key)
    for name in key.readers.values():
        content = (folder / name / "form.csv").read_bytes()
        assert (tmp_path / "again" / name / "form.csv").read_bytes() == content
    other = make_sample(tmp_path / "other", root, seed=1)
    assert other.cases != key.cases
    assert not {*other.readers} & {*key.readers}


def test_names_that_are_no_folders_a_used_folder_and_too_many_cases_are_refused(sample, root, tmp_path):
    for name in ("a/b", "..", "a.", "a" * 41, "a\n", "a:b", "-a"):
        refuse("--readers", check_names, [name])
    check_names(["Dr. Größe", "reader_2", "x"])
    refuse("not one or more distinct names", check_names, ["Ann", "ann"])
    refuse("is not empty", make_sample, sample[0], root)
    refuse("--num-cases=25 is not 1 to 24", make_sample, tmp_path / "new", root, num_cases=25)
    assert not (tmp_path / "new").exists()


def test_cases_of_a_run_are_those_it_predicted_with_its_images_and_other_data_are_refused(root, tmp_path):
    tested = make_cases()[3:20]
    run = write_run(tmp_path / "run", tested, data__source="folder", data__root=str(root))
    source = open_run(run, "test")
    assert [case.image for case in source.cases] == [case.image for case in tested]
    np.testing.assert_array_equal(np.asarray(source.picture(4)), np.asarray(Image.open(root / tested[4].image)))
    assert open_run(run, "test", root=root).cases == source.cases
    refuse(r"val\.npz", open_run, run, "val")
    cases = make_cases()
    changed = [*cases[:2], msgspec.structs.replace(cases[2], answers=(0,) * 7)]
    run = write_run(tmp_path / "labels", changed, data__source="folder", data__root=str(root))
    refuse(r"SECRETNAME_2\.png' in .* has another labels", open_run, run, "test")


def test_a_run_on_the_phantom_has_its_cases_drawn_anew(tmp_path):
    phantom = {"phantom__image_size": 32, "phantom__seed": 5, "phantom__num_cases": 30}
    drawn = [draw_case(index, seed=5, size=32, prevalence="flat") for index in (3, 8, 12)]
    run = write_run(tmp_path / "run", [each.case for each in drawn], **phantom)
    source = open_run(run, "test")
    assert [case.answers for case in source.cases] == [each.case.answers for each in drawn]
    np.testing.assert_array_equal(np.asarray(source.picture(1)), drawn[1].image)
    other = write_run(tmp_path / "other", [each.case for each in drawn], **{**phantom, "phantom__seed": 6})
    refuse(r"case 'images/phantom_000008\.png', drawn again, has another", lambda: open_run(other, "test").picture(1))


def test_the_command_writes_a_sample_of_a_run_and_says_who_gets_what(root, tmp_path, capsys):
    run = write_run(tmp_path / "run", make_cases(), data__source="folder", data__root=str(root))
    out = tmp_path / "out"
    tool.main(["sample", "--workdir", str(run), "--readers", "Ann, Bo", "--num-cases", "5", "--out", str(out)])
    printed = capsys.readouterr().out
    assert "2 of 26 cases have no diagnosis and were left out" in printed
    assert f"5 cases of test split of {run} in {out}" in printed
    assert f"not for readers: {out / 'key.json'}" in printed
    assert len(read_key(out).cases) == 5
    flags = ["--readers", "Ann", "--num-cases", "2", "--out", str(tmp_path / "data")]
    tool.main(["sample", str(root), *flags])
    assert f"2 cases of {root}" in capsys.readouterr().out
