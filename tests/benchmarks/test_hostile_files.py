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

TOO_LONG = "a row of more than 200000 characters, or a quotation without end; at most 200000"
NOT_REGULAR = "not a regular file"
FIELD = "has 1048576 characters; at most"

# Start of the file's name: words that its command prints.
WORDS = {
    "split .csv: one": TOO_LONG,
    "split .csv: 200 MB of blank rows": "train.csv: more than 20000 blank rows",
    "split .csv: 10^7": "train.csv: more than 20000 blank rows",
    "split .xlsx: a row numbered": "train.xlsx: a row is numbered '10000",
    "split .xlsx: rows with": "row 2 has a cell in column 18278; at most 16384",
    "split .xlsx: one row": "row 1 has a cell in column 16385; at most 16384",
    "split .xlsx: 400 MB of cells": "more than 20000 cells; at most 20000 are accepted",
    "split .xlsx: 400 MB of empty": "more than 20000 blank rows",
    "split .xlsx: 400 MB of shared": "more than 20000 cells; at most 20000 are accepted",
    "split .xlsx: a shared": "a cell of more than 200000 characters",
    "split .xlsx: 400 MB of styles": "more than 65536 sheets, relations or styles",
    "split .xlsx: elements": "elements are nested more than 64 deep",
    "split .xlsx: 400 MB of white": "splits have no case",
    "split .xlsx: a million": "train.xlsx: cannot be read",
    "split .xlsx: entities": "has a document type declaration",
    "source .csv: 200 MB of blank": "cases.csv: more than 20000 blank rows",
    "source .csv": TOO_LONG,
    "data.json: image_path": f"image_path: … {FIELD} 1000",
    "data.json: patient_id": f"patient_id: … {FIELD} 1000",
    "data.json: origin": f"origin: … {FIELD} 1000",
    "data.json: report": f"report: … {FIELD} 200000",
    "data.json: step": f"vqa_chain[3].step: … {FIELD} 1000",
    "data.json: question": f"vqa_chain[3].question: … {FIELD} 200000",
    "data.json: options": f"vqa_chain[3].options: … {FIELD} 1000",
    "data.json: answer": f"vqa_chain[3].answer: … {FIELD} 1000",
    "data.json: reasoning": f"vqa_chain[3].reasoning: … {FIELD} 200000",
    "data.json: 60 MB of options": "vqa_chain[3].options: 262147 options; at most 1000",
    "data.json: unknown": "a run can use it",
    "data.json: 200 MB": "the file is empty",
    "records.jsonl": "unknown field",
    "pipe: IU X-Ray report": "is a link or not an ordinary file",
    "pipe: loose": "has no known layout",
    "pipe: IU X-Ray archive": "has no known layout",
    "pipe: records.jsonl": "is not a file",
    "pipe: IU X-Ray projections": "1.xml: uId: ''",
    "pipe: train.csv of splits": "exactly one of train.xlsx and train.csv is required",
    "pipe: questions": "has no known detection list",
    "pipe: an image": "is not a file; an image below the data root is required",
    "pipe": NOT_REGULAR,
    "/dev/zero: NLMCXR": "has no known layout",
    "/dev/zero: 1.xml": "has no known layout",
    "/dev/zero": NOT_REGULAR,
    "features: pipe": NOT_REGULAR,
    "features: /dev/zero": NOT_REGULAR,
    "features: an id": "id 1 has 5242880 characters; at most 1000",
    "features: nested": "not a list of strings or whole numbers",
    "features: a row": TOO_LONG,
    "features: 250 MB": "more than 6 ids for 6 rows",
    "features: zip bomb of one id": "ids of 4000000 bytes; at most 1000",
    "features: zip bomb of features": "15000000 rows; expected one for each case",
    "features: zip bomb": "5000000 ids for 6 rows",
    "features: a million": "and 19974 more]; expected features and ids",
    "convert: a name inside": "teacher/a/b: 'a' is a tensor itself",
    "convert: a network": "unknown tensors: teacher; names start with",
    "convert: a name of 20,000": "40007 characters and 20001 parts; at most 1000 and 32",
    "convert: a name of 20 MB": "400008 characters and 2 parts",
    "convert: 500,000 names": "unknown tensors: 0, 1, 10,",
    "convert: 500,000 heads": "and 9980 more",
    "convert: 500,000 foreign": "unknown tensors: other/0,",
    "convert: --to jax, 500,000": "names count 10000 steps or layers; at most 1000",
    "convert: --to jax, a name": "unknown tensors: " + "a" * 80 + "…",
    "convert": NOT_REGULAR,
    "IU X-Ray: gzip": "cannot be read as report files (unexpected end of data)",
    "IU X-Ray: a header": "has a header of 20000256 bytes",
    "image .png: 60,000": "pixels in its header; expected at most 64000000",
    "image .png: rows": "a run would stop",  # what is beyond the picture's rows is never unpacked
    "image .png: a text": "Decompressed data too large",
    "image .png: 200 MB": "images/1.png",  # the texts are below Pillow's limit at this size
    "image .png: a colour": "Decompressed data too large",
    "image .png: cut": "image file is truncated",
    "image .jpg: 65,500": "pixels in its header; expected at most 64000000",
    "image .jpg: 200 MB": "cannot be decoded",
    "image .jpg: script": "starts with bytes",
    "image .dcm: 65,535": "pixels in its header are more than 64000000",
    "image .dcm: 10^9": "NumberOfFrames: 1000000000 instead of 1",
    "image .dcm: a million": "a run would stop",
    "image .dcm: sequences": "cannot be read as DICOM",
}

GROUPS = (
    "split .csv",
    "split .xlsx",
    "source .csv",
    "data.json",
    "records.jsonl",
    "pipe",
    "/dev/zero",
    "features:",
    "convert:",
    "IU X-Ray:",
    "image",
)

NO_DIGESTS = "SHA256SUMS cannot be read (not a regular file)"

# Files that ended badly once: words that the command prints now, the file's name among them.
MENDED = {
    "load.py, export/SHA256SUMS: pipe": NO_DIGESTS,
    "load.py, export/SHA256SUMS: /dev/zero": NO_DIGESTS,
    "load.py, export/export.json: lists nested without end": "export.json cannot be used (RecursionError",
    "load.py, export/export.json: a text of 60 MB": "export.json cannot be used (AttributeError",
    "load.py, export/labels.json: a list of 200 MB": "labels.json cannot be used (TypeError",
    "load.py, export/student.safetensors: a header nested": "student.safetensors: the tensors cannot be read",
    "load.py, export/student.safetensors: 10^6 names": "student.safetensors: names or shapes of 20000 tensors are not",
    "load.py, export/check.safetensors: 10^6 names": "check.safetensors cannot be used (KeyError: 'images')",
    "report, run/statistics.json: pipe": "statistics.json: not a regular file",
    "report, run/report.json: a name of 60 MB": "report.json has no 'num_cases' with whole numbers",
    "report, run/metrics.jsonl: lists nested without end": 'metrics.jsonl, line 1: \'{"a": [[[',
    "report, policy/replies/sft_test.jsonl: pipe": "sft_test.jsonl: is not a file",
    "predict, run/reading/shapes.json: pipe": "shapes.json: not a regular file",
    "predict, run/reading/text_features.npy: 10^15": "its header states too many numbers",
    "export, run/report.json: pipe": "report.json: not a regular file",
    "annotate merge, shard/set_aside.jsonl: lists nested": "set_aside.jsonl cannot be read (maximum recursion depth",
    "annotate agree, shard/data.json: a list of 200 MB": "entries such as '1' are too short to be records",
    "annotate agree, questions/records.jsonl: pipe": "records.jsonl: is not a file",
    "data vqa, source/BBox_List_2017.csv: pipe": "BBox_List_2017.csv: not a regular file",
    "data vqa, source/a.jsonl: pipe": "a.jsonl: not a regular file",
    "report, run/metrics.jsonl: 100 MB of blank": "metrics.jsonl: more than 20000 blank rows",
    "annotate replies, batch/replies.jsonl: 100 MB of blank": "replies.jsonl: more than 20000 blank rows",
    "conformance, golden.npz: an array of 10^15 rows": "golden.npz is not a readable .npz",
}


def words_of(name):
    return WORDS[max((start for start in WORDS if name.startswith(start)), key=len)]


def test_every_hostile_file_is_in_a_group_and_has_words():
    alone = set(MAKERS) - set(FILES)
    assert all(name.startswith(GROUPS) and words_of(name) for name in alone)
    assert all(any(name.startswith(start) for name in alone) for start in WORDS)
    assert all(sum(name.startswith(start) for name in FILES) == 1 for start in MENDED)


def test_every_command_that_reads_files_is_tried():
    """`data phantom` and `data fetch` read no file, and `features` without `import` what `main` reads."""
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
