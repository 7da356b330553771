"""The map from the paper to the code names only what exists, and covers every equation, table and figure."""

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
from stepcot_jax.tools.tables.command import TABLES as DESCRIBED
from stepcot_jax.tools.tables.command import list_names

ROOT = Path(__file__).parents[1]
MAP = ROOT / "docs" / "paper_map.md"
TEXT = MAP.read_text(encoding="utf-8")

SIBLINGS = {
    "GEMeX-RMCoT": {"Eq.": 2, "Table": 5, "Figure": 4},
    "MedCLM": {"Eq.": 5, "Table": 4, "Figure": 5},
    "MEDSAGE": {"Eq.": 12, "Table": 7, "Figure": 12},
}
PAPERS = {"Step-CoT": {"Eq.": 25, "Table": 11, "Figure": 6}, **SIBLINGS}
"""Last number of each kind in the papers; siblings have a section of their own, all others are of Step-CoT."""


def read_rows(text):
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]


SECTIONS = {part.partition("\n")[0]: read_rows(part) for part in TEXT.split("\n## ")}
ROWS = [row for name, rows in SECTIONS.items() if name not in SIBLINGS for row in rows]
ALL_ROWS = ROWS + [row for name in SIBLINGS for row in SECTIONS[name]]
CODE = sorted(set(re.findall(r"`([^`]+)`", TEXT)))
PLACES = [code for code in CODE if re.fullmatch(r"[\w./]+\.(py|md|csv)(::[\w.]+)?", code)]
TOOLS = [code for code in CODE if code.startswith(("python -m ", "stepcot "))]
SETTINGS = [code for code in CODE if code.startswith("config.")]
UNCALLED = "no table calls it"
WITHOUT_CODE = "none: no computation"
NOT_BUILT = "none: not built yet"
NOT_AT_HAND = "none: missing from our copy of the text"
UNCODED = (WITHOUT_CODE, NOT_BUILT, NOT_AT_HAND)


def places_in(cell):
    """(path, name) of every FILE::NAME in a cell."""
    return re.findall(r"`([\w./]+\.py)::([\w.]+)`", cell)


FULL = [row for row in ALL_ROWS if row[0] not in ("paper", "what") and not row[1].startswith(UNCODED)]
TESTED = [(row[0], path, name) for row in FULL for path, name in places_in(row[3])]
NAMED = sorted({place for row in FULL for place in places_in(row[1])})


@functools.cache
def parse(path):
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


@functools.cache
def defined_names(path):
    """Functions, classes and assigned names of a module, methods as Class.method; for tests, every function."""
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


@pytest.mark.parametrize("place", PLACES)
def test_every_file_and_what_is_named_in_it_exists(place):
    path, _, name = place.partition("::")
    assert (ROOT / path).is_file(), f"docs/paper_map.md names {path}, which does not exist"
    if name:
        assert name in defined_names(path), f"docs/paper_map.md names {name}, which {path} does not define"
    if path.startswith("tests/") and name:  # pytest collects functions with this prefix in files with this prefix
        assert Path(path).name.startswith("test_")
        assert name.startswith("test_")


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_what_is_named_can_be_imported(path, name):
    assert callable(operator.attrgetter(name)(importlib.import_module(path.removesuffix(".py").replace("/", ".")))) or (
        name.isupper()
    )


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


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_exists_and_a_published_number_is_its_default(setting):
    key, _, written = setting.removeprefix("config.").partition("=")
    config = base.get_config()
    defaults = {".".join(path): value for path, value in walk(config.to_dict())}
    assert key in defaults
    if written:
        value = ast.literal_eval(written)
        if isinstance(value, bool | str):  # a choice must be an accepted value
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


@pytest.mark.parametrize("paper", PAPERS)
def test_every_number_of_a_paper_has_exactly_one_row(paper):
    rows = SECTIONS.get(paper, ROWS) if paper in SIBLINGS else ROWS
    counts = collections.Counter(number for row in rows for number in equations_of(row[0]))
    assert counts == dict.fromkeys(range(1, PAPERS[paper]["Eq."] + 1), 1)
    for kind in ("Table", "Figure"):
        counts = collections.Counter(int(n) for row in rows for n in re.findall(rf"^{kind} (\d+)\b", row[0]))
        assert counts == dict.fromkeys(range(1, PAPERS[paper][kind] + 1), 1)
    starts = [row[0].split(",")[0] for row in rows]
    expected = {
        "MEDSAGE": ["Table X", "Table Y"],
        "Step-CoT": ["Section 4.2", "Section 2.2", "Appendix A", "Appendix B.2.1", "Appendix B.4"],
    }
    assert all(starts.count(start) == 1 for start in expected.get(paper, ())), starts
    assert paper != "Step-CoT" or {"D.2", "D.3", "D.5", "D.6", "C.4"} <= set(starts)


UNCODED_ROWS = {
    ("GEMeX-RMCoT", WITHOUT_CODE): "Figure 1, Figure 4",
    ("MedCLM", WITHOUT_CODE): "Figure 2, Figure 3, Figure 4, Figure 5",
    ("MedCLM", NOT_AT_HAND): "Eq. 1 to 5, Table 1, Table 2, Table 3, Table 4",
    ("MEDSAGE", WITHOUT_CODE): "Table 6, Table 7, Figure 1, Figure 7",
    ("MEDSAGE", NOT_AT_HAND): "Table X, Table Y, Figure 3, Figure 5",
}


def test_rows_without_code_are_those_that_are_known():
    found = {
        (paper, marker): ", ".join(row[0].split(",")[0] for row in SECTIONS[paper] if row[1].startswith(marker))
        for paper in SIBLINGS
        for marker in UNCODED
    }
    assert {key: rows for key, rows in found.items() if rows} == UNCODED_ROWS


def equations_of(text):
    """Equation numbers after "Eq.": single, a list or a range."""
    for listed in re.findall(r"Eq\. (\d+(?:(?:, | and | to )\d+)*)", text):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", listed):
            yield from range(int(first), int(last or first) + 1)


def test_numbers_of_equations_are_read():
    assert list(equations_of("Eq. 2 to 4, of 7 (Eq. 9, 11 and 12)")) == [2, 3, 4, 9, 11, 12]


def test_every_row_names_code_and_a_test_or_says_that_there_is_none():
    assert min(len(PLACES) - 60, len(TOOLS) - 8, len(SETTINGS) - 8) > 0
    rows = [row for row in ALL_ROWS if set(row[0]) - set("-: ") and row[0] not in ("paper", "what")]
    assert len(rows) > 80
    for row in rows:
        assert len(row) == 4, row
        if row[1].startswith("none"):
            assert row[1].startswith(UNCODED), row
            assert row[3] == "none", row
            continue
        assert places_in(row[1]), f"{row[0]}: names no function"
        assert re.search(r"`tests/[^`]+::test_", row[3]), f"{row[0]}: names no test"
        assert row[2], f"{row[0]}: names no setting or command"
    assert [row[0].split(",")[0] for row in ROWS if len(row) > 1 and row[1].startswith("none")] == [
        "Table 1",
        "Figure 1",
    ]


# Each test uses the code of its row


@functools.cache
def words_of(path):
    """Names that a file uses, imports or reads as attributes, and its string constants."""
    words = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, ast.alias):
            words |= set(node.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            words |= set((node.module or "").split("."))
    return words


@functools.cache
def words_of_imported(path):
    """Those names, for the package modules that a test imports."""
    words = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stepcot_jax"):
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            paths = [f"{module.replace('.', '/')}.py" for module in modules]
            words |= set().union(*(words_of(each) for each in paths if (ROOT / each).is_file()))
    return words


@functools.cache
def source_of(path, name):
    source = (ROOT / path).read_text(encoding="utf-8")
    functions = (node for node in parse(path).body if isinstance(node, ast.FunctionDef))
    return next(ast.get_source_segment(source, node) for node in functions if node.name == name)


@pytest.mark.parametrize("row", FULL, ids=lambda row: row[0][:40])
def test_every_test_speaks_of_its_row(row):
    """The test, or a module it imports, uses the row's functions, their modules or the command."""
    tests = places_in(row[3])
    tools = {tool.split()[0] for tool in re.findall(r"`(?:python -m stepcot_jax\.|stepcot )([^`]+)`", row[2])}
    accepted = {place: {place[1].split(".")[-1], Path(place[0]).stem} | tools for place in places_in(row[1])}
    for test, _ in tests:
        spoken_of = words_of(test) | words_of_imported(test)
        assert spoken_of & set().union(*accepted.values()), f"{row[0]}: {test} has nothing to do with it"
    all_spoken_of = set().union(*(words_of(test) | words_of_imported(test) for test, _ in tests))
    for place, names in accepted.items():
        assert names & all_spoken_of, f"{row[0]}: no test named there has to do with {'::'.join(place)}"


TABLES = [
    (row, name)
    for row in FULL
    if re.match("Table|true answers given", row[0])
    for name in re.findall(r"`stepcot tables (\w+)`", row[2])
]


@pytest.mark.parametrize(("row", "table"), TABLES, ids=lambda value: value if isinstance(value, str) else None)
def test_every_table_has_a_test_that_reads_it(row, table):
    """A test of a model that the table queries would pass with any table."""
    assert any(re.search(rf"[\"_]{table}\b|\b{table}_", source_of(path, name)) for path, name in places_in(row[3])), (
        f"{row[0]}: no test named there reads the table {table!r}"
    )
    assert (ROOT / "stepcot_jax" / "tools" / "tables" / f"{DESCRIBED[table][0]}.py").is_file()


def test_every_published_table_of_the_tool_is_among_them():
    named = {table for _, table in TABLES}
    assert named == {"diagnosis", "steps", "components", "transfer", "cost", "effect", *list_names("printed")}


# Tables call the functions of their rows


@functools.cache
def reached_from(path):
    """Files of tables and evaluation that a module imports, directly or not, including itself."""
    found, waiting = set(), [path]
    while waiting:
        here = waiting.pop()
        if here in found:
            continue
        found.add(here)
        for node in ast.walk(parse(here)):
            if isinstance(node, ast.ImportFrom) and re.match(
                r"stepcot_jax\.(tools\.tables|evaluation|run)", node.module or ""
            ):
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                paths = (f"{name.replace('.', '/')}.py" for name in names)
                waiting += [each for each in paths if (ROOT / each).is_file()]
    return found


@functools.cache
def names_read(path):
    """Names that a file reads; a definition, an import or a docstring does not count."""
    nodes = list(ast.walk(parse(path)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def is_called(name, paths):
    return any(name in names_read(path) for path in paths)


NAMES_OF_ALL = [table for _, table in TABLES if table not in list_names("printed")]
BEYOND = [row for row in FULL if row in SECTIONS["Beyond the paper"]]


@pytest.mark.parametrize("row", BEYOND, ids=lambda row: row[0][:40])
def test_tables_call_what_they_are_said_to_and_nothing_they_are_not(row):
    everything = [str(path.relative_to(ROOT)) for path in (ROOT / "stepcot_jax").rglob("*.py")]
    names = [name for path, name in places_in(row[1]) if path.startswith("stepcot_jax/")]
    if UNCALLED in row[2]:
        assert not any(is_called(name, everything) for name in names), f"{row[0]}: is called, which the map denies"
        return
    for tables in re.findall(r"`stepcot tables ([\w ]+)`", row[2]):
        for table in tables.split() if tables != "all" else [name for name in NAMES_OF_ALL if name != "cost"]:
            reached = reached_from(f"stepcot_jax/tools/tables/{DESCRIBED[table][0]}.py")
            assert any(is_called(name, reached) for name in names), f"{row[0]}: table {table!r} never calls {names}"
    for name in names:
        assert is_called(name.split(".")[-1], everything), f"{row[0]}: nothing in the package calls {name}"
