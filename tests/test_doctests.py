import doctest
import importlib
import pkgutil

import jax
import pytest

import stepcot_jax

MODULES = [
    module.name
    for module in pkgutil.walk_packages(stepcot_jax.__path__, "stepcot_jax.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name):
    with jax.numpy_dtype_promotion("standard"):
        found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0
