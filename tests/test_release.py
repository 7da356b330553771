"""What an index and a stranger get of a release: the long description, the sdist, the workflows' parts of `.ci/run`."""

import email.parser
import pathlib
import re
import tarfile
import tomllib
import zipfile

import pytest
import yaml
from markdown_it import MarkdownIt
from wheels import build_wheel

from stepcot_jax import __version__
from stepcot_jax.host.download import PHANTOM, find_checkpoint

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def find_links(tokens):
    for token in tokens or ():
        yield from (token.attrs[name] for name in ("href", "src") if name in token.attrs)
        yield from find_links(token.children)


@pytest.mark.slow
def test_no_link_of_the_long_description_is_relative(tmp_path):
    built = build_wheel(tmp_path)
    assert built.stat().st_size < 3.5e6, "the reader of drawn chests has most of it"
    with zipfile.ZipFile(built) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.parser.BytesParser().parsebytes(wheel.read(name))
        shipped = {f"stepcot_jax/phantom_reader/{path.name}" for path in find_checkpoint(PHANTOM).iterdir()}
        assert {"stepcot_jax/py.typed", *shipped} <= set(wheel.namelist())
    assert metadata["Author"] == "stepcot_jax contributors"
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload(decode=True).decode()
    assert not re.search(r"<(?:a|img)\s", text), "HTML links are not seen by this test"
    links = list(find_links(MarkdownIt("commonmark").enable("table").parse(text)))
    address = re.escape(PROJECT["urls"]["Repository"])
    of_files = 0
    for link in links:
        assert link.startswith(("https://", "#")), link
        if found := re.fullmatch(rf"{address}/(raw|blob)/v{re.escape(__version__)}/([^#]+)(#.*)?", link):
            assert (ROOT / found[2]).exists(), link
            assert (found[1] == "raw") == (pathlib.Path(found[2]).suffix == ".png"), link
            of_files += 1
    assert of_files > 10


@pytest.mark.slow
def test_the_sdist_has_what_its_documents_name(tmp_path):
    with tarfile.open(build_wheel(tmp_path, kind="sdist")) as sdist:
        there = {name.partition("/")[2] for name in sdist.getnames()}
    copied = tmp_path / "source"
    folders = ("benchmarks", "configs", "docs", "launch", "notebooks", "stepcot_jax")
    files = {str(path.relative_to(copied)) for folder in folders for path in (copied / folder).rglob("*")}
    assert not files - there
    assert {
        "CHANGELOG.md",
        "CITATION.cff",
        "SECURITY.md",
        "LICENSE",
        "README.md",
        "setup.py",
        "pyproject.toml",
    } <= there
    assert not [name for name in there if name.startswith("tests")]


def test_every_file_names_the_same_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == __version__
    assert re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[1] == __version__


def test_workflows_name_parts_of_the_script():
    parts = set(re.findall(r"^part_(\w+)\(\)", (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE))
    files = (ROOT / ".github" / "workflows").glob("*.yml")
    texts = {path.stem: path.read_text("utf-8") for path in files}
    matrix = yaml.safe_load(texts["tests"])["jobs"]["run"]["strategy"]["matrix"]
    named = {*matrix["parts"], *(part for row in matrix["include"] for part in row["parts"].split())}
    named.update(re.findall(r"\.ci/run ([a-z]+)$", "\n".join(texts.values()), re.MULTILINE))
    assert all(yaml.safe_load(text)["jobs"] for text in texts.values())
    assert named == parts


def test_the_versions_of_python_are_those_of_the_tests():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))
    tested = workflow["jobs"]["run"]["strategy"]["matrix"]["python"]
    named = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r"Python :: \d\.\d", name)]
    assert named == tested
    assert PROJECT["requires-python"] == f">={tested[0]}"
    assert f"Python {tested[0]} to {tested[-1]}" in (ROOT / "README.md").read_text("utf-8")


def test_extras_of_the_readme_exist():
    named = set(re.findall(r'"\.\[([\w,]+)\]"', (ROOT / "README.md").read_text("utf-8")))
    assert {"cuda12", "cuda13", "tpu", "test"} <= named <= PROJECT["optional-dependencies"].keys()
