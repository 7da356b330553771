import os
import pathlib
import subprocess
import sys

import jax
import pytest

from stepcot_jax.host import machine
from stepcot_jax.host.machine import use_compilation_cache, user_cache

ROOT = pathlib.Path(__file__).parents[2]
_PROGRAM = """
import jax, sys
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
from stepcot_jax.host.machine import use_compilation_cache
print(use_compilation_cache())
from jax._src import monitoring
monitoring.register_event_listener(lambda event, **more: print(event) if "cache_hits" in event else None)
jax.jit(lambda x: x @ x + 1)(jax.numpy.ones((3, 3))).block_until_ready()
"""


def run(home, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMPILATION", "XDG_"))}
    environment = {**kept, "HOME": str(home), **more}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.split()


@pytest.mark.slow
def test_a_second_process_finds_what_the_first_compiled(tmp_path):
    folder, *hits = run(tmp_path)
    assert pathlib.Path(folder).is_relative_to(tmp_path / ".cache" / "stepcot_jax")
    assert not hits
    assert pathlib.Path(folder).stat().st_mode & 0o777 == 0o700
    assert "/jax/compilation_cache/cache_hits" in run(tmp_path)
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "mine"), "JAX_ENABLE_COMPILATION_CACHE": "false"}
    for name, value in own.items():  # JAX's own settings go first
        assert run(tmp_path / "other", **{name: value})[0] == "None"
    assert not (tmp_path / "other").exists()


@pytest.fixture
def unset(monkeypatch, tmp_path):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def test_a_folder_that_others_can_write_or_that_cannot_be_made_is_not_used(unset):
    (unset / "stepcot_jax").write_text("a file")
    assert use_compilation_cache() is None
    (unset / "stepcot_jax").unlink()
    folder = user_cache()
    folder.mkdir(parents=True)
    for mode in (0o777, 0o770):
        folder.chmod(mode)
        assert use_compilation_cache() is None
    folder.chmod(0o700)
    assert use_compilation_cache() == folder


def test_each_kind_of_processor_has_its_folder_and_a_relative_base_does_not_count(monkeypatch, tmp_path):
    folders = []
    for flags in ("sse avx", "sse"):
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nmodel name : x\nflags : {flags}\ncpu MHz : 1\n" * 2)
        monkeypatch.setattr(machine, "_CPU", tmp_path / "cpuinfo")
        folders.append(user_cache())
    monkeypatch.setattr(machine, "_CPU", tmp_path / "none")
    assert len({*folders, user_cache()}) == 3
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache().is_relative_to(tmp_path / ".cache")


def test_a_home_that_cannot_be_looked_into_is_none(tmp_path):
    """As of an image whose HOME is root's, started as another user."""
    if os.getuid():
        pytest.skip("needs root, to become another user")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    code = "import os; from stepcot_jax.host import machine; os.setuid(1000); print(machine.user_folder())"
    for home in (closed, "/", "relative"):
        variables = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], env=variables, cwd="/", capture_output=True, text=True)
        assert done.stdout.strip() == "None", (home, done.stderr)


def test_seconds_of_compiling_are_counted():
    seconds = machine.compile_seconds()
    number = len(seconds)
    jax.jit(lambda value: 5 * value)(1.0)
    assert len(seconds) > number
    assert min(seconds) > 0
