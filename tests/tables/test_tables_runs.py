"""Tables from real runs of the smallest networks: every path from a config to files, once."""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image
from run.small_run import small_settings
from tables.finished_cells import TINY, read_rows

from stepcot_jax.data.records.records import read_records
from stepcot_jax.encoders.load import load_image_encoder
from stepcot_jax.features.store import DESCRIPTION_FILE
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run import inputs
from stepcot_jax.tools.tables import command as making
from stepcot_jax.tools.tables import cost_table, transfer_table
from stepcot_jax.tools.tables.cells import Cells, vary
from stepcot_jax.tools.tables.command import find_recipe
from stepcot_jax.tools.tables.encoders import list_encoders, write_random_encoder
from stepcot_jax.tools.tables.plan import Plan

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_networks")]


def tiny_settings():
    return small_settings(phantom__num_cases=150, **TINY)


@pytest.fixture(scope="module")
def made(tmp_path_factory, small_networks):
    """The tables that need weights, each from its own runs."""
    workdir = tmp_path_factory.mktemp("runs")
    plan = Plan(tiny_settings(), (0,), Cells(workdir, Terminal()), num_resamples=30)
    names = making.make_tables(["steps", "effect", "transfer"], plan, command=["python"], folder=workdir / "tables")
    return plan, workdir / "tables", names


def test_every_baseline_was_trained_and_measured(made):
    plan, folder, names = made
    assert {"steps.csv", "effect.csv", "effect.png", "transfer.tex"} <= set(names)
    assert {row["model"] for row in read_rows(folder, "steps")} == {
        "most frequent answer", "teacher", "student", "resnet_small, trained along, with steps",
        "resnet_small, from the teacher, frozen, with steps", "random ViT, frozen, with steps",
    }  # fmt: skip
    baseline = plan.baselines(0, ("all",))[1]
    settings = json.loads((plan.cells.folder(baseline) / "settings.json").read_text())
    assert settings["image_encoder"]["name"] == "imported"
    encoders = {path.name for path in (plan.workdir / "encoders").iterdir()}
    assert encoders == {f"teacher-{plan.cells.digest(plan.main(0))}", "random"}


def test_the_effect_begins_with_what_the_run_itself_measured(made):
    plan, folder, _ = made
    found = read_rows(folder, "effect")
    assert len(found) == 7 * 8 / 2
    report = json.loads((plan.cells.folder(plan.main(0)) / "report.json").read_text())["test"]["teacher"]["steps"]
    first = [float(row["accuracy"]) for row in found if row["answers given"] == "0"]
    assert first == pytest.approx([step["accuracy"] for step in report], abs=1e-6)
    diagnosis = [row for row in found if row["step"] == "Diagnosis"]
    assert [row["answers given"] for row in diagnosis] == [str(count) for count in range(7)]
    assert all(row["difference from none given low"] for row in diagnosis[1:])
    assert (folder / "effect.png").read_bytes().startswith(b"\x89PNG")


def test_transfer_reads_every_case_of_the_styles_that_were_held_out(made):
    plan, folder, _ = made
    found = read_rows(folder, "transfer")
    own = "resnet_small, trained along"
    models = [(own, "without"), (own, "with"), ("teacher", "with"), ("student", "with")]
    read = ("the source's test split", "Phantom B", "Phantom C")
    assert [(row["read"], row["model"], row["intermediate steps"]) for row in found] == [
        *((name, *model) for name in read for model in models),
        ("NIH ChestX-ray8", "", ""),
    ]
    assert [row["published: cases"] for row in found] == [""] * 12 + ["985"]
    for without, with_steps, *others in (found[start : start + 4] for start in (0, 4, 8)):
        difference = float(with_steps["accuracy"]) - float(without["accuracy"])
        figures = [float(with_steps[f"difference in accuracy{end}"]) for end in (" low", "", " high")]
        assert figures[1] == pytest.approx(difference, abs=1e-9)
        assert figures[0] <= difference <= figures[2]
        assert with_steps["gain in mAUC"]
        assert {row["difference in accuracy"] + row["gain in mAUC"] for row in (without, *others)} == {""}
    cases = inputs.load_inputs(plan.settings, plan.workdir, Terminal()).dataset.cases
    for origin in read[1:]:
        counts = {int(row["cases"]) for row in found if row["read"] == origin}
        assert counts == {sum(case.origin == origin for case in cases)}
    source = json.loads((plan.cells.folder(transfer_table._main(plan, 0)) / "splits.json").read_text())
    named = {path for images in source["splits"].values() for path in images}
    assert named == {case.image for case in cases if case.origin == "Phantom A"}


def test_another_config_says_what_transfer_reads(made, tmp_path):
    plan, _, _ = made
    target = vary(tiny_settings(), {"phantom.seed": 7, "phantom.num_cases": 60})
    aimed = dataclasses.replace(plan, target=target)
    cells = find_recipe("transfer").list_cells(aimed)
    expected = (plan.main(0), *plan.baselines(0)[:2])
    assert list(map(plan.cells.digest, cells)) == list(map(plan.cells.digest, expected))
    aimed.cells.run(cells)  # the baseline without steps is no cell of the table of steps
    (table,) = find_recipe("transfer").tabulate(aimed)
    assert [row[0] for row in table.rows[:-1]] == ["the source's test split"] * 4 + ["phantom"] * 4
    assert {row[3] for row in table.rows[4:8]} == {60}
    assert table.rows[-1] == ("NIH ChestX-ray8", *[None] * 16, 985, 8)
    settings = vary(tiny_settings(), {"data.source": "folder", "data.root": "x"})
    with pytest.raises(BadInput, match="--target_config is required"):
        find_recipe("transfer").list_cells(Plan(settings, (0,), Cells(tmp_path, Terminal())))


# Cost


@pytest.fixture(scope="module")
def random_encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    write_random_encoder(folder)
    return folder


def test_random_weights_are_those_of_their_seed_and_encode(random_encoder, tmp_path):
    write_random_encoder(tmp_path)
    write_random_encoder(tmp_path / "other", seed=1)
    first, same, other = (
        (folder / "model.safetensors").read_bytes() for folder in (random_encoder, tmp_path, tmp_path / "other")
    )
    assert first == same != other
    images = np.random.default_rng(0).standard_normal((3, 64, 64, 3)).astype(np.float32)
    features = np.asarray(load_image_encoder(str(random_encoder)).encode(images))
    assert features.shape == (3, 128)
    assert np.isfinite(features).all()
    assert np.abs(features[0] - features[1]).max() > 0.1  # another image, another feature


def test_an_encoder_is_measured_in_a_process_of_its_own(random_encoder, tmp_path):
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
    with pytest.raises(BadInput, match="nowhere"):
        cost_table.measure_apart(["encoder", f"--weights={tmp_path / 'nowhere'}"])
    with pytest.raises(BadInput, match="--reference='FLAVA' is not one of ResNet18, ResNet50, DenseNet121, CLIP"):
        cost_table.main(["encoder", "--reference=FLAVA"])


def test_networks_of_a_run_are_counted_and_timed(made):
    plan, _, _ = made
    folder = plan.cells.folder(plan.main(0))
    teacher, student, encoder = (cost_table._open_cell(folder, what) for what in ("teacher", "student", "encoder"))
    assert encoder.num_trained == encoder.num_parameters == 8 * 8 * 8 + 8
    assert teacher.num_parameters == teacher.num_trained
    assert student.num_parameters - student.num_trained == encoder.num_parameters
    cost = cost_table.measure(student, repeats=1)
    assert cost.num_parameters == student.num_parameters
    # The linear encoder, the projection, and for each step its head and the way back, padded to nine answers.
    assert cost.multiply_adds == 8 * 8 * 8 + 8 * 8 + 7 * 2 * 9 * 8


def test_the_cost_table_has_published_columns(made, random_encoder, monkeypatch):
    plan, _, _ = made
    asked = []

    def measure(arguments):
        asked.append(arguments)
        return cost_table.Cost(10, 5, 100.0, {1: 2.0, 4: 3.0, 32: 16.0}, "images", 250_000_000)

    monkeypatch.setattr(cost_table, "measure_apart", measure)
    (table,) = find_recipe("cost").tabulate(plan)
    by_name = {row[0]: row for row in table.rows}
    own = ["encoder resnet_small, trained along", "encoder random ViT, frozen"]
    random = [f"encoder {name}, random weights" for name in ("ResNet18", "ResNet50", "DenseNet121", "CLIP")]
    assert list(by_name) == [*own, *random, "teacher", "student", "encoder FLAVA", "encoder BiomedCLIP"]
    assert by_name["teacher"][-4:] == (283_664_427, 22_904_874, 22.81, 91.23)
    assert by_name["encoder CLIP, random weights"][-4:] == (151_810_000, None, None, None)
    assert by_name["encoder ResNet50, random weights"][-4:] == (None,) * 4
    assert by_name["encoder BiomedCLIP"] == ("encoder BiomedCLIP", *[None] * 8, 530_000, None, 0.07, None)
    assert (by_name["student"][4], by_name["student"][8]) == pytest.approx((0.25, 2000))
    assert asked[1][1].startswith("--weights=")
    assert asked[2][:2] == ["encoder", "--reference=ResNet18"]
    assert any("from the teacher" in note for note in table.notes)
    # An encoder that the user names takes the place of that with random weights.
    (table,) = find_recipe("cost").tabulate(dataclasses.replace(plan, named_encoders={"clip": str(random_encoder)}))
    of_clip = [row for row in table.rows if "clip" in str(row[0]).casefold() and "biomed" not in str(row[0]).casefold()]
    assert [(row[0], row[9]) for row in of_clip] == [("encoder clip", 151_810_000)]


# Encoders


def test_named_encoders_come_after_and_imports_are_told_by_their_files(made, random_encoder):
    plan, _, _ = made
    stored = next((plan.workdir / "encoders").glob("teacher-*"))
    named = {"CLIP": str(random_encoder), "made elsewhere": str(stored)}
    with_named = dataclasses.replace(plan, named_encoders=named)
    found = with_named.encoders()
    assert [encoder.name for encoder in found[3:]] == list(named)
    assert [encoder.changes["image_encoder.name"] for encoder in found[3:]] == ["pretrained", "imported"]
    assert found[3].note == "Text vectors of CLIP: those of the config (hashed)."
    # Transfer leaves out those that may have seen the target.
    encoders = ("resnet_small, trained along", "CLIP")
    assert [cell.name for cell in find_recipe("transfer").list_cells(with_named)] == [
        "teacher and student of the source",
        *(f"{encoder}, {steps} steps, of the source" for encoder in encoders for steps in ("without", "with")),
    ]
    assert transfer_table._encoders(with_named, 0)[1] == ["made elsewhere"]
    frozen = vary(plan.settings, {"image_encoder.name": "pretrained", "image_encoder.weights": "some/where"})
    assert [encoder.name for encoder in list_encoders(frozen, plan.cells, plan.main(0), {})] == ["where"]
    with pytest.raises(BadInput, match="'where' comes twice"):
        list_encoders(frozen, plan.cells, plan.main(0), {"where": "x"})


def test_a_named_encoder_reads_texts_with_its_own_text_encoder(made, tmp_path):
    plan, _, _ = made
    clip, imported = tmp_path / "clip", tmp_path / "imported"
    clip.mkdir()
    (clip / "config.json").write_text(json.dumps({"model_type": "clip", "text_config": {}}))
    (clip / "tokenizer.json").write_text("{}")
    for part in ("images", "prompts"):
        (imported / part).mkdir(parents=True)
        (imported / part / DESCRIPTION_FILE).write_text("{}")
    named = {"CLIP": str(clip), "made elsewhere": str(imported)}
    found = list_encoders(plan.settings, plan.cells, plan.main(0), named | {"BLIP": "transformers:some/blip"})[3:]
    assert found.pop().note == "Text vectors of BLIP: those of the config (hashed)."
    cells = [plan.baseline(encoder, "all", 0).settings.prompts for encoder in found]
    assert [(each.encoder, each.weights) for each in cells] == [("pretrained", str(clip)), ("imported", "")]
    assert [encoder.note for encoder in found] == [
        "Text vectors of CLIP: by the text encoder of the same checkpoint.",
        "Text vectors of made elsewhere: imported with the images' features.",
    ]
    (imported / "prompts" / DESCRIPTION_FILE).unlink()
    all_imported = vary(
        plan.settings,
        {"image_encoder.name": "imported", "image_encoder.weights": "x", "prompts.encoder": "imported"},
    )
    with pytest.raises(BadInput, match="'made elsewhere' has no text features of its own"):
        list_encoders(all_imported, plan.cells, plan.main(0), named)


def test_radiographs_have_an_effect_of_every_annotated_step_and_are_read_as_another_source(shared, tmp_path):
    """Every sixth record of the sample, with its radiograph made small, since each run decodes them all."""
    sample, root = shared / "data" / "nih_sample", tmp_path / "nih_sample"
    (root / "images").mkdir(parents=True)
    records = json.loads((sample / "data.json").read_bytes())[::6]
    (root / "data.json").write_text(json.dumps(records))
    for record in records:
        with Image.open(sample / record["image_path"]) as image:
            image.draft("L", (64, 64))
            image.convert("L").resize((64, 64)).save(root / record["image_path"])
    phantom = vary(tiny_settings(), {"data.check_images": "on_use"})
    real = vary(phantom, {"data.source": "folder", "data.root": str(root)})
    for name, settings, target in (("effect", real, None), ("transfer", phantom, real)):
        plan = Plan(settings, (0,), Cells(tmp_path / "runs", Terminal()), target=target, num_resamples=30)
        making.make_tables([name], plan, command=["python"], folder=tmp_path / "tables")
    collection = read_records(root)
    labels = np.array([case.answers for case in collection.cases])
    annotated = zip(collection.chain.steps, (labels >= 0).any(axis=0), strict=True)
    effect = read_rows(tmp_path / "tables", "effect")
    assert {row["step"] for row in effect} == {step.name for step, known in annotated if known}
    ends = [float(effect[0][f"accuracy{end}"]) for end in (" low", "", " high")]
    assert 0 <= ends[0] <= ends[1] <= ends[2] <= 1
    transfer = [row for row in read_rows(tmp_path / "tables", "transfer") if row["read"] == "nih_sample"]
    assert [row["model"] for row in transfer] == [*["resnet_small, trained along"] * 2, "teacher", "student"]
    known = labels[labels[:, -1] >= 0, -1]
    assert {(row["cases"], row["classes"]) for row in transfer} == {(str(len(known)), str(len(np.unique(known))))}
