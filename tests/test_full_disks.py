import builtins
import errno
import itertools
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy
from full_disk import FailingDisk
from memory_store import new_address
from policies.policy_workdir import make_policy_workdir
from policies.qwen.tiny_qwen import write_reader
from report.finished_workdir import make_finished_workdir
from run.small_run import small_settings
from trained_workdir import make_trained_workdir

from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.extras.cloud import sync
from stepcot_jax.host.array_files import save_safetensors
from stepcot_jax.host.errors import BadInput, RunStopped, run_tool
from stepcot_jax.host.files import read_file
from stepcot_jax.reasoning.dialects import write_reply
from stepcot_jax.run.training_run import Run
from stepcot_jax.tools import answer, convert, export, features, predict
from stepcot_jax.tools.annotate import command as annotate
from stepcot_jax.tools.conformance import command as conformance
from stepcot_jax.tools.constrain import command as constrain
from stepcot_jax.tools.data import command as data
from stepcot_jax.tools.evaluate_replies import command as evaluate
from stepcot_jax.tools.explain import command as explain
from stepcot_jax.tools.readers import command as readers
from stepcot_jax.tools.report import command as report
from stepcot_jax.tools.tables import command as tables

pytestmark = pytest.mark.usefixtures("small_encoder")
COMMANDS = {
    "data phantom": (data.main, "phantom OUT/x --num-cases=30 --size=32"),
    "data vqa": (data.main, "vqa OUT/x --num-cases=4 --size=32"),
    "data check": (data.main, "check IN/phantom --json=OUT/x.json"),
    "data stats": (data.main, "stats IN/vqa --out=OUT/x"),
    "annotate": (annotate.main, "IN/reports.csv --out=OUT/x"),
    "annotate vqa": (annotate.main, "vqa IN/phantom --task=medclm --out=OUT/x"),
    "annotate agree": (annotate.main, "agree IN/a IN/b --out=OUT/x"),
    "annotate review-out": (annotate.main, "review-out IN/a IN/b --all --out=OUT/x.csv"),
    "evaluate_replies": (evaluate.main, "IN/vqa IN/replies.jsonl --split=all --num-resamples=2 --out=OUT/x"),
    "evaluate_replies prompts": (evaluate.main, "prompts IN/vqa --split=all --out=OUT/x.jsonl"),
    "evaluate_replies perturb": (evaluate.main, "perturb IN/vqa --split=all --out=OUT/x"),
    "readers": (readers.main, "sample IN/phantom --readers=a,b --num-cases=8 --out=OUT/x"),
    "features import": (features.main, "IN/features.npz --root=IN/phantom --store=OUT/x"),
    "convert": (convert.main, "IN/run OUT/x.safetensors --to=torch --ignore=image_encoder --ignore=plain"),
    "tables": (lambda arguments: tables.make_tables(["vqa"], None, command=[], folder=arguments[0]), "OUT/x"),
    "predict": (predict.main, "IN/phantom/images/phantom_000000.png --checkpoint=IN/run --out=OUT/x.csv"),
}


def train(arguments):
    with jax.numpy_dtype_promotion("standard"):  # for Optax's Adam
        Run(small_settings(), arguments[0]).execute()


QUESTION = "What is the main abnormality?"
SLOW = {
    "train": (train, "OUT/x"),
    "report": (report.main, "IN/finished --without-maps --out=OUT/x.html"),
    "answer": (
        lambda arguments: answer.main([arguments[0], QUESTION, *arguments[1:]]),
        "IN/phantom/images/phantom_000000.png --checkpoint=IN/policy --out=OUT/x.png",
    ),
    "constrain": (
        constrain.main,
        "IN/phantom --local=IN/qwen --num-cases=2 --levels=0,1 --max-answer-tokens=4 --num-resamples=5 --out=OUT/x",
    ),
    "explain": (explain.main, "IN/phantom/images/phantom_000000.png --checkpoint=IN/run --out=OUT/x"),
    "export": (export.main, "--checkpoint=IN/run --model=student --out=OUT/x"),
}
NOT_BY_PYTHON = ("convert",)  # written by a library in Rust
FAULTS = [("write", errno.EDQUOT), ("write", errno.EIO), ("open", errno.EMFILE), ("open", errno.EROFS)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Phantoms, questions and replies, reports and two annotations of them, features, and a run."""
    folder = tmp_path_factory.mktemp("inputs")
    data.main(["phantom", str(folder / "phantom"), "--num-cases=30", "--size=32"])
    data.main(["vqa", str(folder / "vqa"), "--num-cases=4", "--size=32"])
    records = read_vqa_records(folder / "vqa").records
    replies = [{"id": record.id, "reply": write_reply(record, "gemex")} for record in records]
    (folder / "replies.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in replies))
    reports = [f"r{number},IMPRESSION: Small right pleural effusion.,{number}.png" for number in range(3)]
    (folder / "reports.csv").write_text("\n".join(["id,report,image", *reports]))
    for number in range(3):
        (folder / f"{number}.png").write_bytes(b"x")
    for name in "ab":
        annotate.main([str(folder / "reports.csv"), "--out", str(folder / name)])
    ids = [f"images/phantom_{number:06}.png" for number in range(30)]
    np.savez(folder / "features.npz", features=np.ones((30, 4), np.float32), ids=np.array(ids))
    make_trained_workdir(folder / "run")
    make_finished_workdir(folder / "finished")
    make_policy_workdir(folder / "policy")
    write_reader(folder / "qwen")
    return folder


def fail(command, inputs, folder, number, at, skip, capsys):
    """Run a command on a failing disk and check how it ends; return whether it came to a write that failed."""
    main, written = command
    out = folder / f"{at}_{number}_{skip}"
    out.mkdir()
    disk = FailingDisk(out, number, at=at, skip=skip)
    arguments = written.replace("IN/", f"{inputs}/").replace("OUT/", f"{out}/").split()
    capsys.readouterr()
    with disk.mounted(), pytest.raises(SystemExit) as ended:
        run_tool(lambda: main(arguments))
    if not disk.failed:
        return False
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("error", "stopped", "Traceback"))]
    assert ended.value.code == 3, said
    assert len(said) == 1
    assert said[0].startswith(f"stopped: {out}")
    assert os.strerror(number) in said[0]
    half = [path for path in disk.failed if os.path.isfile(path) and at == "write"]  # noqa: PTH113
    assert [path for path in half if not path.endswith("/.lock")] == []
    return True


@pytest.mark.parametrize("name", COMMANDS)
def test_a_failing_disk_is_one_line_and_leaves_no_half_file(name, inputs, tmp_path, capsys):
    """Commands write one file after another: the disk fails at the first, the second, the third and the fifth.

    What kind of fault it is matters in `host.errors` alone, so one command meets them all.
    """
    for at, number in FAULTS if name == "data phantom" else FAULTS[::3]:
        if at == "open" or name not in NOT_BY_PYTHON:
            tried = (fail(COMMANDS[name], inputs, tmp_path, number, at, skip, capsys) for skip in (0, 1, 2, 4))
            assert list(itertools.takewhile(bool, tried))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_failing_disk_under_slow_commands(name, inputs, tmp_path, capsys):
    first = int(name not in ("report", "answer"))  # which write one file
    assert fail(SLOW[name], inputs, tmp_path, errno.EDQUOT, "write", first, capsys)
    assert fail(SLOW[name], inputs, tmp_path, errno.ENFILE, "open", 0, capsys)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EIO])
def test_a_file_that_a_fault_of_the_machine_hides_is_not_set_aside_as_bad(number, tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(b"x")

    def fault(*_, **__):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fault)
        with pytest.raises(RunStopped, match=rf"a\.png: cannot be read \({os.strerror(number)}\)"):
            read_file(path, max_bytes=10)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "absent.png", max_bytes=10)


@pytest.mark.parametrize("name", ["sync", "conformance"])
def test_a_command_that_only_reads_stops_at_a_failing_disk(name, tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "golden.npz", a=np.ones(3))

    def failing(opened):
        def fault(path, *arguments, **named):
            if str(path).endswith("golden.npz"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return opened(path, *arguments, **named)

        return fault

    for module in (os, builtins):
        monkeypatch.setattr(module, "open", failing(module.open))
    main, arguments = conformance.main, [str(tmp_path / "golden.npz")]
    if name == "sync":
        main, arguments = sync.main, [str(tmp_path), new_address(monkeypatch)]
    with pytest.raises(SystemExit) as ended:
        run_tool(lambda: main(arguments))
    (said,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, said.startswith("stopped: "), "golden.npz: " in said) == (3, True, True)
    assert os.strerror(errno.EIO) in said


def test_an_output_that_a_full_disk_takes_no_more_of_is_one_line():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run([sys.executable, "-m", "stepcot_jax"], stdout=full, stderr=subprocess.PIPE, text=True)
    (said,) = done.stderr.splitlines()
    assert (done.returncode, said.startswith("stopped: "), "the standard output" in said) == (3, True, True)


def test_an_error_that_a_failing_disk_caused_is_not_blamed_on_the_input(capsys):
    def main(number):
        try:
            raise OSError(number, os.strerror(number))
        except OSError as error:
            raise BadInput(f"--out: cannot be written ({error.strerror})") from None

    for number, code in ((errno.ENOSPC, 3), (errno.EACCES, 2), (errno.ENOTDIR, 2)):
        with pytest.raises(SystemExit) as ended:
            run_tool(lambda number=number: main(number))
        assert ended.value.code == code
    assert capsys.readouterr().err.splitlines()[0].startswith("stopped: --out: cannot be written (No space left")


CHILD = (
    "import resource, sys; import numpy as np; from stepcot_jax.host.array_files import save_safetensors; "
    "from stepcot_jax.host.errors import run_tool; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
    "run_tool(lambda: save_safetensors(sys.argv[1], {'a': np.zeros(1000)}))"
)


def test_safetensors_on_a_full_disk(tmp_path):
    """They are written by a library in Rust, whose errors are not the system's."""
    path = tmp_path / "a.safetensors"
    done = subprocess.run([sys.executable, "-c", CHILD, path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, f"stopped: {path}: the disk failed (File too large)\n")
    save_safetensors(path, {"a": np.arange(6).reshape(2, 3).T})
    np.testing.assert_array_equal(safetensors.numpy.load_file(path)["a"], [[0, 3], [1, 4], [2, 5]])
