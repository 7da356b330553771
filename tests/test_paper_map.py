import ast
import collections
import functools
import importlib
import operator
import re
from pathlib import Path

import pytest

from configs import base
from stepcot_jax.__main__ import find_commands
from stepcot_jax.run.settings import make_settings

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8")
SIBLINGS = {
    "GEMeX-RMCoT": {"Eq.": 2, "Table": 5, "Figure": 4},
    "MedCLM": {"Eq.": 5, "Table": 4, "Figure": 5},
    "MEDSAGE": {"Eq.": 12, "Table": 7, "Figure": 12},
}
PAPERS = {"Step-CoT": {"Eq.": 25, "Table": 11, "Figure": 6}, **SIBLINGS}
"""Last number of each kind in the papers; siblings have a section of their own, all others are of Step-CoT."""


def read_rows(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


SECTIONS = {part.partition("\n")[0]: read_rows(part) for part in TEXT.split("\n## ")}
ROWS = [row for name, rows in SECTIONS.items() if name not in SIBLINGS for row in rows]
ALL_ROWS = ROWS + [row for name in SIBLINGS for row in SECTIONS[name]]
ALL_ROWS = [row for row in ALL_ROWS if set(row[0]) - set("-: ") and row[0] not in ("paper", "what")]
CODE = sorted(set(re.findall(r"`([^`]+)`", TEXT)))
PLACES = [code for code in CODE if re.fullmatch(r"[\w./]+\.(py|md|csv)(::[\w.]+)?", code)]
TOOLS = [code for code in CODE if code.startswith(("python -m ", "stepcot "))]
SETTINGS = [code for code in CODE if code.startswith("config.")]
WITHOUT_CODE, NOT_BUILT = "none: no computation", "none: not built yet"
NOT_AT_HAND = "none: not in our copy"
NOT_HAD = "none: cannot be had here"
UNCODED = (WITHOUT_CODE, NOT_BUILT, NOT_AT_HAND, NOT_HAD)


def places_in(cell):
    return re.findall(r"`([\w./]+\.py)::([\w.]+)`", cell)


@functools.cache
def parse(path):
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


@functools.cache
def defined_names(path):
    """Functions, classes, assigned names, and methods as Class.method."""
    names = set()
    for node in parse(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_every_file_and_what_is_named_in_it_exists():
    for path, _, name in (place.partition("::") for place in PLACES):
        assert (ROOT / path).is_file(), path
        assert not name or name in defined_names(path), f"{path} does not define {name}"
        if path.startswith("tests/") and name:  # pytest collects functions with this prefix in files with this prefix
            assert Path(path).name.startswith("test_")
            assert name.startswith("test_")


@pytest.mark.parametrize("command", TOOLS)
def test_every_tool_exists_and_knows_what_is_asked_of_it(command):
    tool, *words = command.removeprefix("python -m ").removeprefix("stepcot ").split()
    if tool.startswith("benchmarks."):
        assert callable(importlib.import_module(tool).main)
        return
    name = tool.removeprefix("stepcot_jax.")
    path = ROOT / (find_commands() | {"main": "stepcot_jax.main"})[name].replace(".", "/")
    sources = [file.read_text() for file in (path.with_suffix(".py"), *path.parent.glob("*.py")) if file.is_file()]
    for word in words:
        if word.islower() and word.isidentifier():
            assert any(f'"{word}"' in source for source in sources), f"{command}: {word} is not in the sources"
        if word.startswith("--config="):
            assert (ROOT / word.removeprefix("--config=")).is_file()


def test_every_setting_exists_and_a_published_number_is_its_default():
    for setting in SETTINGS:
        key, _, written = setting.removeprefix("config.").partition("=")
        config = base.get_config()
        default = operator.attrgetter(key)(config)
        value = ast.literal_eval(written) if written else default
        if isinstance(value, bool | str):  # a choice must be an accepted value
            config.update_from_flattened_dict({key: value})
            make_settings(config)
        else:
            assert default == value, setting


def numbers_of(kind, text):
    """Numbers after "Eq.", "Table" or "Figure": single, a list or a range."""
    for listed in re.findall(rf"\b{re.escape(kind)} (\d+(?:(?:, | and | to )\d+)*)\b", text):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", listed):
            yield from range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_number_of_a_paper_has_exactly_one_row(paper):
    assert list(numbers_of("Eq.", "Eq. 2 to 4, of 7 (Eq. 9, 11 and 12)")) == [2, 3, 4, 9, 11, 12]
    assert list(numbers_of("Table", "Eq. 1, Table 2 and 4, Tables 7")) == [2, 4]
    rows = SECTIONS.get(paper, ROWS) if paper in SIBLINGS else ROWS
    for kind, last in PAPERS[paper].items():
        counts = collections.Counter(number for row in rows for number in numbers_of(kind, row[0]))
        assert counts == dict.fromkeys(range(1, last + 1), 1)
    starts = [row[0].split(",")[0] for row in rows]
    sections = ["Section 4.2", "Section 2.2", "Appendix A", "Appendix B.2.1", "Appendix B.4"]
    expected = {"MEDSAGE": ["Table X and Y"], "Step-CoT": sections}
    assert all(starts.count(start) == 1 for start in expected.get(paper, ())), starts
    assert paper != "Step-CoT" or {"D.2", "D.3", "D.5", "D.6", "C.4"} <= set(starts)


UNCODED_ROWS = {
    ("Step-CoT", WITHOUT_CODE): "Table 1, Figure 1",
    ("Step-CoT", NOT_HAD): "B.1.3",
    ("GEMeX-RMCoT", WITHOUT_CODE): "Figure 1 and 4",
    ("MedCLM", WITHOUT_CODE): "Figure 2 to 5",
    ("MedCLM", NOT_AT_HAND): "Eq. 1 to 5",
    ("MEDSAGE", WITHOUT_CODE): "Appendix B.3 and C, Table 6 and 7, Figure 1 and 7",
    ("MEDSAGE", NOT_AT_HAND): "Table X and Y",
}


def test_every_row_names_code_and_a_test_or_is_known_to_have_none():
    assert min(len(PLACES) - 60, len(TOOLS) - 8, len(SETTINGS) - 8, len(ALL_ROWS) - 80) > 0
    for row in ALL_ROWS:
        assert len(row) == 4, row
        if row[1].startswith("none"):
            assert (row[1].startswith(UNCODED), row[3]) == (True, "none"), row
            continue
        assert places_in(row[1]), f"{row[0]}: names no function"
        assert re.search(r"`tests/[^`]+::test_", row[3]), f"{row[0]}: names no test"
        assert row[2], f"{row[0]}: names no setting or command"
    found = {}
    for paper in PAPERS:
        for row in SECTIONS[paper] if paper in SIBLINGS else ROWS:
            if len(row) > 1 and row[1].startswith("none"):
                marker = next(each for each in UNCODED if row[1].startswith(each))
                found.setdefault((paper, marker), []).append(row[0].split(",")[0])
    assert {key: ", ".join(rows) for key, rows in found.items()} == UNCODED_ROWS
