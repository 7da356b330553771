import os
import pathlib
import subprocess
import sys

import pytest
from trained_workdir import make_trained_workdir, small_settings

from stepcot_jax.reading.image_reader import prepare_first_answer
from stepcot_jax.run.settings import write_settings

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[2]
_PROGRAM = """
import pathlib, sys
from trained_workdir import small_settings, tiny_encoder
from stepcot_jax.host.machine import use_compilation_cache
use_compilation_cache()
from jax._src import monitoring
monitoring.register_event_listener(lambda event, **more: print(event) if "compilation_cache/cache_" in event else None)
workdir = pathlib.Path(sys.argv[2])
with tiny_encoder():
    if sys.argv[1] == "prepare":
        from stepcot_jax.reading.image_reader import prepare_first_answer
        print(prepare_first_answer(workdir))
    else:
        from stepcot_jax.reading.image_reader import load
        from stepcot_jax.data.phantom.phantom import draw_case
        for model in ("teacher", "student"):
            load(workdir, model=model).read(draw_case(0, size=48).image)
"""


def run(what, workdir, cache):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XDG_"))}
    environment |= {
        "XDG_CACHE_HOME": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, what, workdir], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_next_process_compiles_nothing(tmp_path):
    make_trained_workdir(tmp_path / "run")
    first = run("prepare", tmp_path / "run", tmp_path)
    assert "('teacher', 'student', 'plain')" in first
    assert "/jax/compilation_cache/cache_misses" in first
    second = run("read", tmp_path / "run", tmp_path)
    assert "/jax/compilation_cache/cache_hits" in second
    assert "/jax/compilation_cache/cache_misses" not in second


def test_jobs_that_read_no_images_prepare_nothing(tmp_path):
    for job in ("baseline", "sft"):
        write_settings(tmp_path / "settings.json", small_settings(job=job))
        assert prepare_first_answer(tmp_path, say=pytest.fail) == ()
