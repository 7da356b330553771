import pytest
from readers.reader_samples import write_folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "root")
