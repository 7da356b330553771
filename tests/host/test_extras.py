import os
import subprocess
import sys

import pytest

POINTS = """[stepcot_jax.extras]
command.predict = intruder:predict
command.mine = intruder.commands
command.gone = missing_package.commands
command.broken = intruder.broken
command.leaves = intruder.leaves
command.odd = a b c!!
command.called = intruder.commands:main
command.empty = intruder
command. = intruder.commands
command.raises = intruder.raises
command.red[31m = intruder.commands
engine.bad = intruder.broken:nothing
"""


@pytest.fixture
def call(tmp_path):
    package, described = tmp_path / "intruder", tmp_path / "intruder-1.0.dist-info"
    package.mkdir()
    described.mkdir()
    (package / "__init__.py").write_text("import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n")
    (package / "commands.py").write_text('"""Mine."""\ndef main():\n    print("mine ran")\n')
    (package / "broken.py").write_text("def (")
    (package / "raises.py").write_text("1 / 0")
    (package / "leaves.py").write_text("raise SystemExit('gone')")
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: intruder\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(POINTS)

    def run(*arguments):
        paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "stepcot_jax", *arguments]
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)

    return run, package


def test_built_in_names_win_and_help_imports_nothing(call):
    run, package = call
    helped = run("--help")
    assert helped.returncode == 0
    assert "mine" in helped.stdout
    listed = {line.split()[0]: line for line in helped.stdout.splitlines() if line.startswith("  ")}
    assert {"demo", "sync", "gone", "broken", "raises", "leaves", "odd"} <= listed.keys()
    assert "missing" in listed["gone"]
    assert "\x1b" not in helped.stdout + helped.stderr
    assert not (package / "imported").exists()
    assert "note: predict of the package intruder is passed over" in helped.stderr
    assert run("predict", "--help").stdout.startswith("usage: stepcot predict")
    assert [run(name).stdout for name in ("mine", "called")] == ["mine ran\n"] * 2


@pytest.mark.parametrize("name", ["gone", "broken", "raises", "leaves", "odd", "empty"])
def test_a_broken_extra_is_one_line(call, name):
    ended = call[0](name)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    words = (
        "intruder, an extra of another package, has no main()"
        if name == "empty"
        else ("this command of the package intruder cannot be loaded")
    )
    assert f"{name}: {words}" in ended.stderr
