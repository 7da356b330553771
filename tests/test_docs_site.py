import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def test_the_navigation_names_every_document_once():
    named = re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2])
    assert len(set(named)) == len(named)
    generated = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs" / "results").rglob("*.md")} - {
        "results/README.md"
    }
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert set(named) == (there - generated) | notebooks


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
