import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest
from refusals import refuse
from wheels import build_wheel

import stepcot_jax
from stepcot_jax.run.configs import find_config, load_config, shipped_names

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[2]


def test_a_shipped_config_is_found_by_name_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config("quickstart") == ROOT / "configs" / "quickstart.py"
    assert "quickstart" in shipped_names()
    assert load_config("tables_phantom").training.joint_epochs == 8
    assert load_config("plain").phantom.num_cases == 10_000
    assert load_config("plain:phantom").phantom.num_cases == 40_000


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("quikstart", "did you mean quickstart?"),
        ("configs/quickstart.py", "configs/quickstart.py: no such config file (--config=quickstart is shipped)"),
        ("mine.py", "mine.py: no such config file"),
        ("plain:phntom", "--config=phntom: no such config; did you mean phantom?"),
        ("plain:gemex", "--config=plain:gemex: its job is 'grpo'; expected a config of teacher and student"),
        ("quickstart:phantom", "--config=quickstart:phantom: quickstart takes nothing after a colon"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse(re.escape(words), load_config, name)


def test_a_config_of_ones_own_imports_shipped_and_own_configs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *(path for path in sys.path if pathlib.Path(path) != ROOT)])
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "local.py").write_text("SEED = 7\n")
    (tmp_path / "mine.py").write_text(
        "from configs import base, local\n\n"
        "def get_config(seed=0):\n    config = base.get_config()\n    config.seed = int(seed) or local.SEED\n"
        "    return config\n"
    )
    held = sys.modules.get("configs")
    assert load_config("mine.py").seed == 7
    assert load_config("mine.py:5").seed == 5
    (tmp_path / "configs" / "base.py").write_text("raise RuntimeError\n")
    assert load_config("quickstart").seed == 0  # shipped configs import only shipped ones
    refuse(r"^mine\.py:1: RuntimeError", load_config, "mine.py")
    assert sys.modules.get("configs") is held


def test_a_clone_named_as_the_package_does_not_hide_it_from_the_folder_above(tmp_path):
    wheel = build_wheel(tmp_path, kind="editable", name="stepcot_jax")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = "import site, sys; site.addsitedir(sys.argv[1]); import stepcot_jax as sc; print(sc.__file__, *sc.__all__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-S", "-c", code, tmp_path / "site"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    home = tmp_path / "stepcot_jax" / "stepcot_jax" / "__init__.py"
    assert done.stdout == f"{home} {' '.join(stepcot_jax.__all__)}\n", done.stderr
