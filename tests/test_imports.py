import pathlib
import subprocess
import sys

import pytest

COMMON = ("main", "training.processes", "run.training_run")
CODE = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module("stepcot_jax." + name)
print(*(module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "stepcot_jax"), sep="\\n")
"""


@pytest.mark.parametrize(
    ("modules", "most_modules", "most_lines"),
    [(("run.chain_task", "reading.image_reader"), 101, 19_000), (("run.policy_task",), 142, 26_300)],
    ids=["chain", "policy"],
)
def test_a_training_imports_what_it_needs(modules, most_modules, most_lines):
    command = [sys.executable, "-c", CODE, *COMMON, *modules]
    files = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(files) <= most_modules, "a new module may raise this bound (CONTRIBUTING.md)"
    assert sum(pathlib.Path(file).read_text().count("\n") for file in files) <= most_lines
