import itertools
import json
import shutil

import msgspec
import numpy as np
import pytest
from PIL import Image
from refusals import refuse
from run.small_run import small_settings

from stepcot_jax.data.batches import training_batches
from stepcot_jax.data.dataset import check_same_images, write_account
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.data.records.records import read_records, write_records
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.tools.data.command import main

NUM_CASES = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    export_phantom(root, num_cases=NUM_CASES, seed=0, size=48, prevalence="flat")
    return root


def load(root, *, source="folder", **changes):
    settings = small_settings(data__source=source, data__root=str(root), **changes)
    return load_dataset(settings, preprocessing=Preprocessing(size=32))


def test_prepared_data_train_as_their_folder_does(folder, tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets", reason="needs the extra tfds")
    tfds.disable_progress_bar()
    from stepcot_jax.data.tfds.builder import prepare

    prepare(folder, tmp_path)
    prepared, plain = load(tmp_path, source="tfds"), load(folder)
    assert (prepared.cases, prepared.splits, prepared.digest) == (plain.cases, plain.splits, plain.digest)
    assert load(tmp_path, source="tfds", data__fold="2/3").splits == load(folder, data__fold="2/3").splits
    ours, theirs = (training_batches(dataset, batch_size=8, seed=1) for dataset in (prepared, plain))
    for step in range(3):
        for name, rows in theirs[step].items():
            np.testing.assert_array_equal(ours[step][name], rows, err_msg=name)
    message = r"config\.data\.step_names: \('one', 'two'\) must be \('Detection'"
    refuse(message, load, tmp_path, source="tfds", data__step_names=("one", "two"))


def test_near_duplicates_stay_on_one_side(folder, tmp_path):
    """Two patients' images come a second time, under the names of two new patients."""
    root = shutil.copytree(folder, tmp_path / "copied")
    collection = read_records(root)
    first = list({case.patient: case for case in collection.cases}.values())[:2]
    second = [
        msgspec.structs.replace(case, patient=f"copy {n}", image=f"images/{n}.png") for n, case in enumerate(first)
    ]
    for case, copy in zip(first, second, strict=True):
        shutil.copy(root / case.image, root / copy.image)
    write_records(root, chain=collection.chain, cases=[*collection.cases, *second])
    together = {0: 0, 1: 0}
    for radius, seed in itertools.product(together, range(4)):
        dataset = load(root, data__near_duplicate_radius=radius, data__split_seed=seed)
        splits = dataset.splits.by_name()
        split_of = {dataset.cases[index].image: name for name, indices in splits.items() for index in indices}
        assert len(split_of) == NUM_CASES + 2
        together[radius] += sum(split_of[a.image] == split_of[b.image] for a, b in zip(first, second, strict=True))
    assert together[0] < together[1] == 8
    assert "near-duplicates within 1 bits" in dataset.splits_source


def test_split_tables_beside_a_file_named_as_the_root_are_read(tmp_path, capsys, monkeypatch):
    """A root that is a file and the folder that it is in are the same data, hence the same splits."""
    patients = [f"p{number}" for number in range(12)]
    rows = ["image,patient_id,diagnosis"]
    for number, patient in enumerate(patients):
        Image.new("L", (32, 32), 20 * number).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{patient},{'Normal' if number % 2 else 'Mass'}")
    (tmp_path / "cases.csv").write_text("\n".join(rows) + "\n")
    tables = {"train": patients[8:], "val": patients[:4], "test": patients[4:8]}
    for name, named in tables.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["patient_id", *named]) + "\n")
    for root in (tmp_path, tmp_path / "cases.csv"):
        dataset = load(root)
        splits = dataset.splits.by_name()
        assert {name: [dataset.cases[index].patient for index in splits[name]] for name in splits} == tables
        capsys.readouterr()
        assert main(["check", str(root), "--json", "-"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["splits_from"], [split["cases"] for split in facts["splits"]]) == ("tables", [4, 4, 4])
    monkeypatch.setattr("stepcot_jax.tools.data.pictures.write_pictures", lambda *_: ([], ""))
    main(["stats", str(root), "--out", str(tmp_path / "statistics")])
    assert "read from tables" in (tmp_path / "statistics" / "splits.md").read_text()


def test_a_fold_replaces_the_tables_of_a_folder(folder, tmp_path):
    root = tmp_path / "with tables"
    shutil.copytree(folder, root)
    made = load(root)
    for name, indices in made.splits.by_name().items():
        lines = ["image_path", *(made.cases[index].image for index in indices)]
        (root / f"{name}.csv").write_text("\n".join(lines))
    assert load(root).splits_source == str(root)
    folds = [load(root, data__fold=f"{fold}/4") for fold in range(1, 5)]
    assert folds[1].splits_source.startswith("fold 2/4 made from seed 0")
    assert sorted(index for dataset in folds for index in dataset.splits.test) == list(range(NUM_CASES))


def test_other_pictures_under_the_same_names_are_refused(folder, tmp_path):
    root = shutil.copytree(folder, tmp_path / "cases")
    first = load(root, data__check_images="ahead")
    write_account(first, tmp_path)
    assert len((tmp_path / "images.sha256").read_text().splitlines()) == len(first.cases) == NUM_CASES
    check_same_images(load(root, data__check_images="ahead"), tmp_path)
    one, other = (root / first.cases.image_paths[index] for index in (3, 4))
    shutil.copy(one, other)
    changed = load(root, data__check_images="ahead")
    refuse(rf"{other.name}: not the picture that the run .*; 1 of 40 differ", check_same_images, changed, tmp_path)
    check_same_images(load(root, data__check_images="on_use"), tmp_path)  # nothing was read
    how = {"data__check_images": "on_use", "data__on_bad_record": "skip"}
    refuse("'on_use' with config.data.on_bad_record='skip'", load, root, **how)
