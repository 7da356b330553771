import pytest

from stepcot_jax.data.phantom.phantom import export_phantom


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("cases")
    export_phantom(root, num_cases=40, seed=0, size=32, prevalence="flat")
    return root
