"""The blocks of docs/other_libraries.md, in order, as printed; TRL's is run by tests/rewards/test_trl.py."""

import ast
import pathlib
import re

import jax
import numpy as np
import pytest
from flax import nnx

import stepcot_jax as sc
from stepcot_jax.export.loader import load

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "other_libraries.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
RECORDS, TRL, VERL, EASYR1, BOXES, NNX, PLAIN = BLOCKS


def run(*blocks, **names):
    for block in blocks:
        exec(compile(block, "docs/other_libraries.md", "exec"), names)  # noqa: S102
    return names


def test_rewards_in_verl_and_easyr1(capsys):
    names = run(RECORDS, VERL, EASYR1)
    scores, (batch,) = map(ast.literal_eval, capsys.readouterr().out.splitlines())
    assert (scores["score"], scores["acc"], scores["unscored"]) == (1, 1, 0)
    assert (batch["overall"], batch["format"], batch["accuracy"], batch["unscored"]) == (1, 1, 1, 0)
    assert [record.kind for record in names["records"]] == ["single", "closed"]
    row = {"response": "Yes: [28, 42, 42, 49]", "ground_truth": names["rows"][1]["reward_model"]["ground_truth"]}
    assert names["compute_score"]([row])[0]["overall"] == 1  # the answer without its box


def test_the_boxes_formula_by_hand(capsys):
    run(RECORDS, BOXES)
    assert capsys.readouterr().out == "[[ 636.  764. 1272. 1528.]]\n"
    size, least, most = (2544, 3056), 3136, 1_003_520
    assert f"{7_774_464:,}" in PAGE
    assert size[0] * size[1] == 7_774_464
    shrink = (size[0] * size[1] / most) ** 0.5
    sides = [28 * int(side / shrink / 28) for side in size]
    assert (round(shrink, 4), sides) == (2.7834, [896, 1092])
    assert least < sides[0] * sides[1] <= most


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_an_nnx_module_takes_a_gradient_step(capsys):
    with jax.numpy_dtype_promotion("standard"):
        names = run(NNX, sc=sc)
    before, after = map(float, capsys.readouterr().out.split())
    assert after < before == pytest.approx(float(names["before"]))
    # The bridge's network is the linen network of the same parameters.
    _, parameters, _ = nnx.split(names["student"], nnx.Param, ...)
    plain = sc.Student((4, 3), width=16).apply(
        {"params": nnx.to_pure_dict(parameters)}, image_features=names["features"], deterministic=True
    )
    assert after == pytest.approx(float(-jax.nn.log_softmax(plain.logits)[..., 0].mean()), abs=1e-6)


def test_a_students_program_in_plain_jax(chain_export, monkeypatch):
    monkeypatch.chdir(chain_export[1].parent)
    exported = load(chain_export[1], "student")
    size = exported.preprocessing.size
    images = np.random.default_rng(0).normal(size=(3, size, size, 3)).astype(np.float32)
    names = run(PLAIN.replace("exports/quickstart", chain_export[1].name), images=images)
    np.testing.assert_array_equal(names["logits"], exported.logits(images))
