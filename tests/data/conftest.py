import pytest

from stepcot_jax.data.questions.making import make_phantom_records, write_records


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Reasoning records of thirty phantoms."""
    out = tmp_path_factory.mktemp("records")
    write_records(out, make_phantom_records(out, num_cases=30, size=48, seed=0))
    return out
