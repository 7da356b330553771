import io
import os
import pathlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuse

from stepcot_jax.host.text import (
    defuse_formula,
    escape_controls,
    escape_markdown,
    make_printable,
    one_line,
    write_csv,
)
from stepcot_jax.host.untrusted import resolve
from stepcot_jax.reading.radiographs import find_images

ROWS = "image,patient_id,Gr\u00f6\u00dfe,Diagnosis\n" + "".join(f"{n}.png,p{n},gro\u00df,Mass\n" for n in range(12))


def run(folder, redirection="", **environment):
    command = f"exec {sys.executable} -m stepcot_jax data check {folder} --images=none {redirection}"
    variables = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", **environment}
    return subprocess.run(["bash", "-c", command], env=variables, capture_output=True)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8", "ascii:strict"])
def test_characters_that_an_output_lacks_are_escaped(tmp_path, encoding):
    (tmp_path / "cases.csv").write_text(ROWS.replace("gro\u00df", "gro\u00df \u2603"), encoding="utf-8")
    ended = run(tmp_path, PYTHONIOENCODING=encoding)
    assert ended.returncode == 0, ended.stderr.decode()
    assert b"Traceback" not in ended.stderr
    shown = "Gr\u00f6\u00dfe".encode(encoding.partition(":")[0], "backslashreplace")
    assert shown in ended.stdout


@pytest.mark.parametrize("redirection", ["2>&-", ">&-", ">&- 2>&-", "<&-", "| head -1"])
def test_closed_outputs_end_no_command(tmp_path, redirection):
    (tmp_path / "cases.csv").write_text(ROWS, encoding="utf-8")
    ended = run(tmp_path, redirection)
    assert ended.returncode == 0
    assert b"Traceback" not in ended.stderr


def test_rings_of_links_and_impossible_paths_are_refused_in_one_line(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    for name in ("a", "self", "a/below", "x" * 300, "zero\0byte"):
        refuse("cannot be", resolve, tmp_path / name)
    assert resolve(tmp_path / "dangling") == tmp_path / "none"
    assert resolve(tmp_path / "new" / "folder") == tmp_path / "new" / "folder"
    (tmp_path / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    refused = []
    assert [path.name for path in find_images([tmp_path], refuse=refused.append)] == ["picture.png"]
    assert len([line for line in refused if "cannot be followed" in line]) == 3
    assert any("dangling" in line for line in refused)


HOSTILE = ("\x1b[2Jred", "a\u202eb", "nul\0", "\x9b31m", "\u2066x", "a\rb")


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_controls_a_terminal(text):
    file = io.StringIO()
    write_csv(file, [[text, "plain"], [text, 1]])
    for written in (file.getvalue(), escape_controls(text), escape_markdown(text)):
        assert written.replace("\n", "").isprintable()
    assert escape_controls("a\nb\tc \u00e9") == "a\nb\tc \u00e9"


@given(st.text())
def test_printable_text_is_one_line_without_controls(text):
    shown = make_printable(text)
    assert shown.isprintable()
    assert make_printable(shown) == shown
    assert shown == text or not text.isprintable()


def test_parts_of_messages_cells_and_markdown():
    assert [defuse_formula(cell) for cell in ("=1+1", " @x", "-3.5", "mass")] == ["'=1+1", "' @x", "-3.5", "mass"]
    assert escape_markdown("a|b <i>\n a_b _c_") == r"a\|b &lt;i> a_b \_c\_"
    assert (one_line(ValueError("a \n b")), one_line(KeyError())) == ("a b", "KeyError")


def test_a_library_call_prints_on_any_output(tmp_path):
    code = "from stepcot_jax.host.terminal import Terminal; Terminal().say('gro\\u00df \\u2603 \\x1b[2J')"
    ended = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
                           capture_output=True, cwd=pathlib.Path(__file__).parents[2])  # fmt: skip
    assert ended.returncode == 0
    assert b"gro\\xdf" in ended.stderr
    assert b"\x1b" not in ended.stderr
