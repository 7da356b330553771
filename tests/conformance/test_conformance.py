import itertools
import json
import sys

import jax
import numpy as np
import pytest
from refusals import assert_says, refuse

from stepcot_jax.host.errors import run_tool
from stepcot_jax.tools.conformance import command as conformance
from stepcot_jax.tools.conformance.golden import STUDENT_LOSS_PARTS, VARIANTS, Golden, max_error

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def configured():
    """Compiling takes nearly all of the time here, and the numbers without optimisation are the same to rounding.

    Optax's Adam raises a Python float to an integer count, which strict promotion refuses.
    """
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.numpy_dtype_promotion("standard"):
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def arrays():
    pytest.importorskip("torch")
    from convert import torch_oracle

    return torch_oracle.golden_arrays()


@pytest.fixture
def write(tmp_path):
    def write(arrays, **changed):
        path = tmp_path / "golden.npz"
        np.savez(path, **{**arrays, **changed})
        return str(path)

    return write


def run(capsys, *paths):
    code = conformance.main(list(paths))
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def with_meta(arrays, **changed):
    meta = {**json.loads(arrays["meta"].tobytes()), **changed}
    return {
        **arrays,
        "meta": np.frombuffer(json.dumps({k: v for k, v in meta.items() if v is not None}).encode(), "u1"),
    }


def test_an_independent_derivation_agrees_in_every_group(arrays, write, capsys):
    path = write(arrays)
    code, results = run(capsys, path)
    assert code == 0
    assert all(result["ok"] and result["max_error"] <= result["tolerance"] for result in results), results
    assert [set(result) for result in results] == [{"file", "group", "max_error", "tolerance", "ok"}] * 27
    assert {result["file"] for result in results} == {path}
    assert len({result["group"] for result in results}) == 27


KEY_OF_GROUP = {
    "gat": "gat/attention_layer0",
    "gru": "gru/out",
    "teacher_logits": "teacher/logits_2",
    "teacher_image_features": "teacher/image_feature_1",
    "student": "student/logits_0",
    "loss_teacher": "loss/teacher_ce_per_step",
    "grads_teacher": "grads/teacher/memory_gat.layers.0.a_src",
    "train_losses": "train/losses",
    "train_params_after": "train/params_after/proj_s/weight",
    **{f"grads_{variant}": f"grads/{variant}/proj_s/bias" for variant in VARIANTS},
    **{f"loss_{variant}_{part}": f"loss/{variant}/{part}" for variant in VARIANTS for part in STUDENT_LOSS_PARTS},
}


def test_a_wrong_number_fails_its_group_alone(arrays, write, capsys):
    """Each group is wrong in three of seven files, no two groups in the same three."""
    places = dict(zip(KEY_OF_GROUP, itertools.combinations(range(7), 3), strict=False))
    for number in range(7):
        wrong = [group for group, own in places.items() if number in own]
        changed = {KEY_OF_GROUP[group]: arrays[KEY_OF_GROUP[group]].copy() for group in wrong}
        for key, array in changed.items():
            array.flat[0] = np.nan if key == "gru/out" else array.flat[0] + 0.01 * max(1.0, abs(array.flat[0]))
        code, results = run(capsys, write(arrays, **changed))
        assert code == 1
        failed = {result["group"]: result["max_error"] for result in results if not result["ok"]}
        assert sorted(failed) == sorted(wrong)
        assert {group for group, error in failed.items() if error is None} == {"gru"} & set(wrong)


def test_error_is_absolute_or_relative_whichever_is_smaller():
    assert max_error(iter([(np.array([0.5]), np.array([0.25]))])) == 0.25
    assert max_error(iter([(np.array([110.0]), np.array([100.0]))])) == pytest.approx(0.1)
    assert max_error(iter([(np.zeros(2), np.zeros(3))])) == float("inf")


def drop(name):
    return lambda arrays: {key: array for key, array in arrays.items() if key != name}


def put(name, make):
    return lambda arrays: {**arrays, name: make(arrays[name])}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("gru/out"), ["gru/out"]),
        (drop("params/teacher/pred2mem.weight"), ["missing", "pred2mem.weight"]),
        (put("inputs/labels", lambda array: array[:, :2]), ["inputs/labels", "[4, 2]", "[4, 3]"]),
        (lambda arrays: with_meta(arrays, gat_layers=None), ["meta", "`gat_layers`"]),
        (lambda arrays: with_meta(arrays, layer_norm_eps=1e-6), ["layer_norm_eps", "1e-06", "1e-05"]),
    ],
)
def test_a_file_that_does_not_fit_is_refused(arrays, write, change, words):
    path = write(change(arrays))
    assert_says(refuse("", Golden, path), path, *words)


def test_a_missing_gradient_is_named(arrays, write, capsys):
    path = write(drop("grads/paper/student/img_proj.0.weight")(arrays))
    refuse(r"grads/paper/student/img_proj\.0\.weight", run, capsys, path)


class Bomb:
    def __reduce__(self):
        return (sys.exit, ("unpickled",))


def broken(kind, path):
    if kind == "damaged":
        np.savez(path, meta=np.zeros(5000))
        data = bytearray(path.read_bytes())
        data[2000] ^= 255
        path.write_bytes(data)
    elif kind == "one array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    elif kind == "pickled":
        np.savez(path, meta=np.array([Bomb()], dtype=object))


@pytest.mark.parametrize("kind", ["absent", "damaged", "one array", "pickled"])
def test_a_broken_or_malicious_file_exits_with_2(tmp_path, capsys, kind):
    path = tmp_path / "golden.npz"
    broken(kind, path)
    with pytest.raises(SystemExit) as ended:
        run_tool(lambda: conformance.main([str(path)]))
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith(f"error: {path}: ")
    assert captured.err.count("\n") == 1


def test_the_authors_numbers_agree(shared, capsys):
    paths = sorted(str(path) for path in (shared / "golden").glob("*.npz"))
    code, results = run(capsys, *paths)
    assert (len(paths), len(results)) == (2, 54)
    assert [result for result in results if not result["ok"]] == []
    assert code == 0
