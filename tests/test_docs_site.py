"""The documentation as a site: everything is in it, nothing is loaded from elsewhere, and it builds strictly."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages():
    pytest.importorskip("mkdocs")
    sys.path.insert(0, str(ROOT / "docs"))
    import api_pages

    yield api_pages
    sys.path.remove(str(ROOT / "docs"))


def test_the_navigation_names_documents_that_are_there(pages):
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"[\w/]+\.md", text.partition("\nnav:")[2])
    assert len(named) > 8
    assert len(set(named)) == len(named)
    assert set(named) - {"api/index.md"} <= set(pages.find_documents(ROOT / "docs"))
    assert list(pages.find_listed([{"Start": "a.md"}, {"More": ["b.md", {"c": ["d.md"]}]}])) == ["a.md", "b.md", "d.md"]


def test_the_api_has_every_module_once(pages):
    modules = dict(pages.find_modules(ROOT))
    assert {"stepcot_jax.chain", "stepcot_jax.export.loader", "stepcot_jax.models.teacher"} <= set(modules)
    assert "stepcot_jax.data" not in modules  # a docstring and nothing else
    assert all(modules.values())  # each begins with a line that says what it is
    assert len({pages.page_of(module) for module in modules}) == len(modules)
    assert pages.group_of("stepcot_jax.chain") == "stepcot_jax"
    assert pages.group_of("stepcot_jax.data.sources.csv_table") == "stepcot_jax.data"
    assert pages.on_page_markdown("see [a](../b/c.py) and [d](e.md)") == "see a (`b/c.py`) and [d](e.md)"
    index = pages.write_index({"stepcot_jax": ["stepcot_jax.chain"]}, {"stepcot_jax.chain": "a|b"})
    assert "| [`stepcot_jax.chain`](stepcot_jax.chain.md) | a\\|b |" in index


def test_docstrings_become_markdown(pages):
    pytest.importorskip("griffe")
    from docstrings import to_markdown

    text = "One.\n\n>>> f([1][0])\n[2] [3]\n\nTwo [a] [b] `[c] [d]`\n    [e] [f]\n\n    [g] [h]\n"
    assert to_markdown(text).splitlines() == [
        *("One.", "", "", "```pycon", ">>> f([1][0])", "[2] [3]", "```", ""),
        *("Two [a] \\[b] `[c] [d]`", "    [e] \\[f]", "", "    [g] [h]"),
    ]
    assert to_markdown(">>> 1\n1").splitlines() == ["", "```pycon", ">>> 1", "1", "```"]


def test_a_small_site_builds_strictly_and_loads_nothing_from_elsewhere(pages, tmp_path):
    """The real settings and documents with the API of two modules; CI builds the whole."""
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("material")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "stepcot_jax").mkdir()
    (tmp_path / "docs" / "nowhere_named.md").write_text("# Nowhere named\n", encoding="utf-8")
    for name in ("__init__", "chain", "errors"):
        shutil.copy(ROOT / "stepcot_jax" / f"{name}.py", tmp_path / "stepcot_jax")
    environment = {**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    site = tmp_path / "site"
    assert {page.stem for page in (tmp_path / "docs").glob("*.md")} - {"index"} <= {
        page.name for page in site.iterdir()
    }
    assert "Nowhere named" in (site / "index.html").read_text(encoding="utf-8")
    chain = (site / "api" / "stepcot_jax.chain" / "index.html").read_text(encoding="utf-8")
    assert "read_answer" in chain
    assert "The answers without letter prefixes" in chain.replace("the answers", "The answers")
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]+src=\"(?:https?:)?//|<link[^>]+href=\"(?:https?:)?//[^>]*stylesheet"
    )
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//|@import\s+[\"'](?:https?:)?//", style.read_text()), style
