import builtins
import json
import pathlib

import numpy as np
import pytest
import safetensors.numpy
from convert.named_tensors import random_tensors
from refusals import refuse

from stepcot_jax.export import authors as named_tensors
from stepcot_jax.host.errors import BadInput
from stepcot_jax.tools import convert
from stepcot_jax.tools.convert import check_destination, read_tensors, write_tensors
from stepcot_jax.training import state as parameter_paths
from stepcot_jax.training.checkpoints import write_digests

WIDTHS = {"student_width": 3, "image_width": 4, "answers_0": 2, "answers_1": 3, "projection_width": 2}


def tensors_of(network):
    return random_tensors([network], WIDTHS, num_steps=2, num_layers=0)[network]


@pytest.fixture
def theirs(tmp_path):
    path = tmp_path / "theirs.safetensors"
    found = {f"{name}/{key}": array for name in ("student", "proj_s") for key, array in tensors_of(name).items()}
    safetensors.numpy.save_file(found, path)
    return path


def run(*arguments):
    return convert.main([str(argument) for argument in arguments])


def test_there_and_back_is_exact(theirs, tmp_path, capsys):
    ours, back = tmp_path / "ours.safetensors", tmp_path / "back.safetensors"
    assert run(theirs, ours, "--to", "jax") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["tensors_read"], report["tensors_written"], report["ignored"]) == (10, 10, {})
    found = safetensors.numpy.load_file(ours)
    assert {"student/image_projection/linear/kernel", "student/head_1/bias", "student_projection/kernel"} <= set(found)
    assert run(ours, back, "--to", "torch") == 0
    assert safetensors.numpy.load_file(back).keys() == safetensors.numpy.load_file(theirs).keys()
    for name, array in safetensors.numpy.load_file(theirs).items():
        np.testing.assert_array_equal(safetensors.numpy.load_file(back)[name], array)


def test_dots_and_bare_state_dicts_are_read(tmp_path):
    dotted = {f"student.{name}": array for name, array in tensors_of("student").items()}
    bare = tensors_of("student")
    expected = named_tensors.to_jax_tensors({f"student/{name}": array for name, array in bare.items()})
    for found in (named_tensors.to_jax_tensors(dotted), named_tensors.to_jax_tensors(bare, network="student")):
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in found)
    assert named_tensors.to_torch_tensors(expected, network="student").keys() == bare.keys()
    refuse("does not start with a network", named_tensors.to_jax_tensors, bare)
    refuse("twice", named_tensors.to_jax_tensors, dotted | {"student/step_heads.0.bias": bare["step_heads.0.bias"]})


def test_a_pt_of_nested_state_dicts_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    source, dest = tmp_path / "theirs.pt", tmp_path / "ours.safetensors"
    states = {"student": {name: torch.from_numpy(array) for name, array in tensors_of("student").items()}}
    torch.save({**states, "epoch": 7}, source)
    refuse("epoch", run, source, dest, "--to", "jax")
    assert run(source, dest, "--to", "jax", "--ignore", "epoch") == 0
    assert len(safetensors.numpy.load_file(dest)) == 8


def test_frozen_encoders_are_left_out_only_when_asked(theirs, tmp_path, capsys):
    found = safetensors.numpy.load_file(theirs)
    found |= {f"student/clip_model.{part}": np.zeros(2, np.int64) for part in ("positions", "weight")}
    safetensors.numpy.save_file(found, theirs)
    dest = tmp_path / "ours.safetensors"
    with pytest.raises(BadInput, match=r"theirs\.safetensors: .*unknown tensors: clip_model\.positions, clip_model\.w"):
        run(theirs, dest, "--to", "jax")
    assert not dest.exists()
    assert run(theirs, dest, "--to", "jax", "--ignore", "clip_model.", "--ignore", "bert.") == 0
    assert json.loads(capsys.readouterr().out)["ignored"] == {"clip_model.": 2, "bert.": 0}


def test_the_best_weights_of_a_run_are_taken(tmp_path, capsys):
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    ours = named_tensors.to_jax_tensors({f"student/{name}": array for name, array in tensors_of("student").items()})
    progress = {"best": {"student": {"score": 0.5, "step": 4}}}
    with ocp.CheckpointManager((tmp_path / "run" / "checkpoints").resolve()) as manager:
        for step in (4, 8):
            tree = parameter_paths.unflatten({name: jnp.asarray(array) + step for name, array in ours.items()})
            state, kept = ocp.args.StandardSave({"params": tree}), ocp.args.JsonSave(progress)
            manager.save(step, args=ocp.args.Composite(state=state, progress=kept))
    for step in (4, 8):
        write_digests(tmp_path / "run" / "checkpoints" / str(step))
    dest = tmp_path / "theirs.safetensors"
    assert run(tmp_path / "run", dest, "--to", "torch", "--network", "student") == 0
    assert "student: from the checkpoint of step 4" in capsys.readouterr().err
    for name, array in tensors_of("student").items():
        np.testing.assert_array_equal(safetensors.numpy.load_file(dest)[name], array + np.float32(4))


def test_names_that_nest_too_deeply_or_in_one_another_are_refused():
    deep = {"leaf": 1}
    for _ in range(10_000):
        deep = {"a": deep}
    refuse(r"33 parts; at most 1000 and 32 are accepted", parameter_paths.flatten, deep)
    for leaves in ({"a/b": 1, "a": 2}, {"a": 2, "a/b": 1}):
        refuse(r"a.*tensor.*expected names that nest", parameter_paths.unflatten, leaves)
    assert parameter_paths.unflatten({"/".join("a" * 32): 1})


TENSORS = {"student/a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "student/a.bias": np.ones(2, np.float32)}


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
def test_what_is_written_is_read(tmp_path, suffix):
    if suffix != ".safetensors":
        pytest.importorskip("torch")
    path, tensors = tmp_path / f"weights{suffix}", TENSORS | {"student/t": TENSORS["student/a.weight"].T}
    write_tensors(path, tensors)
    assert_same(read_tensors(path), tensors)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_file_is_replaced_only_when_asked_and_a_write_that_fails_leaves_it(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"precious")
    refuse("--force", check_destination, path, overwrite=False)

    def fail(tensors, target, metadata):
        pathlib.Path(target).write_bytes(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.numpy, "save_file", fail)
        refuse("disk full", write_tensors, path, TENSORS, error=OSError)
    assert path.read_bytes() == b"precious"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    check_destination(path, overwrite=True)
    write_tensors(path, TENSORS)
    assert_same(read_tensors(path), TENSORS)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.ckpt", None, r"suffix '\.ckpt' is not one of \.safetensors"),
        ("a.safetensors", None, "does not exist"),
        ("a.safetensors", b"", "not a complete safetensors file"),
        ("a.safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00{broken", "not a complete safetensors file"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refuse(words, read_tensors, tmp_path / name)
    refuse(r"folder .* does not exist", check_destination, tmp_path / "no" / "a.safetensors", overwrite=False)


def test_without_torch_a_pt_is_refused_with_the_ways_out(tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    path.write_bytes(b"x")
    real = builtins.__import__

    def no_torch(name, *args, **kwargs):
        if name == "torch":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_torch)
    for action in (lambda: read_tensors(path), lambda: check_destination(path, overwrite=True)):
        refuse(r"need torch.*\[torch\].*safetensors", action)


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (self.target.write_text, ("unpickled",))


def test_a_pt_with_objects_is_refused_and_never_unpickled(tmp_path):
    torch = pytest.importorskip("torch")
    path, mark = tmp_path / "a.pt", tmp_path / "mark"
    torch.save({"weight": torch.zeros(2), "bomb": Bomb(mark)}, path)
    refuse("objects that could run code", read_tensors, path)
    assert not mark.exists()
    torch.save([torch.zeros(2)], path)
    refuse("holds a list", read_tensors, path)
