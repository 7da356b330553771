import os
import pathlib
import re
import subprocess
import sys
from importlib import metadata

import pytest

from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.configs import load_config

ROOT = pathlib.Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}


def run(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )


def test_the_tools_are_listed_without_jax():
    result = run("-X", "importtime", "-m", "stepcot_jax")
    assert result.returncode == 0
    names = [line.split()[0] for line in result.stdout.splitlines()[2:]]
    assert {"conformance", "convert", "demo", "train"} <= set(names)
    assert all(len(line.split()) > 3 for line in result.stdout.splitlines()[2:])
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "stepcot_jax" in imported
    assert not {"jax", "numpy"} & imported


def test_a_module_runs_nothing_before_its_last_definition():
    for path in (ROOT / "stepcot_jax").rglob("*.py"):
        _, guard, after = path.read_text().partition("\nif __name__ ==")
        assert not guard or not re.search(r"^\w", after.partition("\n")[2], re.MULTILINE), path


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--help"], 0, "usage: stepcot COMMAND"),
        (["--version"], 0, f"stepcot-jax 0.1.0 (jax {metadata.version('jax')}, jaxlib"),
        (["conformanc"], 2, "did you mean conformance?"),
    ],
)
def test_a_tool_is_run_by_its_name(arguments, code, words):
    result = run("-m", "stepcot_jax", *arguments)
    assert result.returncode == code
    assert words in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_the_console_script_finds_configs_in_the_current_folder(tmp_path):
    script = "import sys; sys.path = [p for p in sys.path if p]; from stepcot_jax.__main__ import main; main()"
    flags = ["main", "--config=mine.py", "--workdir=x"]
    (tmp_path / "other.py").write_text("BATCH = -1\n")
    (tmp_path / "mine.py").write_text(
        "import other\nfrom ml_collections import config_dict\n"
        "def get_config():\n    return config_dict.ConfigDict({'batch': other.BATCH})\n"
    )
    script = f"import sys; sys.path.append({str(ROOT)!r}); {script}"
    result = run("-P", "-c", script, *flags, cwd=tmp_path)
    assert result.returncode == 2
    assert "config.batch is not a setting" in result.stderr


def test_main_needs_no_jax_and_a_reader_of_steps_no_optimizer_and_no_policy():
    script = "import sys, stepcot_jax.main; assert 'jax' not in sys.modules; "
    script += "import stepcot_jax.reading.image_reader, stepcot_jax.reading.answer_sheet; print(*sys.modules)"
    loaded = run("-c", script).stdout.split()
    assert "stepcot_jax.reading.trained_model" in loaded
    assert not [name for name in loaded if name == "optax" or name.startswith("stepcot_jax.policies")]


MAIN = ("-m", "stepcot_jax.main")
CONFIG = "--config=quickstart"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([CONFIG, "--config.training.bach_size=3"], ["bach_size", "did you mean config.training.batch_size?"]),
        ([CONFIG, "--config.training.batch_size=many"], ["config.training.batch_size", "'many'", "a whole number"]),
        ([CONFIG, "--wurkdir=x"], ["wurkdir", "workdir"]),
        ([CONFIG, "--workdir="], ["error: --workdir is required (a writable folder)\n"]),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(flags, words, tmp_path):
    assert_refused(run(*MAIN, f"--workdir={tmp_path / 'unused'}", *flags), words)
    assert not (tmp_path / "unused" / "settings.json").exists()


def test_an_error_in_a_config_file_names_file_and_line(tmp_path):
    for source, words in (
        ("def get_config(:\n    pass\n", ["mine.py:1", "SyntaxError"]),
        ("def get_config():\n    return int('x')\n", ["mine.py:2", "ValueError"]),
        ("import absent_module\n", ["mine.py:1", "absent_module"]),
        ("x = 1\n", ["mine.py", "get_config"]),
    ):
        (tmp_path / "mine.py").write_text(source)
        with pytest.raises(BadInput) as refused:
            load_config(str(tmp_path / "mine.py"))
        assert all(word in str(refused.value) for word in words), source
    assert_refused(run(*MAIN, "--workdir=x", f"--config={tmp_path / 'mine.py'}"), ["mine.py", "get_config"])


def assert_refused(result, words):
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


@pytest.mark.slow
def test_no_module_imports_tensorflow_or_torch():
    script = """
import importlib, pkgutil, sys
import stepcot_jax
names = [m.name for m in pkgutil.walk_packages(stepcot_jax.__path__, "stepcot_jax.") if not m.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
found = {"tensorflow", "torch"} & set(sys.modules)
assert len(names) > 30 and not found, (len(names), found)
"""
    result = run("-c", script)
    assert result.returncode == 0, result.stderr
