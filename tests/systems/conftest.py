"""Standard promotion: optax adds integers to floats, which the suite's strict promotion refuses."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield
