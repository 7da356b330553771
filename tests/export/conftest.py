"""One run and its export, for all files of a worker; tests copy an export before they change it."""

import pathlib
import shutil

import pytest
from trained_workdir import make_trained_workdir, tiny_encoder, write_gate, write_joint

from stepcot_jax.export.folder import export_model


@pytest.fixture(scope="session")
def chain_export(tmp_path_factory):
    """Workdir and export of a run with calibration, a gate and a joint model of its student."""
    folder = tmp_path_factory.mktemp("chain")
    make_trained_workdir(folder / "run", calibrated=True)
    with tiny_encoder():
        write_gate(folder / "run")
        write_joint(folder / "run")
        export_model(folder / "run", folder / "out")
    return folder / "run", folder / "out"


@pytest.fixture
def chain_copy(chain_export, tmp_path):
    return pathlib.Path(shutil.copytree(chain_export[1], tmp_path / "copy"))
