import dataclasses
import json

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from evaluation.small_splits import of_arrays
from refusals import edit_json, refuse
from report.finished_workdir import RIVAL

from stepcot_jax.chain import Chain, Step
from stepcot_jax.encoders.load import describe_network, make_network
from stepcot_jax.encoders.torchvision_networks import FrozenDenseNet, make_frozen_resnet
from stepcot_jax.evaluation.gate import fit_gate
from stepcot_jax.evaluation.predictions import write_predictions
from stepcot_jax.export import loader
from stepcot_jax.export.folder import export_model
from stepcot_jax.export.model_card import write_card
from stepcot_jax.export.program import make_program
from stepcot_jax.host.exported_files import RefusedExport, write_sums
from stepcot_jax.host.own_folder import save, save_arrays
from stepcot_jax.reading.image_reader import load
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.run.settings import read_settings
from stepcot_jax.run.stored import StoredRun, hide_folder
from tests.export import random_run

pytestmark = pytest.mark.usefixtures("small_encoder")
IMAGE = np.random.default_rng(2).integers(0, 256, (50, 40), dtype=np.uint8)


def test_the_card_of_an_export_lists_its_files_and_versions(chain_export):
    _, out = chain_export
    card = (out / "README.md").read_text()
    made_with = json.loads((out / "export.json").read_text())["made_with"]
    assert f"jax {made_with['jax']} with jaxlib {made_with['jaxlib']} wrote the programs" in card
    listed = {line.split("`")[1] for line in card.split("## Files")[1].splitlines() if line.startswith("| `")}
    assert listed == {path.name for path in out.iterdir()} - {"README.md"}
    assert {"gate.npz", "joint.json", "calibration.json"} <= listed


@pytest.mark.parametrize("model", ["student", "teacher"])
def test_an_export_reads_as_its_run(chain_export, model):
    of_run, of_export = (load(folder, model=model).read(IMAGE) for folder in chain_export)
    assert of_export.as_dict() == of_run.as_dict()
    assert of_export.steps[0].answer_set is not None
    step, answer = of_run.steps[0].step.name, of_run.steps[0].step.options[-1]
    given = [load(folder, model=model).read(IMAGE, given={step: answer}).as_dict() for folder in chain_export]
    assert given[0] == given[1]


@pytest.mark.slow
def test_a_frozen_encoder_is_stored_once_and_made_again(tmp_path):
    run = random_run.make_run(tmp_path / "run", frozen=True, calibrated=False)
    encoder = dataclasses.replace(run.frozen_encoder, name="CLIP of /home/ann/clip")
    run, out = dataclasses.replace(run, frozen_encoder=encoder), tmp_path / "out"
    export_model(run, out)
    models = json.loads((out / "export.json").read_text())["models"]
    for name in ("student", "teacher"):
        assert models[name]["tensors"] == ["image_encoder.safetensors", f"{name}.safetensors"]
        assert set(safetensors.numpy.load_file(out / f"{name}.safetensors")) == {
            key for key in make_program(run, name).tensors if not key.startswith("image_encoder/")
        }
    assert "CLIP of clip, pretrained and frozen" in (out / "README.md").read_text()
    assert "/home/ann" not in "".join(path.read_text() for path in out.glob("*.[jm][sd]*"))
    found, images = load_trained(out), np.random.default_rng(3).normal(size=(2, 32, 32, 3)).astype(np.float32)
    assert found.frozen_encoder.name == "CLIP of clip"
    assert set(found.frozen_encoder.params) == set(encoder.params)  # on the device before they are traced
    for name in ("student", "teacher"):
        expected = random_run.expected_logits(run, name, images)
        np.testing.assert_allclose(random_run.expected_logits(found, name, images), expected, atol=1e-6)
    loaded = loader.load(out, "teacher")
    assert loaded.temperatures == (1.0,) * 3
    np.testing.assert_allclose(loaded.logits(images), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("network", [FrozenDenseNet(), make_frozen_resnet("resnet50", "bfloat16")])
def test_networks_are_made_again_from_json(network):
    described = json.loads(json.dumps(describe_network(network)))
    assert make_network(described, where="x") == network


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *(({"class": "Popen"}, "expected a class of VisionTransformer"), ({"dtype": "object"}, "a dtype of float32")),
        *(({"growth": 10**9}, "<= 65536"), ({"more": 1}, "unknown field `more`")),
        *(({"layers_per_block": [6] * 9}, "length <= 8"), ({"layers_per_block": [10**4]}, "<= 256")),
    ],
)
def test_networks_of_another_kind_are_refused(change, words):
    refuse(words, make_network, describe_network(FrozenDenseNet()) | change, where="export.json")


def test_settings_are_shared_without_folders_and_addresses(chain_export, tmp_path):
    settings = read_settings(chain_export[0] / "settings.json")
    data = dataclasses.replace(settings.data, source="folder", root="/mnt/hospital/ann")
    judge = {"open_answer": "judge", "judge_url": "http://secret:1/v1", "judge_model": "m"}
    rewards = dataclasses.replace(settings.rewards, **judge)
    StoredRun(dataclasses.replace(settings, data=data, rewards=rewards)).write_shared(tmp_path / "s.json")
    found = read_settings(tmp_path / "s.json")
    assert (found.data.root, found.rewards.judge_url) == ("ann", "https://removed.invalid")
    assert "hospital" not in (tmp_path / "s.json").read_text()
    assert (hide_folder("transformers:/a/b/c"), hide_folder("~/weights/clip")) == ("transformers:c", "clip")


def test_a_changed_cut_or_missing_file_is_refused_when_it_is_read(chain_export, chain_copy):
    names = [f"{name}.json" for name in ("settings", "calibration", "joint", "labels", "export")]
    for name in (*names, "gate.npz", "student.safetensors"):
        whole = (chain_export[1] / name).read_bytes()
        for content in (whole[:-1] + b" ", whole[: len(whole) // 2], None):
            (chain_copy / name).unlink() if content is None else (chain_copy / name).write_bytes(content)
            refuse(name.replace(".", r"\."), load, chain_copy)
        (chain_copy / name).write_bytes(whole)
    change(
        chain_copy / "export.json", lambda file: file["models"]["student"].update(tensors=["../student.safetensors"])
    )
    refuse(r"'\.\./student\.safetensors' is not a \.safetensors file of the same folder", load, chain_copy)


def change(path, edit):
    edit_json(path, edit)
    write_sums(path.parent)


STEPS = [{"name": f"{number}", "question": "?", "options": ["a", "b"]} for number in range(30_000)]


@pytest.mark.parametrize(
    ("model", "file", "edit", "words"),
    [
        ("teacher", "settings.json", lambda file: file["teacher"].update(num_layers=200), "200, but .* have 1"),
        ("teacher", "settings.json", lambda file: file["teacher"].update(num_layers=2), "num_layers: 2, but .* have 1"),
        ("student", "labels.json", lambda file: file["steps"].extend(STEPS), r"steps: 30007, but .* 7"),
        ("teacher", "labels.json", lambda file: file["steps"].extend(STEPS), r"expected \[30007"),
    ],
)
def test_sizes_are_counted_before_they_are_laid_out(model, file, edit, words, chain_copy):
    change(chain_copy / file, edit)
    refuse(words, load, chain_copy, model=model)


def test_a_program_that_jax_cannot_read_is_refused_by_the_loader_alone(chain_copy):
    (chain_copy / "student.stablehlo").write_bytes(b"written by a jax that nobody reads any more")
    write_sums(chain_copy)
    with pytest.raises(RefusedExport, match=r"cannot read the program .* README\.md .*; export again from the run"):
        loader.load(chain_copy)
    assert load(chain_copy).model == "student"  # from the tensors
    (chain_copy / "settings.json").unlink()
    write_sums(chain_copy)
    refuse(r"settings\.json", load, chain_copy)


def write_of(run, name="student"):
    folder = run.workdir / "out"
    folder.mkdir(exist_ok=True)
    return write_card(run, {name: 5000}, {"models": {}, "platforms": ["cpu"]}, folder)


@pytest.fixture
def run(tmp_path):
    return random_run.make_run(tmp_path)


def test_it_says_what_everybody_must_know(run):
    card = write_of(run)
    assert card.startswith("---\nlibrary_name: stepcot-jax\n")
    assert "\n---\n\n# Model card: Step-CoT, student\n" in card
    known = ("**Not a medical device.**", "## Limits", "student 5,000", "no patients")
    for words in (*known, "had written no report", "had measured nothing"):
        assert words in card
    assert "| student | 2.00 | 0.50 | 1.25 |" in card
    assert "best updates teacher 845, student 910" in card
    assert "## Operating points\n\nNone: the run chose none." in card
    assert "No gate was fitted" in card
    features = np.random.default_rng(1).normal(size=(60, 16)).astype(np.float32)
    save_arrays(run.workdir / "gate.npz", {"student": fit_gate(features[:40], features[40:], false_alarms=0.05)})
    assert "`gate_scores` above 1 in load.py" in write_of(run)


def test_intervals_come_from_the_predictions(run):
    random_run.write_report(run)
    rng = np.random.default_rng(0)
    num_cases = 60
    labels = np.stack([rng.integers(0, count, num_cases) for count in run.chain.answers_per_step], axis=1)
    logits = rng.normal(size=(num_cases, 3, 5)).astype(np.float32)
    # The middle step is always right, so that its interval is known.
    logits[np.arange(num_cases), 1, labels[:, 1]] += 100
    patients = [f"p{case}" for case in range(num_cases)]
    split = of_arrays(labels, {"student": logits}, case_id=patients, patient_id=patients)
    write_predictions(run.workdir / "predictions" / "test.npz", split, run.chain)
    report = {"num_cases": {"train": 300, "val": 40, "test": 41}, "heads": msgspec.to_builtins(RIVAL)}
    save(run.workdir / "report.json", report)
    card = write_of(run)
    assert (
        "\n&lt;heads> (%): mean step accuracy 50.0 [40.0, 60.0], Diagnosis 25.0. teacher less the heads (points): mean "
        "step accuracy +10.0 [-1.0, +20.0], Diagnosis -. These heads, fitted on 9,000 training cases, are weaker; "
    ) in card
    assert "Cases: train 300, val 40, test 41." in card
    assert "With 95 % intervals" in card
    assert "| Side | 60 | 100.0 [100.0, 100.0] |" in card
    right = 100 * (logits[:, 2, :2].argmax(axis=1) == labels[:, 2]).mean()
    assert f"| Diagnosis | 60 | {right:.1f} [" in card
    majority = 100 * np.mean([np.bincount(own).max() for own in labels.T]) / num_cases
    assert f"(most frequent answers: {majority:.1f}); all steps right: " in card
    assert "teacher: not measured." in write_card(
        run, {"teacher": 1}, {"models": {}, "platforms": []}, run.workdir / "out"
    )


def test_a_file_that_the_card_does_not_describe_stops_the_export(run):
    (run.workdir / "out").mkdir()
    (run.workdir / "out" / "stray").touch()
    refuse("no description of stray", write_of, run, error=ValueError)


def test_names_from_the_data_stay_text(run):
    chain = Chain((Step("A|B\n# <script>alert(1)</script>", "?", ("yes", "no")), *run.chain.steps[1:]))
    run = dataclasses.replace(run, chain=chain)
    card = write_of(run)
    assert "<script" not in card
    assert "A\\|B # &lt;script>alert(1)&lt;/script>" in card
