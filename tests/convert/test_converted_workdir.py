import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from convert import named_tensors
from encoders.test_weights import write_clip
from memory_store import new_address
from oracles.quick_jit import quick_jit
from refusals import refuse
from run.small_run import first_params, share_programs, small_settings

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.images.preprocessing import normalise_grey
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.export.authors import NETWORKS, from_torch_networks
from stepcot_jax.export.folder import export_model
from stepcot_jax.extras.cloud.stores import StoreFolder
from stepcot_jax.host.terminal import name_command
from stepcot_jax.reading.image_reader import load
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.run.settings import read_run_settings
from stepcot_jax.run.stored import read_reading
from stepcot_jax.run.training_run import Run
from stepcot_jax.tools import convert
from stepcot_jax.training.state import flatten

pytestmark = pytest.mark.slow
SIZES = {"teacher_width": 6, "student_width": 5, "image_width": 12, "num_heads": 2, "head_width": 3}
SIZES |= {"projection_width": 4, **{f"answers_{n}": size for n, size in enumerate(DEFAULT_CHAIN.answers_per_step)}}
CONFIG = """
from configs import paper


def get_config():
    config = paper.get_config()
    config.prompts.encoder = "hashed"
    config.prompts.width = 6
    return config
"""
random_tensors = functools.partial(named_tensors.random_tensors, sizes=SIZES, num_steps=7, num_layers=1)


def describe(step):
    return {"name": step.name, "question": step.question, "options": step.options}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("authors")
    write_clip(folder / "clip")
    safetensors.numpy.save_file(flatten(random_tensors(NETWORKS)), folder / "theirs.safetensors")
    for name in ("teacher", "student"):
        safetensors.numpy.save_file(flatten(random_tensors([name])), folder / f"{name}.safetensors")
    (folder / "chain.json").write_text(json.dumps([describe(step) for step in DEFAULT_CHAIN.steps]))
    (folder / "hashed.py").write_text(CONFIG)
    return folder


def run(folder, dest, *more, source="theirs.safetensors", chain="chain.json"):
    arguments = [folder / source, dest, "--to", "jax", "--chain", folder / chain, "--config", folder / "hashed.py"]
    return convert.main([str(each) for each in (*arguments, "--image-encoder", folder / "clip", *more)])


@pytest.fixture(scope="module")
def workdir(sources):
    dest = sources / "converted"
    assert run(sources, dest) == 0
    return dest


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(jnp.asarray, from_torch_networks(random_tensors(NETWORKS)))


def test_predict_reads_with_the_converted_weights(workdir, params):
    pixels = draw_case(1, seed=5, size=32).image  # the encoder's own size
    trained = load_trained(workdir)
    assert trained.chain == DEFAULT_CHAIN
    features = jnp.asarray(trained.frozen_encoder.encode(normalise_grey(pixels, trained.preprocessing)[None]))
    networks, text = trained.networks, trained.text_features
    more = {"teacher": {"text_features": text}, "student": {}}
    for name, given in more.items():
        apply = functools.partial(getattr(networks, name).apply, deterministic=True, image_features=features, **given)
        logits = quick_jit(lambda params, apply=apply: apply({"params": params}).logits)(params[name])
        reading = load(workdir, model=name).read(pixels)
        found = [answer.answer for answer in reading.steps]
        labels = np.asarray(logits)[0].argmax(axis=-1)
        assert found == [step.options[label] for step, label in zip(DEFAULT_CHAIN.steps, labels, strict=True)]


def test_export_names_where_the_weights_come_from_and_they_convert_back(workdir, tmp_path):
    export_model(workdir, tmp_path / "out", models=["student"])
    card = (tmp_path / "out" / "README.md").read_text()
    assert "converted from theirs.safetensors" in card
    assert "best updates" not in card
    assert convert.main([str(workdir), str(tmp_path / "back.safetensors"), "--to", "torch"]) == 0
    back = safetensors.numpy.load_file(tmp_path / "back.safetensors")
    for name, array in flatten(random_tensors(NETWORKS)).items():
        np.testing.assert_array_equal(back[name], array)


def test_a_run_starts_from_it(workdir, sources, params, tmp_path, monkeypatch, capsys):
    changes = {"image_encoder__name": "pretrained", "image_encoder__weights": str(sources / "clip")}
    sizes = {"teacher__width": 6, "student__width": 5, "prompts__width": 6, "training__joint_epochs": 0}
    start = {"start__checkpoint": str(workdir), "training__given_answers": "none"}
    share_programs(monkeypatch)
    with jax.numpy_dtype_promotion("standard"):  # optax adds integers to floats
        found = first_params(Run(small_settings(**changes, **sizes, **start), tmp_path), monkeypatch)
    for path, array in flatten(params).items():
        np.testing.assert_array_equal(found[path], array)
    assert f"from update 0 of {workdir}" in capsys.readouterr().err


def test_a_teacher_alone_is_a_teachers_run_and_says_what_is_random(sources, tmp_path, capsys):
    assert run(sources, tmp_path / "run", source="teacher.safetensors") == 0
    printed = capsys.readouterr().out
    assert "not in the file, random: student, teacher_projection, student_projection\n" in printed
    assert f"next: {name_command()} predict IMAGE --checkpoint={tmp_path / 'run'}\n" in printed
    assert list(load_trained(tmp_path / "run").params) == ["teacher"]


def test_what_does_not_fit_is_named_and_leaves_nothing(sources, tmp_path):
    dest, steps = tmp_path / "run", [describe(step) for step in DEFAULT_CHAIN.steps]
    steps[1]["options"] = steps[1]["options"][:-1]
    for name, content in (("short", steps[:-1]), ("other", steps)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    write_clip(tmp_path / "wide", projection_dim=20)
    for words, more, changes in (
        ("found student; a workdir needs the teacher's", [], {"source": "student.safetensors"}),
        (r"short\.json: 6 steps; the tensors have 7", ["--chain", tmp_path / "short.json"], {}),
        (r"other\.json, step 'Lesion distribution': 3 options; the tensors", ["--chain", tmp_path / "other.json"], {}),
        ("image_projection.* does not fit settings", ["--image-encoder", tmp_path / "wide"], {}),
    ):
        refuse(words, run, sources, dest, *more, **changes)
    assert not dest.exists()
    dest.mkdir()
    (dest / "file").touch()
    refuse("exists and is not an empty folder", run, sources, dest)


def test_sources_and_the_chain_may_be_on_a_store(workdir, sources, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = new_address(monkeypatch)
    names = ("theirs.safetensors", "chain.json")
    StoreFolder(place).upload({name: sources / name for name in names})
    theirs, chain = (f"{place}/{name}" for name in names)
    more = ["--config", str(sources / "hashed.py"), "--image-encoder", str(sources / "clip")]
    assert convert.main([theirs, str(tmp_path / "run"), "--to", "jax", "--chain", chain, *more]) == 0
    assert read_run_settings(tmp_path / "run").data.root == place
    assert read_reading(tmp_path / "run").chain == read_reading(workdir).chain
    refuse(rf"^SOURCE: {place}/none\.safetensors: holds no files", convert.main,
           [f"{place}/none.safetensors", str(tmp_path / "none.safetensors"), "--to", "jax"])  # fmt: skip
