import shutil
import subprocess
import sys

import pytest

from stepcot_jax.tools.completion import main

COMPLETE = r"""
stepcot() { "$PYTHON" -m stepcot_jax "$@"; }
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2))
_stepcot
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["co"], {"completion", "conformance", "constrain", "convert"}),
        (["data", ""], {"check", "phantom", "stats", "tfds", "vqa"}),
        (["predict", "a.png", "--ch"], {"--checkpoint"}),
        (["tables", "steps", "--enc"], {"--encoders"}),
        (["train", "--config", "=", "quick"], {"quickstart"}),
        (["predict", "--checkpoint", ""], {""}),  # files, as bash completes them by itself
    ],
)
def test_bash_completes_commands_flags_and_configs(words, found, capsys):
    main(["bash"])
    line = " ".join(["stepcot", *words]).replace(" = ", "=")
    command = ["bash", "-c", capsys.readouterr().out + COMPLETE, "bash", line, "stepcot", *words]
    done = subprocess.run(command, env={"PYTHON": sys.executable}, capture_output=True, text=True, check=True)
    assert set(done.stdout[:-1].split("\n")) == found, done.stderr
