import dataclasses
import json
import re
import shutil

import msgspec
import numpy as np
import pytest
from tables.sources import make_chestxray8, make_source, of_folder, of_source, tiny_settings

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.phantom.phantom import ORIGINS, export_phantom
from stepcot_jax.data.sources.chestxray8 import ORIGIN
from stepcot_jax.evaluation.published import TRANSFER_SAMPLES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run import inputs
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.tools.tables import transfer_table as targets
from stepcot_jax.tools.tables.cells import Cells, vary
from stepcot_jax.tools.tables.command import find_recipe
from stepcot_jax.tools.tables.plan import Plan

LEARNED = "source's train or val split"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources")
    make_chestxray8(root / "nih")
    return root, make_source(root / "source")


def load(settings):
    return load_dataset(settings, preprocessing=inputs.trained_preprocessing(settings))


def export(root, seed, num_cases=30):
    export_phantom(root, num_cases=num_cases, seed=seed, size=32)
    return of_folder(root)


def test_last_answers_are_matched_by_their_texts(folders):
    root, chain = folders
    dataset = load(of_folder(root / "nih"))
    relabelled, left_out = targets.relabel_last_step(dataset, chain, name="nih")
    assert relabelled.chain == chain != dataset.chain
    options = [option.strip().casefold() for option in chain.steps[-1].options]
    members = targets._members(relabelled, "train", "val", "test")
    assert sorted(members + [i for i, case in enumerate(dataset.cases) if case.answers[-1] == 1]) == list(range(26))
    for index in members:
        text = DEFAULT_CHAIN.steps[-1].options[dataset.cases[index].answers[-1]].casefold()
        assert relabelled.cases[index].answers == (NOT_ANNOTATED, NOT_ANNOTATED, options.index(text))
    assert set(TRANSFER_SAMPLES) == {ORIGIN}  # the origin by which published samples are found
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
    assert left_out == "Left out: 5 unannotated cases."
    assert relabelled.splits == dataset.splits


def check(source, target):
    """As the table does: the data of the target, all else of the source."""
    data = {"data": dataclasses.asdict(target.data), "phantom": dataclasses.asdict(target.phantom)}
    targets.check_target(source, vary(source, data), name="it")


def refuse(source, target, words=LEARNED):
    with pytest.raises(BadInput, match=words):
        check(source, target)


def test_a_run_does_not_read_its_own_data(folders, tmp_path):
    settings = of_source(folders[0] / "source")
    dataset = load(settings)
    learned = [dataset.cases[index] for index in sorted((*dataset.splits.train, *dataset.splits.val))]
    told = f"{len({case.patient for case in learned})} patients with {len(learned)} of the 90 cases of it are in"
    refuse(settings, settings, f"--target_config: {told} the source's .* the first is '{learned[0].patient}'")
    refuse(settings, vary(settings, {"data.split_seed": 9}), told)
    of_first, of_second, of_both = (
        vary(settings, {"data.origins": origins}) for origins in (ORIGINS[:1], ORIGINS[1:2], ORIGINS[:2])
    )
    check(of_first, of_second)
    refuse(of_first, of_both)
    plan = Plan(settings, (0,), Cells(tmp_path, Terminal()), target=settings)
    for ask in (find_recipe("transfer").list_cells, find_recipe("transfer").tabulate):
        with pytest.raises(BadInput, match=rf"--target_config: .* {LEARNED}"):
            ask(plan)
    assert not (tmp_path / "cells").exists()  # nothing is trained before


def test_other_images_of_a_patient_are_known_in_the_same_folder(folders, tmp_path):
    root = shutil.copytree(folders[0] / "source", tmp_path / "data")
    records, seen = json.loads((root / "data.json").read_text()), set()
    for record in records:
        record["origin"] = "again" if record["patient_id"] in seen else "first"
        seen.add(record["patient_id"])
    (root / "data.json").write_text(json.dumps(records))
    first, again = (of_source(root, data__origins=(origin,)) for origin in ("first", "again"))
    dataset = load(first)
    learned = {dataset.cases[index].patient for index in (*dataset.splits.train, *dataset.splits.val)}
    shared = [name for record in records if record["origin"] == "again" and (name := record["patient_id"]) in learned]
    assert len(set(shared)) > 3
    refuse(first, again, f"{len(set(shared))} patients with {len(shared)} of the ")


def test_an_image_is_known_in_another_folder_by_its_content_and_an_id_is_not(folders, tmp_path):
    source, other = folders[0] / "source", export(tmp_path / "other", seed=2)
    settings, records = of_source(source), json.loads((tmp_path / "other" / "data.json").read_text())
    dataset = load(settings)
    assert {case.patient for case in dataset.cases} & {record["patient_id"] for record in records}
    check(settings, other)  # the same ids mean nothing: only the pixels are somebody's own
    of_test, of_train = dataset.cases[dataset.splits.test[0]], dataset.cases[dataset.splits.train[3]]
    copy = tmp_path / "other" / records[7]["image_path"]
    copy.write_bytes((source / of_test.image).read_bytes())
    check(settings, other)
    copy.write_bytes((source / of_train.image).read_bytes())
    words = rf"1 patients with 1 of the 30 cases of it .* '{records[7]['patient_id']}' \({records[7]['image_path']}"
    refuse(settings, other, words)


def test_phantoms_of_one_seed_are_the_same_patients_and_of_another_are_not(tmp_path):
    source = tiny_settings(phantom__num_cases=40)
    refuse(source, vary(source, {"phantom.num_cases": 30}), "of the 30 cases of it")
    check(source, vary(source, {"phantom.seed": source.phantom.seed + 1}))
    first = vary(source, {"data.origins": ORIGINS[:1]})
    check(first, vary(source, {"data.origins": ORIGINS[1:]}))
    refuse(first, source)
    # In a folder they are known by their pixels.
    check(source, export(tmp_path / "other", seed=source.phantom.seed + 1))
    same = export(tmp_path / "same", seed=source.phantom.seed)
    refuse(source, same, f"of the 30 cases of it are in the {LEARNED}")
    refuse(same, source, f"of the 40 cases of it are in the {LEARNED}")


def test_imported_features_are_known_by_the_paths_that_they_are_found_by(folders, tmp_path):
    imported = {"image_encoder.name": "imported", "image_encoder.weights": "x"}
    source, other = vary(of_source(folders[0] / "source"), imported), export(tmp_path, seed=2)
    refuse(source, source)
    refuse(source, other, r"of the 30 cases of it .*images/phantom_0000")
    (tmp_path / "images").rename(tmp_path / "pictures")
    (tmp_path / "data.json").write_text((tmp_path / "data.json").read_text().replace("images/", "pictures/"))
    check(source, other)
