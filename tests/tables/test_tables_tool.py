import os
import pathlib
import subprocess
import sys

from refusals import refuse

from stepcot_jax.tools.tables import command as tables

ROOT = pathlib.Path(__file__).parents[2]


def test_names_are_those_that_can_be_made():
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    for name in tables.TABLES:
        assert name in tables.__doc__
        assert f"`{name}`" in page
        assert (tables.find_recipe(name).published is not None) == (name in tables.list_names("printed"))
    assert tables.read_names(["all"]) == ("diagnosis", "steps", "components", "transfer", "cost")
    assert tables.read_names(["folds", "corrections", "all"])[4:] == ("cost", "corrections", "folds")
    assert tables.read_names(["vqa", "cost", "vqa"]) == ("cost", "vqa")
    named = tables.read_pairs(["CLIP=openai/clip", "own = /a=b"], "--encoders", "NAME=WEIGHTS")
    assert named == {"CLIP": "openai/clip", "own": "/a=b"}
    assert tables.read_seeds(["0", "12"], None) == (0, 12)


def test_what_is_not_accepted_is_named():
    refuse("table 'diagnoses' is not one of diagnosis", tables.read_names, ["diagnoses"])
    refuse("--x: 'CLIP' is not NAME=WEIGHTS", tables.read_pairs, ["CLIP"], "--x", "NAME=WEIGHTS")
    refuse("--seeds: '-1'", tables.read_seeds, ["0", "-1"], None)


def test_a_config_that_is_missing_is_named_without_a_traceback():
    command = [sys.executable, "-m", "stepcot_jax", "tables", "vqa", "stages", "curriculum", "--workdir=x"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 2
    assert "(a shipped config such as tables_vqa, " in result.stderr
    assert "Traceback" not in result.stderr
