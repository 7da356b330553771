import pathlib
import re
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages():
    pytest.importorskip("mkdocs")
    sys.path.insert(0, str(ROOT / "docs"))
    import site_links

    yield site_links
    sys.path.remove(str(ROOT / "docs"))


def test_the_navigation_names_every_document_once():
    named = re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2])
    assert len(set(named)) == len(named)
    generated = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs" / "results").rglob("*.md")} - {
        "results/README.md"
    }
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert set(named) == (there - generated) | notebooks


def test_links_to_files_outside_of_the_site_become_text(pages):
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="runs.md"))
    text = "see [a](../b/c.py), [d](e.md) and [n](../notebooks/anatomy.ipynb)"
    assert pages.on_page_markdown(text, page=page) == "see a (`b/c.py`), [d](e.md) and [n](notebooks/anatomy.md)"


def test_docstrings_become_markdown(pages):
    pytest.importorskip("griffe")
    from docstrings import to_markdown

    text = "One.\n\n>>> f([1][0])\n[2] [3]\n\nTwo [a] [b] `[c] [d]`\n    [e] [f]\n\n    [g] [h]\n"
    assert to_markdown(text).splitlines() == [
        *("One.", "", "", "```pycon", ">>> f([1][0])", "[2] [3]", "```", ""),
        *("Two [a] \\[b] `[c] [d]`", "    [e] \\[f]", "", "    [g] [h]"),
    ]
    assert to_markdown(">>> 1\n1").splitlines() == ["", "```pycon", ">>> 1", "1", "```"]


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("material")
    pytest.importorskip("nbconvert")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    site = tmp_path / "site"
    api = (site / "api" / "index.html").read_text(encoding="utf-8")
    assert "sc.StepCoT" in api
    assert "One compiled update" in api
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        page = site / "notebooks" / notebook.stem / "index.html"
        pictures = re.findall(r'<img alt="output" src="([^"]+)"', page.read_text(encoding="utf-8"))
        assert len(pictures) == notebook.read_text(encoding="utf-8").count('"image/png"')
        assert all((page.parent / picture).resolve().is_file() for picture in pictures)
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]+src=\"(?:https?:)?//|<link[^>]+href=\"(?:https?:)?//[^>]*stylesheet"
    )
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//|@import\s+[\"'](?:https?:)?//", style.read_text()), style
