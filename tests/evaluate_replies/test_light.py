"""The light installation: six libraries and no JAX; docs/rewards.md tells how."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
from evaluate_replies.asked import ask, write_folder, write_replies
from wheels import ROOT, link_libraries, make_environment

from stepcot_jax.__main__ import find_commands

REQUIREMENTS = ROOT / "stepcot_jax" / "rewards" / "requirements.txt"
BROKEN = {1: lambda text: text.replace("Yes", "No"), 2: lambda text: text.replace("<box>", "<b>", 1), 3: str.upper}
SCORED = ("metrics.json", "scores.jsonl", "table.csv", "index.html", "rules.jsonl", "rules.html")
REWARDS = """
import sys
import stepcot_jax as sc
{block}
records = list(sc.load_records({folder!r}))
replies = [sc.read_reply(sc.write_reply(record, "gemex"), "gemex") for record in records]
assert supported(replies, records) == [1.0] * len(records)
assert not {{"jax", "flax", "absl", "ml_collections"}} & set(sys.modules)
"""


def run(python, *arguments, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT) if python == sys.executable else ""}
    return subprocess.run([python, *map(str, arguments)], cwd=folder, env=environment, capture_output=True, text=True)


def test_the_requirements_are_at_most_six_of_the_dependencies():
    names = [line for line in REQUIREMENTS.read_text().splitlines() if line[0] != "#"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(names) <= 6
    assert set(names) <= set(project["dependencies"])


@pytest.mark.slow
def test_six_libraries_reward_and_score_replies_as_all_do(tmp_path):
    site = make_environment(tmp_path)
    names = [line.partition(">")[0] for line in REQUIREMENTS.read_text().splitlines() if line[0] != "#"]
    assert not {"jax", "jaxlib", "flax", "absl-py"} & link_libraries(site, names)
    light = tmp_path / "env" / "bin" / "python"
    folder = write_folder(tmp_path / "questions", *ask(12, num_train=6))
    records, _ = ask(12, num_train=6)
    file = write_replies(tmp_path / "model.jsonl", records, change=lambda text, place: BROKEN.get(place % 5, str)(text))
    score = ("-m", "stepcot_jax", "evaluate_replies", folder, file, "--dialect=gemex", "--rule=all")
    for python, out in ((light, "light"), (sys.executable, "full")):
        done = run(python, *score, "--out", out, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    for name in SCORED:
        assert (tmp_path / "light" / name).read_bytes() == (tmp_path / "full" / name).read_bytes()

    block = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "rewards.md").read_text(), re.DOTALL)[1]
    done = run(light, "-c", REWARDS.format(block=block, folder=str(folder)), folder=tmp_path)
    assert done.returncode == 0, done.stderr

    listed = run(light, "-m", "stepcot_jax", "--help", folder=tmp_path).stdout
    for name in find_commands():
        assert f"  {name} " in listed
        done = run(light, "-m", "stepcot_jax", name, "--help", folder=tmp_path)
        if done.returncode:
            assert re.fullmatch(r"error: this needs \w+, which is not installed: .*pip install .*\n", done.stderr)
