"""Optax adds integers to floats, so what contains an optimizer cannot run under the suite's strict promotion."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield
