import subprocess
import sys

import pytest

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import LOCK_NAME, lock_folder

SCRIPT = (
    "import sys, pathlib; from stepcot_jax.host.files import lock_folder\n"
    "lock_folder(pathlib.Path(sys.argv[1])).__enter__()"
)


def test_a_folder_is_for_one_run_and_its_lock_a_file_of_ones_own(tmp_path):
    command = [sys.executable, "-c", SCRIPT, tmp_path / "out"]
    with lock_folder(tmp_path / "out"):
        run = subprocess.run(command, capture_output=True, text=True)
        assert f"{LOCK_NAME}: in use by another process" in run.stderr
    assert subprocess.run(command).returncode == 0
    (tmp_path / "folder" / LOCK_NAME).mkdir(parents=True)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / LOCK_NAME).symlink_to(tmp_path / "elsewhere")
    for name in ("folder", "link"):
        with pytest.raises(BadInput, match=r"\.lock: cannot be opened"), lock_folder(tmp_path / name):
            pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_that_fails_gives_the_folder_back(tmp_path):
    with pytest.raises(ZeroDivisionError), lock_folder(tmp_path):
        raise ZeroDivisionError
    with lock_folder(tmp_path), pytest.raises(BadInput, match="in use"), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]
