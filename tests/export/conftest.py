"""Shared by the tests of exports."""

import jax
import pytest


@pytest.fixture(scope="module")
def quick():
    """Compiling takes nearly all of the time here."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
