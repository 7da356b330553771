import os
import shutil
import subprocess
import sys

import msgspec
import pytest
from refusals import refuse

from stepcot_jax.host import files
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_private_folder, read_json, write_whole, writing_folder, writing_whole


class Note(msgspec.Struct, frozen=True):
    text: str
    number: int = 0


ACCEPTED = "accepted is a note"


def test_a_private_folder_is_closed_to_others_and_is_ones_own(tmp_path, monkeypatch):
    old, of_group = tmp_path / "old", tmp_path / "group"
    old.mkdir(mode=0o705)
    of_group.mkdir(mode=0o750)
    for folder in (old, of_group, tmp_path / "deep" / "new"):
        make_private_folder(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    refuse(r"file: cannot be made a folder of this user alone \(File exists\)", make_private_folder, tmp_path / "file")
    monkeypatch.setattr(os, "getuid", lambda: old.stat().st_uid + 1)
    refuse(r"old: belongs to user \d+; expected a folder of this user", make_private_folder, old)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *((b"", "truncated"), (b'{"text": 1}', r"\$.text"), (b'{"text": "\xff"}', "[Ii]nvalid|decode")),
        (b"[" * 100_000, "Expected `object`|recursion"),
        (b'{"text": "' + b"a" * 1000 + b'"}', "1012 bytes, more than 500"),
    ],
)
def test_what_is_no_such_json_is_refused_by_name(tmp_path, content, words):
    path = tmp_path / "note.json"
    path.write_bytes(content)
    message = refuse(words, read_json, path, Note, accepted=ACCEPTED, max_bytes=500 if len(content) < 2000 else 10**6)
    assert message.startswith(f"{path}: ")
    assert message.endswith(f"; {ACCEPTED}")


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, where):
    path = tmp_path / "data.json"
    path.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    if where != "write":
        monkeypatch.setattr(*((files.os, "fsync", fail) if where == "fsync" else ("pathlib.Path.replace", fail)))
    with pytest.raises(OSError, match="disk full"), writing_whole(path) as file:
        (fail if where == "write" else file.write)(b"half")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])


def _fill(folder, link_to):
    (folder / "a").write_text("x")
    (folder / "b").mkdir()
    (folder / "link").symlink_to(link_to)
    (folder / "b").mkdir()  # fails


def test_a_new_folder_is_written_whole_or_not_at_all(tmp_path):
    out = tmp_path / "deep" / "out"
    killed, other = (out.with_name(f".{out.name}.00000000-{number}-00000000.partial") for number in (1, 2))
    for left in (killed, other):  # of another machine, which cannot be asked: the old one counts as left behind
        left.mkdir(parents=True)
    (killed / "a").touch()
    os.utime(killed, (0, 0))
    with writing_folder(out) as partial:
        (partial / "a").write_text("x")
        assert (killed.exists(), other.exists()) == (False, True)
        with writing_folder(out):  # of another process: what is locked stays
            assert partial.exists()
        shutil.rmtree(out)
        other.rmdir()
        assert not out.exists()
    assert ([path.name for path in out.iterdir()], out.stat().st_mode & 0o777) == (["a"], 0o755)
    (tmp_path / "file").touch()
    for used, words in (
        (out, "is not an empty"),
        (tmp_path / "file", "is not an empty"),
        (tmp_path / ("x" * 300), "long"),
    ):
        with pytest.raises(BadInput, match=words), writing_folder(used):
            pytest.fail("entered")
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "empty", tmp_path / "new"):
        with pytest.raises(OSError, match="b"), writing_folder(target) as partial:
            _fill(partial, tmp_path / "file")
    assert {path.name for path in tmp_path.iterdir()} == {"deep", "file", "empty"}


@pytest.mark.parametrize("is_dangling", [False, True])
def test_a_new_folder_behind_a_link(tmp_path, is_dangling):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / ("missing" if is_dangling else "real"))
    with writing_folder(tmp_path / "link") as partial:
        (partial / "a").touch()
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "link").iterdir()] == ["a"]


def test_what_a_killed_write_left_is_removed_by_the_next_one(tmp_path):
    code = "import os, sys, time\nfrom stepcot_jax.host.files import writing_whole\n"
    code += "with writing_whole(sys.argv[1]) as file:\n    print('begun', flush=True)\n    time.sleep(60)"
    target = tmp_path / "result[1].json"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE) for _ in range(2)]
    for writer in writers:
        assert writer.stdout.readline() == b"begun\n"
    foreign = [tmp_path / f".{target.name}.00000000-{number}-00000000.partial" for number in (1, 2)]
    for path in foreign:
        path.touch()
    os.utime(foreign[1], (0, 0))
    try:
        writers[0].kill()
        writers[0].wait()
        write_whole(target, b"done")
        left = sorted(path.name for path in tmp_path.glob(".*.partial"))
        assert len(left) == 2  # of the living writer, and of another machine since less than a day
        assert foreign[0].name in left
        assert any(f"-{writers[1].pid}-" in name for name in left)
    finally:
        writers[1].kill()
        writers[1].wait()
    assert target.read_bytes() == b"done"
    write_whole(tmp_path / ("肺" * 80), b"a name of 240 bytes")
    assert [path.name for path in tmp_path.glob(".*.partial")] == [foreign[0].name]


SCRIPT = (
    "import sys, pathlib; from stepcot_jax.host.files import lock_folder\n"
    "lock_folder(pathlib.Path(sys.argv[1])).__enter__()"
)


def test_a_folder_is_for_one_run_and_its_lock_a_file_of_ones_own(tmp_path):
    command = [sys.executable, "-c", SCRIPT, tmp_path / "out"]
    with files.lock_folder(tmp_path / "out"):
        run = subprocess.run(command, capture_output=True, text=True)
        assert f"{files.LOCK_NAME}: in use by another process" in run.stderr
    assert subprocess.run(command).returncode == 0
    (tmp_path / "folder" / files.LOCK_NAME).mkdir(parents=True)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / files.LOCK_NAME).symlink_to(tmp_path / "elsewhere")
    for name in ("folder", "link"):
        with pytest.raises(BadInput, match=r"\.lock: cannot be opened"), files.lock_folder(tmp_path / name):
            pass
    assert not (tmp_path / "elsewhere").exists()
