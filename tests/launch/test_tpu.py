"""The TPU scripts: a worker's program for real, and a pod against a cloud of files."""

import os
import pathlib
import signal
import sys

import pytest

POD = {"TPU_NAME": "pod", "ZONE": "z", "ACCELERATOR_TYPE": "v5litepod-8", "RUNTIME_VERSION": "r"}
POD |= {"CONFIG": "config.py", "WORKDIR": "/mnt/stepcot/run", "NUM_WORKERS": "2", "POLL_SECONDS": "0"}


@pytest.fixture
def worker(run, tmp_path):
    def call(action, *command, grace=20):
        return run("tpu_worker.sh", action, *command, RUN_FOLDER=tmp_path / "state", GRACE_SECONDS=grace)

    yield call
    call("stop", grace=0)


def status(worker):
    code, out, _ = worker("status")
    assert code == 0
    return out.strip().removeprefix("stepcot-status: ")


def test_a_worker_holds_a_program_to_its_end(worker, wait_for, tmp_path):
    assert status(worker) == "none"
    program = (
        "import pathlib, sys, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)\nsys.exit(print('x') or 7)"
    )
    assert worker("start", sys.executable, "-u", "-c", program)[0] == 0
    wait_for(lambda: status(worker) == "running")
    code, _, err = worker("start", "true")
    assert code == 2
    assert "a program is already running" in err
    (tmp_path / "go").touch()
    wait_for(lambda: status(worker) == "exit 7")
    assert (tmp_path / "state" / "log").read_text() == "x\n"
    assert worker("start", "true")[0] == 0  # what has ended makes room
    wait_for(lambda: status(worker) == "exit 0")


@pytest.mark.parametrize(("reaction", "grace", "found"), [("sys.exit(75)", 20, "exit 75"), ("None", 1, "lost")])
def test_a_worker_is_stopped(worker, wait_for, tmp_path, reaction, grace, found):
    program = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: {reaction})\npathlib.Path('ready').touch()\n"
        "while True: time.sleep(0.05)"
    )
    worker("start", sys.executable, "-c", program)
    wait_for((tmp_path / "ready").exists)
    assert worker("stop", grace=grace)[0] == 0
    assert status(worker) == found


def test_a_worker_whose_machine_was_started_anew_is_lost(worker, wait_for, tmp_path):
    worker("start", "sleep", "60")
    wait_for(lambda: status(worker) == "running")
    os.killpg(int((tmp_path / "state" / "pid").read_text()), signal.SIGKILL)
    wait_for(lambda: status(worker) == "lost")
    (tmp_path / "state" / "pid").write_text(f"{os.getpid()}\n")  # the number belongs to another program now
    assert status(worker) == "lost"


CLOUD = r"""
cd "$STATE"
echo "$@" >>calls
case "$*" in
  *" describe "*) if [[ -e slice ]]; then cat slice; else echo "ERROR: NOT_FOUND" >&2; exit 1; fi ;;
  *" create "*) echo READY >slice; echo none >worker; cp worker worker_1; rm -f started ;;
  *" delete "*) rm slice ;;
  *"tpu_worker.sh status"*) # what the workers do next is written in `fates`, a line a look
    if [[ -s fates && -e started ]]; then
      IFS=, read -r first second <fates; sed -i 1d fates
      if [[ $first == PREEMPTED ]]; then echo PREEMPTED >slice; exit 255; fi
      echo "$first" >worker; echo "$second" >worker_1
    fi
    echo "stepcot-status: $(cat worker)"; echo "worker 1 says stepcot-status: $(cat worker_1)" ;;
  *"tpu_worker.sh stop"*) ;;
  *"tpu_worker.sh start"*) echo running >worker; echo running >worker_1; touch started ;;
  *) ;;
esac
"""


@pytest.fixture
def watch(run, put, tmp_path):
    state = tmp_path / "cloud"
    state.mkdir()
    put("gcloud", CLOUD)
    put("git", 'case "$*" in *rev-parse*) echo abc ;; esac')

    def until_over(*fates, **variables):
        (state / "fates").write_text("".join(f"{fate}\n" for fate in fates))
        code, _, err = run("tpu_pod.sh", "watch", **POD, STATE=state, **variables)
        return code, err, (state / "calls").read_text()

    until_over.state = state
    return until_over


@pytest.mark.parametrize(
    ("fates", "expected", "num_starts", "num_pods", "words"),
    [
        (["running,running", "exit 0,running", "exit 0,exit 0"], 0, 1, 1, ""),
        (["exit 75,exit 75", "running,lost", "lost,exit 134", "PREEMPTED", "exit 0,exit 0"], 0, 4, 2, ""),
        (["exit 2,running"], 2, 1, 1, "exit code 2"),
        (["exit 75,exit 3"], 3, 1, 1, "exit code 3"),
        (["exit 3,exit 2"], 2, 1, 1, "exit code 2"),
        (["exit 75,exit 75"] * 9, 2, 5, 1, "after 4 restarts"),
    ],
)
def test_watch_makes_a_pod_starts_again_after_a_preemption_and_ends_with_the_run(
    watch, fates, expected, num_starts, num_pods, words
):
    code, err, calls = watch(*fates, MAX_RESTARTS=4)
    assert code == expected, err
    assert words in err
    assert calls.count("tpu_worker.sh start") == num_starts
    assert (calls.count(" create pod"), calls.count(" delete pod")) == (num_pods, num_pods - 1)
    assert calls.count("uv pip install") >= num_pods  # also after a worker was lost
    assert "--num_processes=2" in calls
    assert not words.startswith("exit") or "tpu_worker.sh stop" in calls.splitlines()[-1]


def test_watch_does_not_take_an_older_run_for_its_own(watch):
    (watch.state / "slice").write_text("READY\n")
    for name in ("worker", "worker_1"):
        (watch.state / name).write_text("exit 2\n")
    code, err, calls = watch("exit 0,exit 0")
    assert code == 0, err
    assert calls.count("tpu_worker.sh start") == 1


def test_the_image_has_what_the_command_needs():
    """A Dockerfile cannot be built here: what it copies must at least be there."""
    root = pathlib.Path(__file__).parents[2]
    lines = (root / "launch" / "Dockerfile").read_text().splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert {"stepcot_jax", "configs", "pyproject.toml"} <= set(copied)
    for name in copied:
        assert (root / name).exists()
    assert lines[-1] == 'ENTRYPOINT ["python", "-m", "stepcot_jax.main"]'
