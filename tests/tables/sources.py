"""Data to train on and to read: phantoms with three steps of their own, and radiographs in the layout of the NIH."""

import csv
import dataclasses

import msgspec
import numpy as np
from PIL import Image
from run.small_run import small_settings
from tables.finished_cells import TINY

from stepcot_jax.chain import DIAGNOSIS_OPTIONS, Chain, Step
from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.data.records.records import read_records, write_records

KNOWN = ("Pneumothorax", "  normal", "Effusion", "Mass", "Cardiomegaly", "Pneumonia", "Infiltration", "Atelectasis")
"""Another order, another writing, and no Nodule."""

STEPS = ("Step 1", "Step 2", "Step 3")
NUM_OF_EACH = {"Mass": 9, "Nodule": 4, "Atelectasis": 8, "Effusion": 7}


def tiny_settings(**changes):
    return small_settings(**{"phantom__num_cases": 60, **TINY, **changes})


def of_folder(root, **changes):
    return tiny_settings(data__source="folder", data__root=str(root), **changes)


def of_source(root, **changes):
    return of_folder(root, data__step_names=STEPS, **changes)


def make_source(root):
    export_phantom(root, num_cases=90, seed=1, size=32, prevalence="flat")
    collection = read_records(root)
    steps = [
        dataclasses.replace(step, options=tuple(f"{step.name} {option}" for option in step.options if option != "N/A"))
        for step in collection.chain.steps[:2]
    ]
    cases = []
    for case in collection.cases:
        text = DIAGNOSIS_OPTIONS[case.answers[-1]].casefold()
        label = [option.strip().casefold() for option in KNOWN].index(text) if text != "nodule" else 0
        first = (min(own, step.num_answers - 1) for own, step in zip(case.answers, steps, strict=False))
        cases.append(msgspec.structs.replace(case, answers=(*first, label), reasoning=("",) * 3))
    chain = Chain((*steps, Step("Diagnosis", "What is it?", KNOWN)))
    write_records(root, chain=chain, cases=cases)
    return read_records(root, step_names=STEPS).chain


def make_chestxray8(root):
    labels = [label for label, count in NUM_OF_EACH.items() for _ in range(count)]
    rows = [[f"{number:08d}_000.png", label, 1, 1, 9, 9] for number, label in enumerate(labels, start=1)]
    rows += [[f"{number:08d}_000.png", "Effusion", 1, 1, 9, 9] for number in (1, 2)]
    (root / "images").mkdir(parents=True)
    with (root / "BBox_List_2017.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["Image Index", "Finding Label", "Bbox [x", "y", "w", "h]", "", "", ""])
        table.writerows(rows)
    rng = np.random.default_rng(0)
    for name in dict.fromkeys(row[0] for row in rows):
        Image.fromarray(rng.integers(0, 255, (32, 32), np.uint8)).save(root / "images" / name)
