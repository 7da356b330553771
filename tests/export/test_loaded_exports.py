import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy
from refusals import edit_json, refuse

from stepcot_jax import __version__
from stepcot_jax.encoders.load import describe_network, make_network
from stepcot_jax.encoders.torchvision_networks import FrozenDenseNet, make_frozen_resnet
from stepcot_jax.export import loader
from stepcot_jax.export.folder import export_model
from stepcot_jax.export.program import make_program
from stepcot_jax.host.exported_files import RefusedExport, write_sums
from stepcot_jax.reading.image_reader import load
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.run.settings import read_settings
from stepcot_jax.run.stored import StoredRun, hide_folder
from tests.export import random_run

pytestmark = pytest.mark.usefixtures("small_encoder")
IMAGE = np.random.default_rng(2).integers(0, 256, (50, 40), dtype=np.uint8)


def test_the_card_of_an_export_has_metadata_figures_use_and_lifetime(chain_export):
    _, out = chain_export
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: stepcot-jax\npipeline_tag: image-classification\n")
    places = [card.index(f"\n## {part}") for part in ("Intended use", "Figures", "Use", "Files", "Lifetime")]
    assert places == sorted(places)
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
    export_model(run, tmp_path / "one", models=["student"])
    assert load_trained(tmp_path / "one").params.keys() == {"student"}
    refuse("has no trained 'teacher'; it has student", load, tmp_path / "one", model="teacher")


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


def test_an_export_of_another_version_that_does_not_decode_names_both(chain_copy):
    def rewrite(file):
        file["stepcot_jax"] = "0.0.1"
        del file["models"]["student"]["tensors"]

    change(chain_copy / "export.json", rewrite)
    refuse(rf"export\.json: .* `tensors` .*\(written by stepcot_jax 0\.0\.1, read by {__version__}\)", load, chain_copy)


def test_a_program_that_jax_cannot_read_is_refused_by_the_loader_alone(chain_copy):
    (chain_copy / "student.stablehlo").write_bytes(b"written by a jax that nobody reads any more")
    write_sums(chain_copy)
    with pytest.raises(RefusedExport, match=r"cannot read the program .* README\.md .*; export again from the run"):
        loader.load(chain_copy)
    assert load(chain_copy).model == "student"  # from the tensors
    (chain_copy / "settings.json").unlink()
    write_sums(chain_copy)
    refuse(r"settings\.json", load, chain_copy)
