import dataclasses
import json
import subprocess
import types

import numpy as np
import pytest
from refusals import refuse
from tables.finished_cells import make_plan, read_rows
from tables.sources import NUM_OF_EACH, make_chestxray8, make_source, of_folder, of_source, tiny_settings

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.encoders.load import load_image_encoder
from stepcot_jax.features.importing import IMPORTED, PROMPTS
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run import inputs
from stepcot_jax.tools.tables import cell_networks, cost_table, transfer_table
from stepcot_jax.tools.tables import command as making
from stepcot_jax.tools.tables.cells import Cells, vary
from stepcot_jax.tools.tables.command import find_recipe
from stepcot_jax.tools.tables.encoders import list_encoders, write_random_encoder
from stepcot_jax.tools.tables.plan import Plan

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_networks")]
OWN = "resnet_small, trained along"
MODELS = [(OWN, "without"), (OWN, "with"), ("teacher", "with"), ("student", "with")]


@pytest.fixture(scope="module")
def made(tmp_path_factory, small_networks):
    """The tables that need weights, all from the same runs; `transfer` reads radiographs of another chain."""
    workdir = tmp_path_factory.mktemp("runs")
    make_source(workdir / "source")
    make_chestxray8(workdir / "nih")
    target = of_folder(workdir / "nih", student__width=64)  # of which the data alone are read
    cells = Cells(workdir, Terminal())
    plan = Plan(of_source(workdir / "source"), (0,), cells, target=target, num_resamples=30)
    names = making.make_tables(["steps", "transfer"], plan, command=["python"], folder=workdir / "tables")
    return plan, workdir / "tables", names


def test_every_baseline_was_trained_and_measured(made):
    plan, folder, names = made
    assert {"steps.csv", "transfer.tex"} <= set(names)
    assert {row["model"] for row in read_rows(folder, "steps")} == {
        "most frequent answer", "teacher", "student", f"{OWN}, with steps",
        "resnet_small, from the teacher, frozen, with steps", "random ViT, frozen, with steps",
    }  # fmt: skip
    baseline = plan.baselines(0, ("all",))[1]
    settings = json.loads((plan.cells.folder(baseline) / "settings.json").read_text())
    assert settings["image_encoder"]["name"] == "imported"
    encoders = {path.name for path in (plan.workdir / "encoders").iterdir()}
    assert encoders == {f"teacher-{plan.cells.digest(plan.main(0))}", "random"}


def test_networks_of_another_chain_read_chestxray8(made):
    _, folder, _ = made
    rows = read_rows(folder, "transfer")
    assert [(row["read"], row["model"], row["intermediate steps"]) for row in rows] == [
        (name, *model) for name in (transfer_table.SOURCE, "nih") for model in MODELS
    ]
    numbers = [(row["cases"], row["classes"], row["published: cases"], row["published: classes"]) for row in rows]
    assert numbers[4:] == [("22", "3", "985", "8")] * 4
    assert {number[2:] for number in numbers[:4]} == {("", "")}
    text = (folder / "transfer.md").read_text()
    assert "nih: 3 classes (Effusion, Mass, Atelectasis). Left out: 4 cases of classes that the networks do" in text
    assert "(Nodule 4), 2 records set aside" in text


def right_answers(plan, cell, model):
    """Which of the 22 radiographs a network reads rightly, by its logits and the labels of the box list."""
    split, _ = transfer_table._read(plan, cell, (model,))["nih"]
    truth = [label.casefold() for label, count in NUM_OF_EACH.items() for _ in range(count)]
    names = [path.rsplit("/")[-1] for path in split.facts["image_path"].tolist()]
    options = [option.strip().casefold() for option in plan.cells.chain(cell).steps[-1].options]
    there = [options.index(name) for name in ("mass", "atelectasis", "effusion")]
    answers = [options[max(there, key=lambda option: row[option])] for row in split.predictions.logits[model][:, -1]]
    return np.array([answer == truth[int(name[:8]) - 1] for answer, name in zip(answers, names, strict=True)])


def test_what_is_read_is_what_the_networks_say_in_their_own_order_and_gains_are_paired(made):
    plan, _, _ = made
    (table,) = find_recipe("transfer").tabulate(plan)
    rows = [row for row in table.rows if row[0] == "nih"]
    without, with_steps = (
        right_answers(plan, cell, "baseline") for cell in transfer_table._baselines(plan, 0).values()
    )
    student = right_answers(plan, transfer_table._main(plan, 0), "student")
    for row, right in ((rows[0], without), (rows[1], with_steps), (rows[3], student)):
        assert row[5].value == pytest.approx(right.mean())
        assert len(right) == 22
    assert rows[1][9].value == pytest.approx((with_steps.astype(int) - without).mean())
    assert rows[0][9:17] == (None,) * 8


def test_without_a_target_the_first_style_of_the_phantom_is_trained_on_and_every_case_of_the_others_read(
    tmp_path, monkeypatch
):
    plan = make_plan(tmp_path, seeds=(0,))
    cells = find_recipe("transfer").list_cells(plan)
    assert {cell.settings.data.origins for cell in cells} == {("Phantom A",)}
    stub = types.SimpleNamespace(networks=None, text_features=None, chain=DEFAULT_CHAIN, params={"teacher": None})
    monkeypatch.setattr(cell_networks, "load_weights", lambda folder, names: stub)
    monkeypatch.setattr(
        cell_networks,
        "make_predict",
        lambda *_: lambda params, batch: {"teacher": np.zeros((len(batch["images"]), 7, 9))},
    )
    found = transfer_table._read(plan, cells[0], ("teacher",))
    cases = inputs.load_inputs(plan.settings, tmp_path, Terminal()).dataset.cases
    assert list(found) == ["Phantom B", "Phantom C"]
    for origin, (split, left_out) in found.items():
        assert split.facts["image_path"].tolist() == [case.image for case in cases if case.origin == origin]
        assert left_out == ""


def test_a_target_is_read_by_the_cells_of_the_other_tables_and_other_data_require_one(tmp_path):
    plan = Plan(tiny_settings(), (0,), Cells(tmp_path, Terminal()), target=tiny_settings(phantom__seed=7))
    expected = (plan.main(0), *plan.baselines(0)[:2])
    assert [*map(plan.cells.digest, find_recipe("transfer").list_cells(plan))] == [*map(plan.cells.digest, expected)]
    with pytest.raises(BadInput, match="--target_config is required"):
        find_recipe("transfer").list_cells(dataclasses.replace(plan, settings=of_folder("x"), target=None))


@pytest.fixture(scope="module")
def random_encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    write_random_encoder(folder)
    return folder


def test_an_encoder_is_measured_in_a_process_of_its_own(random_encoder, monkeypatch):
    cost = cost_table.measure_apart(["encoder", f"--weights={random_encoder}", "--repeats=2"])
    assert cost.num_parameters == load_image_encoder(str(random_encoder)).num_parameters
    assert (cost.num_trained, cost.starts_from) == (0, "images")
    assert set(cost.milliseconds) == {1, 4, 32}
    # 64 patches and a class token of width 64, two blocks with an MLP of 128, 4 heads, and the projection.
    tokens, width = 65, 64
    block = tokens * (4 * width**2 + 2 * width * 128) + 2 * tokens**2 * width
    assert cost.multiply_adds == 64 * 192 * width + 2 * block + width * 128
    assert all(value > 0 for value in cost.milliseconds.values())
    assert cost.megabytes is None or 50 < cost.megabytes < 5000
    assert cost.images_per_second == pytest.approx(32_000 / cost.milliseconds[32])
    with pytest.raises(BadInput, match="--reference='FLAVA' is not one of ResNet18, ResNet50, DenseNet121, CLIP"):
        cost_table.main(["encoder", "--reference=FLAVA"])
    ended = subprocess.CompletedProcess([], 2, "", "a warning\nerror: x: no such folder\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    refuse(r"^x: no such folder$", cost_table.measure_apart, ["encoder"])


def test_networks_of_a_run_are_counted_and_timed(made):
    plan, _, _ = made
    folder = plan.cells.folder(plan.main(0))
    teacher, student, encoder = (cost_table._open_cell(folder, what) for what in ("teacher", "student", "encoder"))
    assert encoder.num_trained == encoder.num_parameters == 8 * 8 * 8 + 8
    assert teacher.num_parameters == teacher.num_trained
    assert student.num_parameters - student.num_trained == encoder.num_parameters
    cost = cost_table.measure(student, repeats=1)
    assert cost.num_parameters == student.num_parameters
    # The linear encoder, the projection, and for each step its head and the way back, padded to the most answers.
    assert cost.multiply_adds == 8 * 8 * 8 + 8 * 8 + 3 * 2 * 8 * 8


def test_the_cost_table_has_published_columns(made, random_encoder, monkeypatch):
    plan, _, _ = made
    asked = []

    def measure(arguments):
        asked.append(arguments)
        return cost_table.Cost(10, 5, 100.0, {1: 2.0, 4: 3.0, 32: 16.0}, "images", 250_000_000)

    monkeypatch.setattr(cost_table, "measure_apart", measure)
    (table,) = find_recipe("cost").tabulate(plan)
    by_name = {row[0]: row for row in table.rows}
    own = [f"encoder {OWN}", "encoder random ViT, frozen"]
    random = [f"encoder {name}, random weights" for name in ("ResNet18", "ResNet50", "DenseNet121", "CLIP")]
    assert list(by_name) == [*own, *random, "teacher", "student", "encoder FLAVA", "encoder BiomedCLIP"]
    assert by_name["teacher"][-4:] == (283_664_427, 22_904_874, 22.81, 91.23)
    assert by_name["encoder CLIP, random weights"][-4:] == (151_810_000, None, None, None)
    assert by_name["encoder BiomedCLIP"] == ("encoder BiomedCLIP", *[None] * 8, 530_000, None, 0.07, None)
    assert (by_name["student"][4], by_name["student"][8]) == pytest.approx((0.25, 2000))
    assert asked[1][1].startswith("--weights=")
    assert asked[2][:2] == ["encoder", "--reference=ResNet18"]
    # An encoder that the user names takes the place of that with random weights.
    (table,) = find_recipe("cost").tabulate(dataclasses.replace(plan, named_encoders={"clip": str(random_encoder)}))
    of_clip = [row for row in table.rows if "clip" in str(row[0]).casefold() and "biomed" not in str(row[0]).casefold()]
    assert [(row[0], row[9]) for row in of_clip] == [("encoder clip", 151_810_000)]


def test_named_encoders_come_after_and_imports_are_told_by_their_files(made, random_encoder):
    plan, _, _ = made
    stored = next((plan.workdir / "encoders").glob("teacher-*"))
    named = {"CLIP": str(random_encoder), "made elsewhere": str(stored)}
    with_named = dataclasses.replace(plan, named_encoders=named)
    found = with_named.encoders()
    assert [encoder.name for encoder in found[3:]] == list(named)
    assert [encoder.changes["image_encoder.name"] for encoder in found[3:]] == ["pretrained", "imported"]
    # Transfer leaves out those that may have seen the target.
    assert [cell.name for cell in find_recipe("transfer").list_cells(with_named)] == [
        "teacher and student of the source",
        *(f"{encoder}, {steps} steps, of the source" for encoder in (OWN, "CLIP") for steps in ("without", "with")),
    ]
    assert transfer_table._encoders(with_named, 0)[1] == ["made elsewhere"]
    frozen = vary(plan.settings, {"image_encoder.name": "pretrained", "image_encoder.weights": "some/where"})
    assert [encoder.name for encoder in list_encoders(frozen, plan.cells, plan.main(0), {})] == ["where"]
    refuse("'where' comes twice", list_encoders, frozen, plan.cells, plan.main(0), {"where": "x"})


def test_a_named_encoder_reads_texts_with_its_own_text_encoder(made, tmp_path):
    plan, _, _ = made
    clip, imported = tmp_path / "clip", tmp_path / "imported"
    clip.mkdir()
    (clip / "config.json").write_text(json.dumps({"model_type": "clip", "text_config": {}}))
    (clip / "tokenizer.json").write_text("{}")
    imported.mkdir()
    for name in (IMPORTED, PROMPTS):
        (imported / name).touch()
    named = {"CLIP": str(clip), "made elsewhere": str(imported)}
    found = list_encoders(plan.settings, plan.cells, plan.main(0), named | {"BLIP": "transformers:some/blip"})[3:]
    assert found.pop().note == "Text vectors of BLIP: those of the config (hashed)."
    cells = [plan.baseline(encoder, "all", 0).settings.prompts for encoder in found]
    assert [(each.encoder, each.weights) for each in cells] == [("pretrained", str(clip)), ("imported", "")]
    (imported / PROMPTS).unlink()
    changes = {"image_encoder.name": "imported", "image_encoder.weights": "x", "prompts.encoder": "imported"}
    with pytest.raises(BadInput, match="'made elsewhere' has no text features of its own"):
        list_encoders(vary(plan.settings, changes), plan.cells, plan.main(0), named)
