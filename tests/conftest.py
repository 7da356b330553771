"""Settings of the whole suite: eight virtual devices, strict promotion, checked shapes, one compilation cache."""

import os
import pathlib
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Test programs run for milliseconds and compile for seconds; these flags cut compile time to about a third.
_COMPILE_FAST = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
)
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 {_COMPILE_FAST}".strip()
)

import jaxtyping

jaxtyping.install_import_hook(["stepcot_jax.models", "stepcot_jax.losses", "stepcot_jax.encoders"], "beartype.beartype")

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Runs that are alike compile once in a session.
_CACHE = tempfile.TemporaryDirectory(prefix="stepcot-jax-tests-")
jax.config.update("jax_compilation_cache_dir", _CACHE.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)

hypothesis.settings.register_profile("suite", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("suite")

SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared():
    """The folder `../shared` of real data and golden numbers; tests that use it skip if it does not exist."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared, which users do not have")
    return SHARED
