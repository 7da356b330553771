import errno
import importlib
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from stepcot_jax.box import match
from stepcot_jax.host.errors import BadInput, Preempted, RunStopped, describe_disk, run_tool
from stepcot_jax.host.files import removing_half, writing_for
from stepcot_jax.host.text import install_extra

SHARED = "/dev/shm"  # noqa: S108
SMALL = "is too small (Unable to allocate"
LESS = "a smaller batch or image, or in training config.parallel.num_passes=2 or more, takes less"
ENDS = [
    (BadInput("a.csv, line 2: empty"), 2, "error: a.csv, line 2: empty\n"),
    (RunStopped("step 3: loss is nan"), 3, "stopped: step 3: loss is nan\n"),
    *((Preempted("step 3: saved"), 75, "preempted: step 3: saved\n"), (KeyboardInterrupt(), 130, "interrupted\n")),
    (MemoryError("Unable to allocate 9. GiB"), 3, f"stopped: the memory of the machine {SMALL} 9. GiB); {LESS}\n"),
    (KeyboardInterrupt("the same command goes on"), 130, "interrupted; the same command goes on\n"),
]


@pytest.mark.parametrize(("error", "code", "line"), ENDS)
def test_every_end_is_one_line_and_its_code(error, code, line, capsys):
    def fail():
        raise error

    with pytest.raises(SystemExit) as ended:
        run_tool(fail)
    assert (ended.value.code, capsys.readouterr().err) == (code, line)


def test_a_device_without_memory_ends_in_a_sentence(capsys):
    def fail():
        jax.numpy.zeros(2**46).block_until_ready()

    with pytest.raises(SystemExit) as ended:
        run_tool(fail)
    said = capsys.readouterr().err
    assert ended.value.code == 3
    assert said.startswith("stopped: the memory of the device is too small (RESOURCE_EXHAUSTED: ")
    assert said.endswith(f"{LESS}\n")
    assert said.count("\n") == 1


def test_a_missing_library_of_ours_is_named_and_a_users_own_module_ends_in_a_traceback(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)  # as if it were not there
    with pytest.raises(SystemExit) as ended:
        run_tool(lambda: match(np.zeros((2, 2))))
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said == f"error: this needs scipy, which is not installed: {install_extra('')}\n"
    assert said.endswith("install -e . in the checkout of stepcot_jax\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        run_tool(lambda: importlib.import_module("no_such_module"))


@pytest.mark.parametrize(
    ("free", "filename", "said"),
    [
        (0, None, f"{SHARED}: the shared memory is full (0 bytes free); "),
        (0, f"{SHARED}/psm_1", f"{SHARED}: the shared memory is full (0 bytes free); "),
        (0, "/runs/a", "/runs/a: the disk failed (No space left on device)"),
        (2**30, None, "/runs: the disk failed (No space left on device)"),
    ],
)
def test_a_full_shared_memory_is_not_blamed_on_a_disk(free, filename, said, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: types.SimpleNamespace(free=free))
    assert describe_disk(OSError(errno.ENOSPC, "No space left on device", filename), "/runs").startswith(said)


@pytest.mark.parametrize(
    ("number", "is_of_the_disk"),
    [(errno.ENOSPC, True), (errno.EROFS, True), (errno.ENOTDIR, False), (errno.EACCES, False)],
)
def test_an_options_file_on_a_failing_disk_is_an_error_of_the_disk(number, is_of_the_disk, tmp_path):
    path = tmp_path / "half.png"

    def write():
        with writing_for("--out", path), removing_half(path):
            path.write_bytes(b"half")
            raise OSError(number, "reason")

    with pytest.raises(OSError if is_of_the_disk else BadInput) as caught:
        write()
    assert not path.exists()
    if is_of_the_disk:
        assert caught.value.filename == str(path)
    else:
        assert str(caught.value) == f"--out: {path} cannot be written (reason)"


FULL = (
    "import resource, sys; from pathlib import Path; "
    "from stepcot_jax.host.errors import run_tool; from stepcot_jax.host.files import write_whole; "
    "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
    "run_tool(lambda: write_whole(Path(sys.argv[1]), bytes(2000)))"
)


def test_a_file_that_the_disk_does_not_take_is_named_and_left_as_it_was(tmp_path):
    """A limit of the file size stands for a full disk: the write fails in its middle."""
    path = tmp_path / "table.csv"
    path.write_text("before")
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, f"stopped: {path}: the disk failed (File too large)\n")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("table.csv", "before")]
