import ast
import io
import os
import pathlib
import zipfile

import pytest
from refusals import refuse

import stepcot_jax
from stepcot_jax.host import untrusted
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import VARIABLE, Limits, Meter, iterate_lines, open_archive, open_untrusted, read_limits

PACKAGE = pathlib.Path(stepcot_jax.__file__).parent
OPENERS = {"open", "read_text", "read_bytes", "ZipFile", "memmap", "safe_open", "fdopen"}
"""Names of functions that open files for reading."""

TABLE = """
host/untrusted.py: the one place | __main__.py: own sources
data/phantom/phantom.py: writes
data/sources/iu_xray.py: a tar archive around an untrusted file
data/sources/phantom.py: a picture in an untrusted file | extras/demo/command.py: own style
encoders/weights.py: safetensors, after require_file | evaluation/published.py: own data
host/exported_files.py: part of exports; needs no stepcot_jax | export/model_card.py: own template
features/store.py: own shards, whose digest is compared | features/importing.py: numpy, after require_file
annotate/llm/answers.py: own file of answers, opened for writing
data/splits/split_resolver.py: an entry of an untrusted archive
host/errors.py: /dev/null | host/machine.py: /proc/cpuinfo | host/array_files.py: an entry of an untrusted archive
host/terminal.py: /dev/null | host/files.py: writes; locks folders | pages/shell.py: own style
tools/report/answers.py: own script | data/images/stated_sizes.py: after open_untrusted
tools/tables/cost_table.py: /proc | tools/tables/cells.py: own digest | reasoning/rules.py: own table of knowledge
annotate/recipes/organs.py: a mask in memory | reading/question_files.py: the command's own file of replies
training/log.py: the run's own log
"""
OTHERS = dict(entry.split(": ", 1) for line in TABLE.strip().splitlines() for entry in line.split(" | "))


def calls_of(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            owner = getattr(getattr(node.func, "value", None), "id", "")
            opens = name in OPENERS or (name == "load" and owner in ("np", "torch"))
            if opens and not ast.unparse(node).startswith("Path(__file__).with_suffix('.json')."):  # its own tables
                yield name, node.lineno


def test_only_the_listed_modules_open_files_by_themselves():
    """A module with untrusted files uses `open_untrusted`, `open_archive`, `read_file` or `read_json`."""
    found = {str(path.relative_to(PACKAGE)): list(calls_of(path)) for path in PACKAGE.rglob("*.py")}
    openers = {name: calls for name, calls in found.items() if calls}
    assert {name: calls for name, calls in openers.items() if name not in OTHERS} == {}
    assert set(OTHERS) - set(openers) == set()


def test_what_is_no_regular_file_or_too_large_is_refused_at_once(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "zero", tmp_path):
        refuse("not a regular file; expected a table", open_untrusted, path, accepted="a table")
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    with open_untrusted(tmp_path / "link", accepted="a file", max_bytes=5) as file:
        assert file.read() == b"12345"
    refuse("5 bytes, more than 4", open_untrusted, tmp_path / "file", accepted="a file", max_bytes=4)
    refuse("not a regular file", open_untrusted, tmp_path / "link", accepted="a file", follow=False)
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    regular = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(untrusted.os, "stat", lambda *_, **__: regular)
    with pytest.raises(BadInput, match="not a regular file"):  # an open that waits for a writer would never end
        open_untrusted(path, accepted="a table")


def test_limits_come_from_the_environment_and_others_are_refused_by_name(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert read_limits() == Limits()
    monkeypatch.setenv(VARIABLE, " rows=7, seconds = 3 ,")
    assert read_limits() == Limits(rows=7, seconds=3)
    for written in ("row=7", "rows", "rows=", "rows=0", "rows=-1", "rows=1e3", "rows=٣", "=7"):
        monkeypatch.setenv(VARIABLE, f"cells=9,{written}")
        refuse(f"{VARIABLE}: '{written}' is not one of the limits .*blank_rows", read_limits)


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ("rows=2", "more than 2 rows; at most 2 are accepted .*LIMITS=rows=NUMBER"),
        *(("blank_rows=1", "more than 1 blank rows"), ("columns=3", "row 1 has 4 cells")),
        *(("cells=7", "more than 7 cells"), ("seconds=5", "not read after 5 seconds")),
    ],
)
def test_a_table_above_a_limit_is_refused_where_it_exceeds_it(monkeypatch, limits, found):
    monkeypatch.setenv(VARIABLE, limits)
    clock = iter(range(100))
    monkeypatch.setattr(untrusted.time, "monotonic", lambda: next(clock))
    meter = Meter("train.csv")
    refuse(f"^train.csv: {found}", lambda: any(meter.add_row(4, blank=row > 0) for row in range(10 * 1024)))


def test_lines_are_numbered_without_blank_ones_which_are_limited(monkeypatch):
    lines = io.BytesIO(b"a\n\n \nbcdef")
    assert list(iterate_lines(lines, "a.jsonl", most_bytes=4)) == [(1, b"a\n"), (4, b"bcde"), (5, b"f")]
    monkeypatch.setenv(VARIABLE, "blank_rows=2")
    refuse(r"a\.jsonl: more than 2 blank rows", list, iterate_lines(io.BytesIO(b"\n" * 3), "a.jsonl", most_bytes=4))


def test_archives_are_bounded_before_they_are_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(10_000))
    with open_archive(path, accepted="a zip", most_unpacked=10_000) as archive:
        assert archive.read("a") == bytes(10_000)
    with (
        pytest.raises(BadInput, match="10000 bytes when unpacked"),
        open_archive(path, accepted="a zip", most_unpacked=9999),
    ):
        pass
    monkeypatch.setattr(untrusted, "_LONGEST_DIRECTORY", 40)
    with pytest.raises(BadInput, match="its list of files has"), open_archive(path, accepted="a zip"):
        pass
