"""The TPU scripts: a worker's program for real, and a pod against a cloud of files."""

import json
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
  *" describe "*)
    if [[ -e slice ]]; then cat slice; sed -i s/WAITING.*/ACTIVE/ slice; else echo "ERROR: NOT_FOUND" >&2; exit 1; fi ;;
  *"queued-resources create "*) echo WAITING_FOR_RESOURCES >slice; echo none >worker; cp worker worker_1 ;;
  *"uv pip install"*) touch installed ;;
  *" create "*) echo READY >slice; echo none >worker; cp worker worker_1; rm -f started ;;
  *" delete "*) rm slice ;;
  *"tpu_worker.sh status"*) # what the workers do next is written in `fates`, a line a look
    [[ ${QUEUED:-} != 1 || -e installed ]] || exit 127
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


def test_watch_waits_for_a_queued_slice_and_installs_once_it_is_granted(watch):
    code, err, calls = watch("exit 0,exit 0", QUEUED=1)
    assert code == 0, err
    assert "slice is WAITING_FOR_RESOURCES" in err
    assert (calls.count("queued-resources create pod"), calls.count("uv pip install")) == (1, 1)
    assert calls.index("value(state.state)") < calls.index("create") < calls.index("uv pip install")


def test_watch_does_not_take_an_older_run_for_its_own(watch):
    (watch.state / "slice").write_text("READY\n")
    for name in ("worker", "worker_1"):
        (watch.state / name).write_text("exit 2\n")
    code, err, calls = watch("exit 0,exit 0")
    assert code == 0, err
    assert calls.count("tpu_worker.sh start") == 1


SECRETS = {
    "HF_TOKEN": "hf_'a b'",
    "JUDGE_KEY": 'k "$HOME" `id` \\ \n second line\t',
    "XLA_FLAGS": "--a=1 --b",
    "EMPTY": "",
}
SECRETS |= {"WANDB_API_KEY": "$(touch injected) ; ä\n", "http_proxy": "-e x"}
WORKER = """
import json, os, pathlib
parent, chain = os.getpid(), []
while parent > 1:
    chain.append(pathlib.Path(f"/proc/{parent}/cmdline").read_bytes().decode())
    parent = int(pathlib.Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
pathlib.Path("../found").write_text(json.dumps([dict(os.environ), chain]))
"""


def test_values_reach_the_program_and_are_in_no_argument_and_no_output(run, put, python, wait_for, tmp_path):
    """gcloud as one worker whose home is a folder: its shell and tpu_worker.sh are real."""
    home = tmp_path / "home"
    (home / "stepcot/.venv/bin").mkdir(parents=True)
    (home / "stepcot/launch").symlink_to(pathlib.Path(__file__).parents[2] / "launch")
    (home / "stepcot/.venv/bin/python").symlink_to(python(WORKER))
    gcloud = r"""
printf '%s\n' "$@" >>"$CALLS"
if [[ $4 == scp ]]; then stat -c %a "$5" >>"$CALLS"; cp -p "$5" "$WORKER_HOME/${6#pod:}"; exit; fi
for last; do :; done
cd "$WORKER_HOME" && exec env -i HOME="$WORKER_HOME" PATH="$PATH" bash -c "${last#--command=}"
"""
    put("gcloud", gcloud)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    more = {"CALLS": tmp_path / "calls", "WORKER_HOME": home, "TMPDIR": temporary, "CACHE": "/mnt/compiled"}
    for _ in range(2):  # a restart sends them again
        code, out, err = run("tpu_pod.sh", "run", **POD, **SECRETS, **more, ENV=" ".join(SECRETS))
        assert (code, out, err) == (0, "", "")
        wait_for((home / "stepcot-run/exit_code").exists)
    assert (home / "stepcot-run/exit_code").read_text() == "0\n"
    environment, chain = json.loads((home / "found").read_text())
    assert {name: environment[name] for name in SECRETS} == SECRETS
    assert environment["JAX_COMPILATION_CACHE_DIR"] == "/mnt/compiled"
    calls = (tmp_path / "calls").read_text()
    assert calls.splitlines().count("600") == 2
    for shown in (calls, *chain, (home / "stepcot-run/log").read_text()):
        for part in ("hf_", "id`", "second line", "--b", "touch", "ä"):
            assert part not in shown
    assert not list(temporary.iterdir())
    assert {path.name for path in home.iterdir()} == {"stepcot", "stepcot-run", "found"}
    assert not list(tmp_path.rglob("injected"))


def test_a_worker_without_the_file_of_values_starts_nothing(run, tmp_path):
    state = {"RUN_FOLDER": tmp_path / "state", "ENV_FILE": tmp_path / "none"}
    code, _, err = run("tpu_worker.sh", "start", "true", **state)
    assert (code, "ENV_FILE" in err) == (2, True)


def test_the_image_has_what_the_command_needs():
    """A Dockerfile cannot be built here: what it copies must at least be there."""
    root = pathlib.Path(__file__).parents[2]
    lines = (root / "launch" / "Dockerfile").read_text().splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert {"stepcot_jax", "configs", "pyproject.toml"} <= set(copied)
    for name in copied:
        assert (root / name).exists()
    assert lines[-1] == 'ENTRYPOINT ["python", "-m", "stepcot_jax.main"]'
