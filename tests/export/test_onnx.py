"""ONNX files give the networks' logits with numpy and onnxruntime alone; what has no ONNX form is named."""

import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from export.test_export import READ_ALONE
from PIL import Image
from policies.policy_workdir import make_policy_workdir
from trained_workdir import write_operating_points

from stepcot_jax.contrib.onnx import folder as onnx_folder
from stepcot_jax.contrib.onnx import loader as onnx_loader
from stepcot_jax.contrib.onnx.converter import trace_to_onnx
from stepcot_jax.contrib.onnx.folder import export_onnx
from stepcot_jax.data.images.preprocessing import prepare_image
from stepcot_jax.encoders.torchvision_networks import FrozenDenseNet, FrozenResNet
from stepcot_jax.evaluation.calibration import calibrated_probabilities
from stepcot_jax.export.exported_files import RefusedExport
from stepcot_jax.export.program import make_gate_program, make_program
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.reading.programs import Reader
from stepcot_jax.tools.export import main
from tests.export import random_run

IMAGES = np.random.default_rng(3).normal(size=(5, random_run.SIZE, random_run.SIZE, 3)).astype(np.float32)
ALONE = (
    READ_ALONE[: READ_ALONE.index("pathlib.Path(sys.argv[1])")]
    .replace('"jax", "jaxlib", ', "")
    .replace('"load"', '"load", "onnxruntime", "flatbuffers", "google", "packaging", "coloredlogs", "sympy", "mpmath"')
    + """pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder))
import numpy as np
from load import load

images = np.load(sys.argv[2])
asked = [(name, number) for name in ("student", "teacher") for number in (1, 5)]
np.savez(sys.argv[3], **{f"{name}/{number}": load(folder, name).logits(images[:number]) for name, number in asked})
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"stepcot_jax", "jax", "flax", "onnx", "safetensors", "jaxtyping"}, loaded
"""
)


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module", params=["resnet", "transformer"])
def exported(request, tmp_path_factory):
    """A run with an encoder, and its export."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("onnx")
    run = random_run.make_run(folder / "run", frozen=request.param == "transformer")
    run.workdir.mkdir()
    random_run.write_gate(run)
    write_operating_points(run.workdir, chain=run.chain)
    report = export_onnx(run, folder / "out", models=["student", "teacher"])
    assert all(model["max_error"] <= 1e-5 for model in report["models"].values())
    return run, folder / "out"


@pytest.mark.slow
def test_another_process_with_numpy_and_onnxruntime_alone_gives_the_same_logits(exported, tmp_path):
    run, out = exported
    np.save(tmp_path / "images.npy", IMAGES)
    arguments = [str(out), str(tmp_path / "images.npy"), str(tmp_path / "found.npz")]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(
        [sys.executable, "-B", "-c", ALONE, *arguments], capture_output=True, text=True, env=environment, cwd="/"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.load(tmp_path / "found.npz")
    for name in ("student", "teacher"):
        expected = random_run.expected_logits(run, name, IMAGES)
        assert len(np.unique(expected[expected > -1e8])) > 30
        for number in (1, 5):
            np.testing.assert_allclose(found[f"{name}/{number}"], expected[:number], atol=1e-4, rtol=1e-6)


@pytest.mark.slow
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
        assert of_card[step.name][0] == answers[0]
        assert of_card[step.name][1] == pytest.approx(probabilities.max(), abs=1e-5)


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
    onnx = pytest.importorskip("onnx")
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


def test_a_run_without_gate_and_points(tmp_path):
    pytest.importorskip("onnxruntime")
    run = random_run.make_run(tmp_path / "run")
    export_onnx(run, tmp_path / "out", models=["student"])
    model = onnx_loader.load(tmp_path / "out")
    assert (model.gate_scores(IMAGES), model.above(IMAGES)) == (None, {})
    assert not (tmp_path / "out" / "statistics.json").exists()


def test_the_folder_says_what_it_holds(exported):
    _, out = exported
    manifest = json.loads((out / "onnx.json").read_text())
    assert list(manifest["models"]) == ["student", "teacher"]
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: stepcot-jax\n")
    assert "## Intended use" in card
    assert "No gate was fitted" in card  # of the teacher
    sums = {line.split("  ")[1] for line in (out / "SHA256SUMS").read_text().splitlines()}
    assert sums == {path.name for path in out.iterdir()} - {"SHA256SUMS"}
    listed = {line.split("`")[1] for line in card.split("## Files")[1].splitlines() if line.startswith("| `")}
    assert listed == {path.name for path in out.iterdir()} - {"README.md"}


def test_changed_files_are_refused_and_load_py_checks(exported, tmp_path, capsys):
    copy = pathlib.Path(shutil.copytree(exported[1], tmp_path / "copy"))
    assert onnx_loader.main([str(copy)]) == 0
    assert [json.loads(line)["ok"] for line in capsys.readouterr().out.splitlines()] == [True, True]
    with pytest.raises(RefusedExport, match="no model 'reader'; it has student, teacher"):
        onnx_loader.load(copy, "reader")
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
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    shapes = jax.eval_shape(network.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 40, 40, 3), jnp.float32))
    params = random_run.random_tree(shapes, 5)
    leaves, tree = jax.tree.flatten(params)
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
        (lambda tensors, images: jnp.cumsum(images, axis=1), "the network uses cumsum, which has no ONNX form here"),
        (
            lambda tensors, images: images.astype(jnp.bfloat16),
            r"computes in bfloat16; expected float32 \(config\.training\.compute_dtype",
        ),
        (lambda tensors, images: images[:, jnp.argmax(images)], "ONNX: "),
    ],
)
def test_what_has_no_onnx_form_is_named(read, words):
    pytest.importorskip("onnx")
    with pytest.raises(BadInput, match=words):
        trace_to_onnx({"found": read}, {}, size=8)


def test_other_logits_stop_the_export(tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    wrong = [{"model": "student", "max_error": 0.5, "ok": False}]
    monkeypatch.setattr(onnx_folder.onnx_loader, "check", lambda folder, tolerance: wrong)
    with pytest.raises(RunStopped, match=r"differ by 5\.0e-01"):
        export_onnx(random_run.make_run(tmp_path / "run"), tmp_path / "out", models=["student"])
    assert not (tmp_path / "out").exists()


def test_without_the_package_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BadInput, match=r"--format=onnx needs onnx \(pip install -e \"\.\[onnx\]\""):
        export_onnx(tmp_path, tmp_path / "out")


def test_the_command_refuses_what_does_not_apply(tmp_path):
    make_policy_workdir(tmp_path / "run")
    flags = [f"--checkpoint={tmp_path / 'run'}", f"--out={tmp_path / 'out'}", "--format=onnx"]
    with pytest.raises(BadInput, match="--format=onnx do not apply"):
        main(flags)
