"""Settings of the whole suite: eight virtual devices, strict promotion, checked shapes, one compilation cache."""

import functools
import gc
import os
import pathlib
import re
import signal
import tempfile

import fast_compile

# A shell starts background jobs with Ctrl-C ignored, and nohup ignores a hang-up; what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
fast_compile.set_flags("--xla_force_host_platform_device_count=8")
# One cache for all workers and the programs they start. pytest's first process makes it, its workers inherit the name.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory(prefix="stepcot-jax-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import jaxtyping

jaxtyping.install_import_hook(["stepcot_jax.models", "stepcot_jax.losses", "stepcot_jax.encoders"], "beartype.beartype")

import hypothesis
import jax
import pytest

from stepcot_jax.host import machine

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("suite", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("suite")

# A run collects garbage after each compilation, which takes a tenth of the time in a process with many programs.
_release_freed_memory, machine.release_freed_memory = machine.release_freed_memory, lambda *, generation=2: None


def pytest_collection_finish():
    """Leave what was imported out of Python's own collections."""
    gc.collect()
    gc.freeze()


LONGEST = (
    "tests/run/test_test_split.py",
    "tests/run/test_qwen_run.py",
    "tests/test_notebooks.py",
    "tests/extras/test_ray_blocks.py",
    "tests/run/test_frozen_policy_run.py",
    "tests/run/test_policy_run.py",
    "tests/run/test_training_run.py",
    "tests/run/test_qwen_mesh.py",
    "tests/run/test_two_process_run.py",
    "tests/run/test_fit.py",
    "tests/test_api.py",
    "tests/conformance/test_conformance.py",
    "tests/training/test_parallel.py",
    "tests/convert/test_converted_workdir.py",
    "tests/tables/test_tables_runs.py",
    "tests/systems/test_step_cot.py",
)
"""Files of the longest tests, longest first."""


NEEDS_MORE = re.compile(
    r'importorskip\("(torch|trl|ray|wandb|mlflow)|torch_(oracle|checkpoints|qwen)|STEPCOT_(LIBTPU|CUDA)'
)


@functools.cache
def _needs_more(path):
    return NEEDS_MORE.search(path.read_text(encoding="utf-8")) is not None


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items):
    """Mark the files that need more packages, and start the longest first, so that no worker gets one of them last."""
    for item in items:
        if _needs_more(item.path):
            item.add_marker("more_packages")
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(LONGEST)))


_MOST_MAPS, _MOST_BYTES = 25_000, 2.5e9


def pytest_runtest_teardown(item, nextitem):
    """Drop compiled programs between files once they are many: each takes memory maps, and a process has 65,530."""
    if nextitem is not None and nextitem.path == item.path:
        return
    maps, memory = pathlib.Path("/proc/self/maps"), pathlib.Path("/proc/self/statm")
    if maps.exists() and maps.read_bytes().count(b"\n") > _MOST_MAPS:
        jax.clear_caches()
    if memory.exists() and int(memory.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > _MOST_BYTES:
        _release_freed_memory()


@pytest.fixture(scope="module", autouse=True)
def promotion(request):
    """Standard promotion in the rooms that train: optax adds integers to floats, which strict promotion refuses."""
    is_strict = request.path.parent.name not in ("run", "systems", "training")
    with jax.numpy_dtype_promotion("strict" if is_strict else "standard"):
        yield


SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared():
    """The folder `../shared` of real data and golden numbers; tests that use it skip if it does not exist."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared, which users do not have")
    return SHARED


@pytest.fixture(scope="module")
def small_encoder():
    """Runs load with a tiny encoder in place of the published ones."""
    from trained_workdir import tiny_encoder

    with tiny_encoder():
        yield
