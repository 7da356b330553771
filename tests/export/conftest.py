"""One run of each kind and its export, for all files of a worker; tests copy an export before they change it."""

import contextlib
import io
import json
import pathlib
import shutil

import pytest
from policies.policy_workdir import make_policy_workdir
from trained_workdir import make_trained_workdir, tiny_encoder, write_gate, write_joint

from stepcot_jax.export.folder import export_model
from stepcot_jax.tools.export import main


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


@pytest.fixture(scope="session")
def policy_export(tmp_path_factory):
    """Workdir and export of a policy, its records, and what the command printed."""
    folder = tmp_path_factory.mktemp("policy")
    _, records, _ = make_policy_workdir(folder / "run")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([f"--checkpoint={folder / 'run'}", f"--out={folder / 'out'}", "--json"]) == 0
    return folder / "run", folder / "out", records, json.loads(printed.getvalue())
