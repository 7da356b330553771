import ast
import dataclasses
import functools
import pathlib
import re
import subprocess
import sys

import jax
import msgspec
import pytest
from run.small_run import SIZES
from trained_workdir import TINY

import stepcot_jax as sc
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.run import fit, inputs, stored

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^### sc\.(\w+)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
EXAMPLES = [
    (name, "\n".join(re.findall(r"^```python\n(.*?)```", text, re.DOTALL | re.MULTILINE))) for name, text in SECTIONS
]
SHORT = sc.Chain(DEFAULT_CHAIN.steps[:2])
"""Two steps compile faster than seven."""


def test_every_public_name_is_documented_once_with_an_example():
    assert sorted(name for name, _ in EXAMPLES) == sc.__all__
    assert not re.search(r"(from|import) stepcot_jax(\.|\s+import)", PAGE)
    for name, code in EXAMPLES:
        assert re.search(rf"\b(sc\.{name}\b|{name})", code) or name in ("Dataset", "Phase"), name


def test_the_stub_lists_the_same_names():
    tree = ast.parse((ROOT / "stepcot_jax" / "__init__.pyi").read_text(encoding="utf-8"))
    found = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert found == set(sc.__all__)


def test_nothing_is_imported_before_it_is_used():
    code = "import sys, stepcot_jax; print([n for n in sys.modules if n.startswith(('stepcot_jax.', 'jax', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'Teaher'"):
        _ = sc.Teaher
    assert set(sc.__all__) <= set(dir(sc))


def test_the_block_of_the_readme_runs_as_printed(monkeypatch, capsys):
    """With the shipped weights; of its last line, a training, what it is given alone."""
    (block,) = re.findall(
        r"^```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    asked = []
    monkeypatch.setattr(sc.Run, "execute", lambda run: asked.append(run.place.name))
    monkeypatch.setattr(sc, "Run", functools.partial(sc.Run, **SIZES))  # 60 phantoms to draw, not 3,000
    namespace = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(block, "README.md", "exec"), namespace)  # noqa: S102
    read, corrected = capsys.readouterr().out.split("\nRadiographic pattern\n")
    assert namespace["reading"].answers["Diagnosis"] == "Effusion"
    assert "Effusion" in read
    assert "Mass" in corrected
    assert asked == ["runs/short"]


def shorten(dataset):
    cases = [
        msgspec.structs.replace(case, answers=case.answers[:2], reasoning=case.reasoning[:2]) for case in dataset.cases
    ]
    return dataclasses.replace(dataset, chain=SHORT, cases=cases)


def test_the_examples_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sc.Chain, "published", lambda: SHORT)
    monkeypatch.setattr(sc, "load_dataset", lambda *given, load=sc.load_dataset, **more: shorten(load(*given, **more)))
    for module in (sc, fit, inputs, stored):
        monkeypatch.setattr(module, "make_resnet", lambda name: TINY, raising=False)
    namespace = {"sc": sc}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for name, code in EXAMPLES:
            exec(compile(code, f"docs/api.md, sc.{name}", "exec"), namespace)  # noqa: S102
    assert set(namespace["answers"]) == {step.name for step in DEFAULT_CHAIN.steps}
    assert (tmp_path / "exports" / "small" / "load.py").is_file()
    low, high = namespace["report"]["test"]["student"]["interval"]
    assert low <= namespace["report"]["test"]["student"]["mean_accuracy"] <= high
    figures = namespace["scores"].figures["replies"]  # of the true replies, in the dialect they are written in
    assert namespace["scores"].dialect == "gemex_plain"
    assert [figures[name]["closed"]["value"] for name in ("a_score", "v_score")] == [1, 1]
    assert (tmp_path / "scores" / "index.html").is_file()
    assert namespace["corrected"].answers["Anatomical location"] == "Upper lung zone"
    assert [record.answers[-1] >= 0 for record in namespace["annotated"].records] == [True, True]
    assert all(record.thinking for record in namespace["reasoned"])
