"""Exports load as their runs do, with all that they carry, and say which JAX reads them."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
from policies.policy_workdir import make_policy_workdir
from trained_workdir import make_trained_workdir, write_gate

from stepcot_jax.encoders.described_networks import describe_network, make_network
from stepcot_jax.encoders.torchvision_networks import FrozenDenseNet, make_frozen_resnet
from stepcot_jax.export import loader
from stepcot_jax.export.exported_files import RefusedExport
from stepcot_jax.export.folder import export_model, write_sums
from stepcot_jax.export.model_card import write_lifetime
from stepcot_jax.export.policy_folder import export_policy
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.reading.loading import load
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.run.settings import read_settings
from stepcot_jax.run.stored import StoredRun, hide_folder
from stepcot_jax.tools.export import main
from tests.export import random_run

pytestmark = pytest.mark.usefixtures("quick", "small_encoder")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run with calibration, and its export."""
    folder = tmp_path_factory.mktemp("loaded")
    make_trained_workdir(folder / "run", calibrated=True)
    write_gate(folder / "run")
    export_model(folder / "run", folder / "out")
    return folder / "run", folder / "out"


@pytest.fixture
def copy(folders, tmp_path):
    return pathlib.Path(shutil.copytree(folders[1], tmp_path / "copy"))


@pytest.mark.slow
def test_the_card_of_an_export_has_metadata_figures_use_and_lifetime(folders):
    card = (folders[1] / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: stepcot-jax\npipeline_tag: image-classification\n")
    places = [card.index(f"\n## {part}") for part in ("Intended use", "Figures", "Use", "Files", "Lifetime")]
    assert places == sorted(places)
    made_with = json.loads((folders[1] / "export.json").read_text())["made_with"]
    assert f"jax {made_with['jax']} with jaxlib {made_with['jaxlib']} wrote the programs" in card
    assert card.endswith(f"\n\n{write_lifetime()}")
    listed = {line.split("`")[1] for line in card.split("## Files")[1].splitlines() if line.startswith("| `")}
    assert listed == {path.name for path in folders[1].iterdir()} - {"README.md"}
    assert {"student_gate.stablehlo", "student_gate.safetensors", "gate.npz", "calibration.json"} <= listed


@pytest.mark.parametrize("model", ["student", "teacher"])
def test_an_export_reads_as_its_run(folders, model):
    image = np.random.default_rng(2).integers(0, 256, (50, 40), dtype=np.uint8)
    of_run, of_export = (load(folder, model=model).read(image) for folder in folders)
    assert of_export.as_dict() == of_run.as_dict()
    assert of_export.steps[0].answer_set is not None
    step, answer = of_run.steps[0].step.name, of_run.steps[0].step.options[-1]
    given = [load(folder, model=model).read(image, given={step: answer}).as_dict() for folder in folders]
    assert given[0] == given[1]


def test_an_export_of_one_network_reads(folders, tmp_path):
    report = export_model(folders[0], tmp_path / "one", models=["student"])
    assert list(report["models"]) == ["student"]
    assert load(tmp_path / "one").model == "student"
    with pytest.raises(BadInput, match="has no trained 'teacher'; it has student"):
        load(tmp_path / "one", model="teacher")


@pytest.mark.slow
def test_a_frozen_encoder_is_made_again_from_the_export(tmp_path):
    run = random_run.make_run(tmp_path / "run", frozen=True)
    run = dataclasses.replace(
        run, frozen_encoder=dataclasses.replace(run.frozen_encoder, name="CLIP of /home/ann/clip")
    )
    export_model(run, tmp_path / "out")
    found = load_trained(tmp_path / "out")
    assert found.frozen_encoder.name == "CLIP of clip"
    assert set(found.frozen_encoder.params) == set(run.frozen_encoder.params)  # on the device before they are traced
    images = np.random.default_rng(3).normal(size=(2, 32, 32, 3)).astype(np.float32)
    for name in ("student", "teacher"):
        expected = random_run.expected_logits(run, name, images)
        np.testing.assert_allclose(random_run.expected_logits(found, name, images), expected, atol=1e-6)
    assert "/home/ann" not in "".join(path.read_text() for path in (tmp_path / "out").glob("*.[jm][sd]*"))


@pytest.mark.parametrize("network", [FrozenDenseNet(), make_frozen_resnet("resnet50", "bfloat16")])
def test_networks_are_made_again_from_json(network):
    described = json.loads(json.dumps(describe_network(network)))
    assert make_network(described, where="x") == network


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"class": "Popen"}, "expected a class of VisionTransformer"),
        ({"dtype": "object"}, "a dtype of float32"),
        ({"growth": 10**9}, "<= 65536"),
        ({"more": 1}, "unknown field `more`"),
        ({"layers_per_block": [6] * 9}, "length <= 8"),
        ({"layers_per_block": [10**4]}, "<= 256"),
    ],
)
def test_networks_of_another_kind_are_refused(change, words):
    with pytest.raises(BadInput, match=words):
        make_network(describe_network(FrozenDenseNet()) | change, where="export.json")


def test_settings_are_shared_without_folders_and_addresses(folders, tmp_path):
    settings = read_settings(folders[0] / "settings.json")
    data = dataclasses.replace(settings.data, source="folder", root="/mnt/hospital/ann")
    rewards = dataclasses.replace(
        settings.rewards, open_answer="judge", judge_url="http://secret:1/v1", judge_model="m"
    )
    StoredRun(dataclasses.replace(settings, data=data, rewards=rewards)).write_shared(tmp_path / "s.json")
    found = read_settings(tmp_path / "s.json")
    assert (found.data.root, found.rewards.judge_url) == ("ann", "https://removed.invalid")
    assert "hospital" not in (tmp_path / "s.json").read_text()
    assert hide_folder("transformers:/a/b/c") == "transformers:c"
    assert hide_folder("~/weights/clip") == "clip"


def test_a_changed_cut_or_missing_file_is_refused_when_it_is_read(folders, copy):
    for name in ("settings.json", "calibration.json", "gate.npz", "labels.json", "export.json", "student.safetensors"):
        whole = (folders[1] / name).read_bytes()
        for content in (whole[:-1] + b" ", whole[: len(whole) // 2], None):
            (copy / name).unlink() if content is None else (copy / name).write_bytes(content)
            with pytest.raises(BadInput, match=name.replace(".", r"\.")):
                load(copy)
        (copy / name).write_bytes(whole)
    manifest = json.loads((copy / "export.json").read_text())
    manifest["models"]["student"]["tensors"] = ["../student.safetensors"]
    (copy / "export.json").write_text(json.dumps(manifest))
    write_sums(copy)
    with pytest.raises(BadInput, match=r"'\.\./student\.safetensors' is not a \.safetensors file of the same folder"):
        load(copy)


@pytest.mark.slow
def test_sizes_are_counted_before_they_are_laid_out(copy, tmp_path):
    def refuse(folder, file, change, message, model=None):
        whole = (folder / file).read_text()
        content = json.loads(whole)
        change(content)
        (folder / file).write_text(json.dumps(content))
        write_sums(folder)
        with pytest.raises(BadInput, match=message):
            load(folder, model=model)
        (folder / file).write_text(whole)

    for layers in (1_024, 10**7, 2):
        change = lambda settings: settings["teacher"].update(num_layers=layers)  # noqa: B023, E731
        refuse(
            copy, "settings.json", change, rf"settings\.json, num_layers: {layers}, but the tensors have 1", "teacher"
        )
    write_sums(copy)
    assert load(copy, model="student").model == "student"
    steps = [{"name": f"{number}", "question": "?", "options": ["a", "b"]} for number in range(30_000)]
    more = lambda labels: labels["steps"].extend(steps)  # noqa: E731
    for model in ("student", "teacher"):
        refuse(copy, "labels.json", more, r"labels\.json: steps: 30007, but the tensors have 7|expected \[30007", model)
    make_policy_workdir(tmp_path / "policy")
    export_policy(tmp_path / "policy", tmp_path / "out")
    for key, value in (("num_layers", 1_024), ("encoder_widths", [8] * 10_000)):
        change = lambda settings: settings["policy"].update({key: value})  # noqa: B023, E731
        refuse(tmp_path / "out", "settings.json", change, rf"{key}: \d+, but the tensors have \d\b")


def test_what_an_export_of_an_earlier_version_still_does(copy):
    (copy / "student.stablehlo").write_bytes(b"written by a jax that nobody reads any more")
    write_sums(copy)
    with pytest.raises(RefusedExport, match=r"cannot read the program .* README\.md .*; export again from the run"):
        loader.load(copy)
    assert load(copy).model == "student"  # from the tensors
    (copy / "settings.json").unlink()
    write_sums(copy)
    with pytest.raises(BadInput, match=r"settings\.json"):
        load(copy)


@pytest.mark.parametrize("arguments", [["renew", "--help"], ["--renew", "DIR"]])
def test_renew_is_gone(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        run_tool(lambda: main(arguments))
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out) == (2, "")
    assert captured.err == (
        "error: `export renew` is gone; export again from the run: stepcot export --checkpoint=RUN --out=DIR\n"
    )


def test_a_policy_reads_as_its_run(tmp_path):
    _, records, _ = make_policy_workdir(tmp_path / "run")
    export_policy(tmp_path / "run", tmp_path / "out")
    question = next(record.question for record in records if record.kind == "closed")
    image = np.random.default_rng(2).integers(0, 256, (50, 40), dtype=np.uint8)
    of_run, of_export = (load(tmp_path / name).answer(image, question) for name in ("run", "out"))
    assert of_export.as_dict() == of_run.as_dict()
    with pytest.raises(BadInput, match="no weights of the phase 'sft'; the export has those of 'grpo'"):
        load(tmp_path / "out", model="sft")
