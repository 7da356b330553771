"""Tables on real radiographs, which only the project's own machines have: every path from records to rows."""

import csv
import json

import jax
import numpy as np
import pytest
from PIL import Image
from run.small_run import LinearEncoder, small_settings

from stepcot_jax.data.records.records import read_records
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run import inputs
from stepcot_jax.tools.tables import cell_networks
from stepcot_jax.tools.tables import command as making
from stepcot_jax.tools.tables.cells import Cells, vary
from stepcot_jax.tools.tables.plan import Plan

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(shared, tmp_path_factory):
    """Every third record of the sample with its radiograph made small, since each run decodes them all."""
    sample, folder = shared / "data" / "nih_sample", tmp_path_factory.mktemp("data") / "nih_sample"
    (folder / "images").mkdir(parents=True)
    records = json.loads((sample / "data.json").read_bytes())[::3]
    (folder / "data.json").write_text(json.dumps(records))
    for record in records:
        path = record["image_path"]
        with Image.open(sample / path) as image:
            image.draft("L", (64, 64))
            image.convert("L").resize((64, 64)).save(folder / path)
    return folder


@pytest.fixture(scope="module")
def made(root, tmp_path_factory):
    """Trained on the radiographs: effect; trained on phantoms and read on the radiographs: transfer."""
    patch = pytest.MonkeyPatch()
    for module in (inputs, cell_networks):
        patch.setattr(module, "make_resnet", lambda name: LinearEncoder())
    workdir = tmp_path_factory.mktemp("real")
    phantom = small_settings(
        phantom__num_cases=150,
        training__teacher_epochs=0,
        training__joint_epochs=1,
        baseline__epochs=1,
        baseline__hidden=8,
        data__check_images="on_use",
    )
    real = vary(phantom, {"data.source": "folder", "data.root": str(root)})
    with jax.numpy_dtype_promotion("standard"):
        for name, settings, target in (("effect", real, None), ("transfer", phantom, real)):
            plan = Plan(settings, (0,), Cells(workdir, Terminal()), target=target, num_resamples=30)
            making.make_tables([name], plan, command=["python"], folder=workdir / "tables")
    yield workdir / "tables"
    patch.undo()


def rows(folder, name):
    with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_effect_has_every_annotated_step(made, root):
    collection = read_records(root)
    annotated = (np.array([case.answers for case in collection.cases]) >= 0).any(axis=0)
    found = rows(made, "effect")
    assert {row["step"] for row in found} == {
        step.name for step, known in zip(collection.chain.steps, annotated, strict=True) if known
    }
    detection = found[0]
    assert (detection["step"], detection["answers given"]) == ("Detection", "0")
    assert 0 < float(detection["accuracy low"]) <= float(detection["accuracy"]) <= float(detection["accuracy high"]) < 1


def test_networks_of_phantoms_read_every_diagnosed_radiograph(made, root):
    labels = np.array([case.answers for case in read_records(root).cases])
    found = [row for row in rows(made, "transfer") if row["read"] == "nih_sample"]
    assert [row["model"] for row in found] == [*["resnet_small, trained along"] * 2, "teacher", "student"]
    assert {int(row["cases"]) for row in found} == {int((labels[:, -1] >= 0).sum())}
    assert {int(row["classes"]) for row in found} == {len(np.unique(labels[labels[:, -1] >= 0, -1]))}
