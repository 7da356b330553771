"""The map from the paper to the code: all that it names exists, and nothing of the paper is left out."""

import ast
import functools
import re
from pathlib import Path

import pytest

from configs import base
from stepcot_jax.__main__ import find_tools
from stepcot_jax.settings import make_settings

ROOT = Path(__file__).parents[1]
MAP = ROOT / "docs" / "paper_map.md"
TEXT = MAP.read_text(encoding="utf-8")

ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")]
CODE = sorted(set(re.findall(r"`([^`]+)`", TEXT)))
PLACES = [code for code in CODE if re.fullmatch(r"[\w./]+\.(py|md|csv)(::[\w.]+)?", code)]
TOOLS = [code for code in CODE if code.startswith("python -m ")]
SETTINGS = [code for code in CODE if code.startswith("config.")]


@functools.cache
def defined_names(path):
    """Functions, classes and names of a module, and methods as Class.method; for tests, all functions."""
    names = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("place", PLACES)
def test_every_file_and_what_is_named_in_it_exists(place):
    path, _, name = place.partition("::")
    assert (ROOT / path).is_file(), f"docs/paper_map.md names {path}, which does not exist"
    if name:
        assert name in defined_names(path), f"docs/paper_map.md names {name}, which {path} does not define"


@pytest.mark.parametrize("command", TOOLS)
def test_every_tool_exists_and_knows_what_is_asked_of_it(command):
    tool, *words = command.removeprefix("python -m ").split()
    name = tool.removeprefix("stepcot_jax.")
    assert name in find_tools()
    here = ROOT / "stepcot_jax"
    sources = [path.read_text() for path in (here / f"{name}.py", *(here / name).rglob("*.py")) if path.is_file()]
    for word in words:
        if word.islower() and word.isidentifier():
            assert any(f'"{word}"' in source for source in sources), f"{command}: {word} is not in the sources"
        if word.startswith("--config="):
            assert (ROOT / word.removeprefix("--config=")).is_file()


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_exists_and_a_published_number_is_its_default(setting):
    key, _, written = setting.removeprefix("config.").partition("=")
    config = base.get_config()
    defaults = {".".join(path): value for path, value in walk(config.to_dict())}
    assert key in defaults
    if written:
        value = ast.literal_eval(written)
        if isinstance(value, bool | str):  # a choice: it has to be one that is accepted
            config.update_from_flattened_dict({key: value})
            make_settings(config)
        else:
            assert defaults[key] == value


def walk(tree, path=()):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from walk(value, (*path, key))
        else:
            yield (*path, key), value


def test_every_equation_table_and_figure_is_there():
    named = " ".join(row[0] for row in ROWS)
    equations = set()
    for first, last in re.findall(r"Eq\. (\d+)(?: to (\d+))?", named):
        equations |= set(range(int(first), int(last or first) + 1))
    assert equations == set(range(17, 25))
    assert {int(number) for number in re.findall(r"Table (\d+)", named)} >= {3, 4, 5, 6, 8, 9, 10, 11}
    assert {int(number) for number in re.findall(r"Figure (\d+)", named)} >= {4, 5}
    assert {name for name in ("D.2", "D.3", "D.6", "Section 4.2") if name not in named} == set()


def test_every_row_names_code_and_a_test():
    rows = [row for row in ROWS if set(row[0]) - set("-: ") and row[0] not in ("paper", "what")]
    assert len(rows) > 25
    for row in rows:
        assert len(row) == 4, row
        assert re.search(r"`stepcot_jax/[^`]+::", row[1]), f"{row[0]}: names no function"
        assert re.search(r"`tests/[^`]+::test_", row[3]), f"{row[0]}: names no test"


def test_the_map_reads_as_a_map():
    assert len(PLACES) > 60
    assert len(TOOLS) > 8
    assert len(SETTINGS) > 8
