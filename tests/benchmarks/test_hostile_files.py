"""Commands end orderly on hostile files, within 30 s and 2 GB, with one line that names the file and the limit.

`python -m benchmarks.hostile_files` does the same with files of full size and the default limits.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import stepcot_jax
from benchmarks import hostile_files
from benchmarks.hostile_inputs import MAKERS
from benchmarks.hostile_kinds import KINDS
from benchmarks.hostile_readings import FILES, READINGS, sample
from stepcot_jax.host.untrusted import VARIABLE

pytestmark = pytest.mark.slow
PACKAGE = pathlib.Path(stepcot_jax.__file__).parent
LIMITS = "text=200000,name=1000,blank_rows=20000,sheet_cells=20000"
FACTOR = 0.02
_WORDS = json.loads(pathlib.Path(__file__).with_name("hostile_words.json").read_text(encoding="utf-8"))
WORDS: dict[str, str] = _WORDS["words"]
"""Start of the file's name -> words that its command prints."""
MENDED: dict[str, str] = _WORDS["mended"]
"""Files that ended badly once -> words that the command prints now, the file's name among them."""

GROUPS = (
    "split .csv", "split .xlsx", "source .csv", "data.json", "records.jsonl", "pipe", "/dev/zero", "features:",
    "convert:", "IU X-Ray:", "image",
)  # fmt: skip


def words_of(name):
    return WORDS[max((start for start in WORDS if name.startswith(start)), key=len)]


def test_every_hostile_file_is_in_a_group_and_has_words():
    alone = set(MAKERS) - set(FILES)
    assert all(name.startswith(GROUPS) and words_of(name) for name in alone)
    assert all(any(name.startswith(start) for name in alone) for start in WORDS)
    assert all(sum(name.startswith(start) for name in FILES) == 1 for start in MENDED)


def test_every_command_that_reads_files_is_tried():
    """`data phantom` reads no file, and `features` without `import` what `main` reads."""
    rooms = {path.parent.name for path in PACKAGE.glob("*/__main__.py")} | {"main"}
    assert rooms <= {reading.command.split()[0].partition(".")[0] for reading in READINGS}
    assert {name for reading in READINGS for name in reading.kinds.values()} == {
        write for kinds in KINDS.values() for write in kinds.values()
    }


def run(*arguments):
    command = [sys.executable, "-m", "benchmarks.hostile_files", "--json", f"--factor={FACTOR}", *arguments]
    environment = {**os.environ, VARIABLE: LIMITS, "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    for outcome in outcomes:
        assert not outcome["problem"], outcome
        assert outcome["megabytes"] < hostile_files.MOST_BYTES / 1e6
    assert done.returncode == 0, done.stderr
    return outcomes


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.strip(":"))
def test_hostile_files_are_refused(group):
    outcomes = run(group)
    assert len(outcomes) == sum(name.startswith(group) for name in MAKERS)
    for outcome in outcomes:
        if outcome["name"] not in FILES:
            assert words_of(outcome["name"]) in " ".join(outcome["output"].split()), outcome


def test_every_command_refuses_one_file_of_each_kind_by_turns_and_those_that_once_ended_badly():
    outcomes = {outcome["name"]: outcome for outcome in run("--sample", *MENDED)}
    assert sample() <= outcomes.keys()
    for name, outcome in outcomes.items():
        # A journal may end in a line that was cut off, and is read without it.
        assert outcome["code"] or "journal.jsonl: " in name, outcome
        words = next((words for start, words in MENDED.items() if name.startswith(start)), "")
        assert words in " ".join(outcome["output"].split()), outcome


def test_disorderly_ends_are_found():
    def outcome(code=2, output="error: a"):
        return hostile_files.Outcome(code, 0.1, 1.0, output).problem

    assert not outcome()
    assert "-14" in outcome(code=-14)
    assert outcome(output="Traceback (most recent call last):\n") == "a traceback"
    assert "5000 characters" in outcome(output="a" * 5000)
    assert hostile_files.Outcome(2, 0.1, 1.0, "error: a", "b.json").problem == "nothing names b.json"
