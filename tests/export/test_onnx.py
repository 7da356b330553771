"""ONNX files give the networks' logits with numpy and onnxruntime alone; what has no ONNX form is named."""

import collections
import json
import pathlib
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from refusals import refuse
from trained_workdir import write_operating_points

from stepcot_jax.data.images.preprocessing import prepare_image
from stepcot_jax.encoders.torchvision_networks import FrozenDenseNet, FrozenResNet
from stepcot_jax.evaluation.calibration import calibrated_probabilities
from stepcot_jax.export.program import make_gate_program, make_program
from stepcot_jax.extras.onnx import folder as onnx_folder
from stepcot_jax.extras.onnx import loader as onnx_loader
from stepcot_jax.extras.onnx.folder import export_onnx, trace_to_onnx
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.host.exported_files import RefusedExport
from stepcot_jax.reading.programs import Reader
from tests.export import random_run

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

IMAGES = np.random.default_rng(3).normal(size=(5, random_run.SIZE, random_run.SIZE, 3)).astype(np.float32)
NEEDS = ("numpy", "onnxruntime", "flatbuffers", "google", "packaging", "coloredlogs", "sympy", "mpmath")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A run with an encoder of its own, and its export."""
    folder = tmp_path_factory.mktemp("onnx")
    run = random_run.make_run(folder / "run")
    run.workdir.mkdir()
    random_run.write_gate(run)
    write_operating_points(run.workdir, chain=run.chain)
    report = export_onnx(run, folder / "out", models=["student", "teacher"])
    assert all(model["max_error"] <= 1e-5 for model in report["models"].values())
    return run, folder / "out"


def require_logits(run, name, found):
    expected = random_run.expected_logits(run, name, IMAGES)
    assert len(np.unique(expected[expected > -1e8])) > 30
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-6)


@pytest.mark.slow
def test_another_process_with_numpy_and_onnxruntime_alone_gives_the_same_logits(exported):
    run, out = exported
    body = """names = ("student", "teacher")
print(json.dumps([[*load(folder, n).logits(images[:1]).tolist(), *load(folder, n).logits(images[1:]).tolist()]
                  for n in names]))"""
    found = random_run.read_alone(out, IMAGES, body, needs=NEEDS, banned=("jax", "onnx"))
    for name, logits in zip(("student", "teacher"), found, strict=True):
        require_logits(run, name, logits)


@pytest.mark.slow
def test_a_frozen_transformer_without_gate_and_points_is_converted(tmp_path):
    run = random_run.make_run(tmp_path / "run", frozen=True)
    export_onnx(run, tmp_path / "out", models=["teacher", "student"])
    model = onnx_loader.load(tmp_path / "out")
    assert (model.name, model.gate_scores(IMAGES), model.above(IMAGES)) == ("teacher", None, {})
    assert not (tmp_path / "out" / "statistics.json").exists()
    for name in ("teacher", "student"):
        require_logits(run, name, onnx_loader.load(tmp_path / "out", name).logits(IMAGES))


def test_answers_are_calibrated_and_the_lines_of_the_card_give_them(exported, tmp_path):
    run, out = exported
    path = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (37, 61), dtype=np.uint8)).save(path)
    pixels = prepare_image(path.read_bytes(), name="image", preprocessing=run.preprocessing)
    model = onnx_loader.load(out)
    found = model(pixels[None] if pixels.ndim == 2 else pixels[..., 0][None])
    expected = calibrated_probabilities(model.logits(pixels[None]), "student", run.calibration, run.chain)[0]
    lines: dict = {}
    code = (out / "README.md").read_text().split("```python\n")[2].split("```")[0]
    exec(code, lines)  # noqa: S102
    of_card = lines["answer"](path, str(out))
    for place, step in enumerate(run.chain.steps):
        answers, probabilities = found[step.name]
        np.testing.assert_allclose(probabilities[0], expected[place, : step.num_answers], atol=1e-6)
        assert of_card[step.name] == (answers[0], pytest.approx(probabilities.max(), abs=1e-5))


def test_the_gate_and_the_operating_points_come_along(exported):
    run, out = exported
    student, teacher = (onnx_loader.load(out, name) for name in ("student", "teacher"))
    expected = Reader(run, model="student", batch_size=4).gate_scores(IMAGES)
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(student.gate_scores(IMAGES), expected, rtol=1e-4)
    assert teacher.gate_scores(IMAGES) is None
    for model in (student, teacher):
        shares, above, num_called = model(IMAGES), model.above(IMAGES), 0
        for step in run.chain.steps:
            own = run.operating_points.of_step(model.name, step.name)
            limits = [own[option].threshold.value if option in own else 2 for option in step.options]
            called = shares[step.name][1] >= np.array(limits)
            num_called += called.sum()
            assert above[step.name] == [[step.options[place] for place in np.flatnonzero(row)] for row in called]
        assert num_called > 0


def test_logits_and_gate_share_the_image_encoder(exported):
    run, out = exported
    program = make_program(run, "student")
    alone = trace_to_onnx({"logits": program.read}, program.tensors, size=program.size)
    found = onnx.load(out / "student.onnx")
    counts, of_logits = (collections.Counter(node.op_type for node in each.graph.node) for each in (found, alone))
    assert len(found.graph.output) == 2
    assert counts["MatMul"] == of_logits["MatMul"] + 1
    assert all(counts[name] == of_logits[name] for name in ("Conv", "Einsum", "Softmax"))
    gate = make_gate_program(run, "student")
    own = sum(array.nbytes for name, array in gate.tensors.items() if name.startswith("gate/"))
    sizes = [sum(len(each.raw_data) for each in model.graph.initializer) for model in (found, alone)]
    assert sizes[1] < sizes[0] < sizes[1] + own + 1000


def test_the_folder_says_what_it_holds_and_refuses_changed_files(exported, tmp_path, capsys):
    _, out = exported
    assert list(json.loads((out / "onnx.json").read_text())["models"]) == ["student", "teacher"]
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: stepcot-jax\n")
    assert "## Intended use" in card
    assert "No gate was fitted" in card  # of the teacher
    names = {path.name for path in out.iterdir()}
    assert {line.split("  ")[1] for line in (out / "SHA256SUMS").read_text().splitlines()} == names - {"SHA256SUMS"}
    listed = {line.split("`")[1] for line in card.split("## Files")[1].splitlines() if line.startswith("| `")}
    assert listed == names - {"README.md"}
    copy = pathlib.Path(shutil.copytree(out, tmp_path / "copy"))
    assert onnx_loader.main([str(copy)]) == 0
    assert [json.loads(line)["ok"] for line in capsys.readouterr().out.splitlines()] == [True, True]
    refuse("no model 'reader'; it has student, teacher", onnx_loader.load, copy, "reader", error=RefusedExport)
    (copy / "student.onnx").write_bytes(b"x")
    assert onnx_loader.main([str(copy)]) == 2
    assert "student.onnx has changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "network",
    [
        FrozenDenseNet(layers_per_block=(1, 2), growth=4, stem_width=8),
        FrozenResNet(blocks_per_stage=(1, 1), bottleneck=True, stem_width=4),
    ],
)
def test_other_image_encoders_are_converted(network):
    shapes = jax.eval_shape(network.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 40, 40, 3), jnp.float32))
    leaves, tree = jax.tree.flatten(random_run.random_tree(shapes, 5))
    tensors = {f"{number:04}": leaf for number, leaf in enumerate(leaves)}

    def read(tensors, images):
        return network.apply(jax.tree.unflatten(tree, [tensors[name] for name in sorted(tensors)]), images)[0]

    made = trace_to_onnx({"features": read}, tensors, size=40)
    images = np.random.default_rng(1).normal(size=(2, 40, 40, 3)).astype(np.float32)
    (found,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"images": images})
    np.testing.assert_allclose(found, jax.jit(read)(tensors, images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda _, images: jnp.cumsum(images, axis=1), "the network uses cumsum, which has no ONNX form here"),
        (lambda _, images: images.astype(jnp.bfloat16), r"bfloat16; expected float32 \(config\.training\.compute_d"),
        (lambda _, images: images[:, jnp.argmax(images)], "ONNX: "),
    ],
)
def test_what_has_no_onnx_form_is_named(read, words):
    refuse(words, trace_to_onnx, {"found": read}, {}, size=8)


def test_other_logits_stop_the_export_and_a_missing_package_is_named(exported, tmp_path, monkeypatch):
    wrong = [{"model": "student", "max_error": 0.5, "ok": False}]
    monkeypatch.setattr(onnx_folder, "_write", lambda *_, **__: None)
    monkeypatch.setattr(onnx_folder.onnx_loader, "check", lambda folder, tolerance: wrong)
    refuse(r"differ by 5\.0e-01", export_onnx, exported[0], tmp_path / "out", models=["student"], error=RunStopped)
    assert not (tmp_path / "out").exists()
    monkeypatch.setitem(sys.modules, "onnx", None)
    refuse(r"--format=onnx needs onnx \(.*pip install -e \"\.\[onnx\]\"", export_onnx, tmp_path, tmp_path / "out")
