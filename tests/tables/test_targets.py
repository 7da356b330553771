"""Data to read without fine-tuning: last answers by their texts, and nothing that was learned from."""

import csv
import dataclasses
import json
import re
import shutil

import msgspec
import numpy as np
import pytest
from PIL import Image
from run.small_run import small_settings
from tables.finished_cells import TINY, read_rows

from stepcot_jax.chain import DEFAULT_CHAIN, DIAGNOSIS_OPTIONS, NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.phantom.phantom import ORIGINS, export_phantom
from stepcot_jax.data.records.records import read_records, write_records
from stepcot_jax.data.sources.chestxray8 import ORIGIN
from stepcot_jax.evaluation.published import TRANSFER_SAMPLES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run import inputs
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.tools.tables import command as making
from stepcot_jax.tools.tables import transfer_table
from stepcot_jax.tools.tables import transfer_table as targets
from stepcot_jax.tools.tables.cells import Cells, vary
from stepcot_jax.tools.tables.command import find_recipe
from stepcot_jax.tools.tables.plan import Plan

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_networks")]

KNOWN = ("Pneumothorax", "  normal", "Effusion", "Mass", "Cardiomegaly", "Pneumonia", "Infiltration", "Atelectasis")
"""Another order, another writing, and no Nodule."""

NUM_OF_EACH = {"Mass": 9, "Nodule": 4, "Atelectasis": 8, "Effusion": 7}


def tiny_settings(**changes):
    return small_settings(phantom__num_cases=150, **TINY, **changes)


def make_source(root, num_cases=90):
    """Phantom cases in the published layout, whose options of steps 2 to 6 are nobody else's."""
    export_phantom(root, num_cases=num_cases, seed=1, size=32, prevalence="flat")
    collection = read_records(root)
    steps = [
        dataclasses.replace(step, options=tuple(f"{step.name} {option}" for option in step.options if option != "N/A"))
        for step in collection.chain.steps[:-1]
    ]
    last = Step("Diagnosis", "What is it?", KNOWN)
    cases = []
    for case in collection.cases:
        text = DIAGNOSIS_OPTIONS[case.answers[-1]].casefold()
        label = [option.strip().casefold() for option in KNOWN].index(text) if text != "nodule" else 0
        first = (min(own, step.num_answers - 1) for own, step in zip(case.answers, steps, strict=False))
        cases.append(msgspec.structs.replace(case, answers=(*first, label)))
    write_records(root, chain=Chain((*steps, last)), cases=cases)
    return read_records(root).chain


def make_chestxray8(root):
    """The layout of the NIH: a box list and images, two of them with labels of two classes."""
    labels = [label for label, count in NUM_OF_EACH.items() for _ in range(count)]
    rows = [[f"{number:08d}_000.png", label, 1, 1, 9, 9] for number, label in enumerate(labels, start=1)]
    rows += [[f"{number:08d}_000.png", label, 1, 1, 9, 9] for number in (1, 2) for label in ("Effusion",)]
    (root / "images").mkdir(parents=True)
    with (root / "BBox_List_2017.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["Image Index", "Finding Label", "Bbox [x", "y", "w", "h]", "", "", ""])
        table.writerows(rows)
    rng = np.random.default_rng(0)
    for name in {row[0] for row in rows}:
        Image.fromarray(rng.integers(0, 255, (32, 32), np.uint8)).save(root / "images" / name)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources")
    chain = make_source(root / "source")
    make_chestxray8(root / "nih")
    return root, chain


def of_folder(root, **changes):
    names = {"data__source": "folder", "data__root": str(root)}
    return tiny_settings(**names, **changes)


def load(settings):
    return load_dataset(settings, preprocessing=inputs.trained_preprocessing(settings))


# Relabelling


def test_last_answers_are_matched_by_their_texts(folders):
    root, chain = folders
    dataset = load(of_folder(root / "nih"))
    assert chain.steps[1:-1] != dataset.chain.steps[1:-1]
    relabelled, left_out = targets.relabel_last_step(dataset, chain, name="nih")
    assert relabelled.chain == chain
    options = [option.strip().casefold() for option in chain.steps[-1].options]
    members = targets._members(relabelled, "train", "val", "test")
    assert sorted(members + [i for i, case in enumerate(dataset.cases) if case.answers[-1] == 1]) == list(range(26))
    for index in members:
        text = DEFAULT_CHAIN.steps[-1].options[dataset.cases[index].answers[-1]].casefold()
        assert relabelled.cases[index].answers == (*[NOT_ANNOTATED] * 6, options.index(text))
    assert left_out == (  # two images are of two classes each
        "Left out: 4 cases of classes that the networks do not have (Nodule 4), 2 records set aside by the loader."
    )
    other = Chain((Step("Diagnosis", "?", ("Nodule-like", "Normal")),))
    words = "nih: answers ['Nodule', 'Atelectasis', 'Effusion', 'Mass'] to 'Diagnosis' are not among "
    with pytest.raises(BadInput, match=re.escape(f"{words}['Nodule-like', 'Normal']")):
        targets.relabel_last_step(dataset, other, name="nih")


def test_cases_without_an_answer_are_counted_and_other_numbers_of_steps_do():
    dataset = load(tiny_settings())
    cases = [msgspec.structs.replace(case, answers=(*case.answers[:-1], NOT_ANNOTATED)) for case in dataset.cases[:5]]
    dataset = dataclasses.replace(dataset, cases=(*cases, *dataset.cases[5:]))
    chain = Chain((Step("Size", "How large?", ("Small", "Large")), DEFAULT_CHAIN.steps[-1]))
    relabelled, left_out = targets.relabel_last_step(dataset, chain, name="phantom")
    np.testing.assert_array_equal(relabelled.labels[:, 1], dataset.labels[:, -1])
    assert relabelled.labels.shape == (150, 2)
    assert left_out == "Left out: 5 unannotated cases."
    assert relabelled.splits == dataset.splits


# What was learned from


def check(source, target):
    """As the table does: the data of the target, all else of the source."""
    data = {"data": dataclasses.asdict(target.data), "phantom": dataclasses.asdict(target.phantom)}
    targets.check_target(source, vary(source, data), name="it")


def test_a_run_does_not_read_its_own_data(folders):
    settings = of_folder(folders[0] / "source")
    dataset = load(settings)
    learned = [dataset.cases[index] for index in (*dataset.splits.train, *dataset.splits.val)]
    first = dataset.cases[min((*dataset.splits.train, *dataset.splits.val))]
    told = f"{len({case.patient for case in learned})} patients with {len(learned)} of the 90 cases of it are in"
    with pytest.raises(BadInput, match=f"--target_config: {told} the source's .* the first is '{first.patient}'"):
        check(settings, settings)
    with pytest.raises(BadInput, match=told):
        check(settings, vary(settings, {"data.split_seed": 9}))
    of_first, of_second, of_both = (
        vary(settings, {"data.origins": origins}) for origins in (ORIGINS[:1], ORIGINS[1:2], ORIGINS[:2])
    )
    check(of_first, of_second)
    with pytest.raises(BadInput, match="source's train or val split"):
        check(of_first, of_both)


def test_other_images_of_a_patient_are_known_in_the_same_folder(folders, tmp_path):
    root = shutil.copytree(folders[0] / "source", tmp_path / "data")
    seen, changed = set(), []
    for case in read_records(root).cases:
        changed.append(msgspec.structs.replace(case, origin="again" if case.patient in seen else "first"))
        seen.add(case.patient)
    write_records(root, chain=folders[1], cases=changed)
    first, again = (of_folder(root, data__origins=(origin,)) for origin in ("first", "again"))
    dataset = load(first)
    learned = {dataset.cases[index].patient for index in (*dataset.splits.train, *dataset.splits.val)}
    shared = [case for case in changed if case.origin == "again" and case.patient in learned]
    num_patients = len({case.patient for case in shared})
    assert num_patients > 3
    with pytest.raises(BadInput, match=f"{num_patients} patients with {len(shared)} of the "):
        check(first, again)


def test_an_image_is_known_in_another_folder_by_its_content_and_an_id_is_not(folders, tmp_path):
    source = folders[0] / "source"
    settings = of_folder(source)
    export_phantom(tmp_path / "other", num_cases=60, seed=2, size=32)
    ids = [{case.patient for case in read_records(root).cases} for root in (source, tmp_path / "other")]
    assert ids[0] & ids[1]
    # The same answers mean nothing either: only the pixels are somebody's own.
    check(settings, vary(of_folder(tmp_path / "other"), {"data.split_seed": 3}))
    dataset = load(settings)
    of_test, of_train = dataset.cases[dataset.splits.test[0]], dataset.cases[dataset.splits.train[3]]
    records = json.loads((tmp_path / "other" / "data.json").read_text())
    copy = tmp_path / "other" / records[7]["image_path"]
    copy.write_bytes((source / of_test.image).read_bytes())
    check(settings, of_folder(tmp_path / "other"))  # of the test split
    copy.write_bytes((source / of_train.image).read_bytes())
    words = rf"1 patients with 1 of the 60 cases of it .* '{records[7]['patient_id']}' \({records[7]['image_path']}"
    with pytest.raises(BadInput, match=words):
        check(settings, of_folder(tmp_path / "other"))


def test_phantoms_of_one_seed_are_the_same_patients_and_of_another_are_not(tmp_path):
    source = tiny_settings()
    phantom = source.phantom
    with pytest.raises(BadInput, match="of the 60 cases of it"):
        check(source, vary(source, {"phantom.num_cases": 60}))
    check(source, vary(source, {"phantom.seed": phantom.seed + 1}))
    first = vary(source, {"data.origins": ORIGINS[:1]})
    check(first, vary(source, {"data.origins": ORIGINS[1:]}))
    with pytest.raises(BadInput, match="source's train or val split"):
        check(first, source)
    for name, seed in (("same", phantom.seed), ("other", phantom.seed + 1)):  # known by their pixels in a folder
        export_phantom(tmp_path / name, num_cases=40, seed=seed, size=phantom.image_size, prevalence=phantom.prevalence)
    check(source, of_folder(tmp_path / "other"))
    with pytest.raises(BadInput, match="of the 40 cases of it are in the source's train or val split"):
        check(source, of_folder(tmp_path / "same"))
    with pytest.raises(BadInput, match="of the 150 cases of it are in the source's train or val split"):
        check(of_folder(tmp_path / "same"), source)


def test_imported_features_are_known_by_the_paths_that_they_are_found_by(folders, tmp_path):
    imported = {"image_encoder.name": "imported", "image_encoder.weights": "x"}
    source = vary(of_folder(folders[0] / "source"), imported)
    with pytest.raises(BadInput, match="source's train or val split"):
        check(source, source)
    export_phantom(tmp_path, num_cases=40, seed=2, size=16)
    with pytest.raises(BadInput, match=r"of the 40 cases of it .*images/phantom_0000"):
        check(source, of_folder(tmp_path))
    (tmp_path / "images").rename(tmp_path / "pictures")
    (tmp_path / "data.json").write_text((tmp_path / "data.json").read_text().replace("images/", "pictures/"))
    check(source, of_folder(tmp_path))


# The table


@pytest.fixture(scope="module")
def plan(folders, tmp_path_factory):
    root, _ = folders
    workdir = tmp_path_factory.mktemp("transfer")
    settings = of_folder(root / "source")
    target = of_folder(root / "nih", student__width=64)  # of which the data alone are read
    return Plan(settings, (0,), Cells(workdir, Terminal()), target=target, num_resamples=30)


def test_networks_of_another_chain_read_chestxray8(plan):
    folder = plan.workdir / "tables"
    making.make_tables(["transfer"], plan, command=["python"], folder=folder)
    rows = read_rows(folder, "transfer")
    own = "resnet_small, trained along"
    models = [(own, "without"), (own, "with"), ("teacher", "with"), ("student", "with")]
    assert [(row["read"], row["model"], row["intermediate steps"]) for row in rows] == [
        (name, *model) for name in ("the source's test split", "nih") for model in models
    ]
    numbers = [(row["cases"], row["classes"], row["published: cases"], row["published: classes"]) for row in rows]
    assert numbers[4:] == [("22", "3", "985", "8")] * 4
    assert {number[2:] for number in numbers[:4]} == {("", "")}
    text = (folder / "transfer.md").read_text()
    assert "nih: 3 classes (Effusion, Mass, Atelectasis). Left out: 4 cases of classes that the networks do" in text
    assert "(Nodule 4), 2 records set aside" in text
    assert r"\textit{published: cases}" in (folder / "transfer.tex").read_text()


def test_what_is_read_is_what_the_networks_say_in_their_own_order(plan):
    """The student's accuracy, from its logits and the labels in the box list."""
    cell = transfer_table._main(plan, 0)
    split, _ = transfer_table._read(plan, cell, ("student",))["nih"]
    truth = [label.casefold() for label, count in NUM_OF_EACH.items() for _ in range(count)]
    names = [path.rsplit("/")[-1] for path in split.facts["image_path"].tolist()]
    options = [option.strip().casefold() for option in plan.cells.chain(cell).steps[-1].options]
    there = [options.index(name) for name in ("mass", "atelectasis", "effusion")]
    said = split.predictions.logits["student"][:, -1]
    answers = [options[max(there, key=lambda option: row[option])] for row in said]
    right = [answer == truth[int(name[:8]) - 1] for answer, name in zip(answers, names, strict=True)]
    (table,) = find_recipe("transfer").tabulate(plan)
    row = next(row for row in table.rows if row[:2] == ("nih", "student"))
    assert row[5].value == pytest.approx(np.mean(right))
    assert len(right) == 22


def test_the_gain_on_the_target_is_paired_on_its_cases(plan):
    """The difference in accuracy, from the logits that each baseline alone gives of the same 22 radiographs."""
    correct = []
    for cell in transfer_table._baselines(plan, 0).values():
        split, _ = transfer_table._read(plan, cell, ("baseline",))["nih"]
        labels = split.predictions.labels[:, -1]
        there = np.unique(labels[labels >= 0])
        answers = there[split.predictions.logits["baseline"][:, -1, there].argmax(axis=1)]
        correct.append((answers == labels)[labels >= 0])
    without, with_steps = correct
    (table,) = find_recipe("transfer").tabulate(plan)
    rows = [row for row in table.rows if row[0] == "nih"]
    assert [row[5].value for row in rows[:2]] == pytest.approx([without.mean(), with_steps.mean()])
    assert rows[1][9].value == pytest.approx((with_steps.astype(int) - without).mean())
    assert rows[0][9:17] == (None,) * 8


def test_an_overlap_is_refused_before_anything_is_trained(plan, tmp_path):
    own = dataclasses.replace(plan, target=plan.settings, cells=Cells(tmp_path, Terminal()))
    for ask in (find_recipe("transfer").list_cells, find_recipe("transfer").tabulate):
        with pytest.raises(BadInput, match=r"--target_config: .* source's train or val split"):
            ask(own)
    assert not (tmp_path / "cells").exists()


def test_published_samples_are_found_by_the_origin_that_loaders_give():
    assert set(TRANSFER_SAMPLES) == {ORIGIN}
