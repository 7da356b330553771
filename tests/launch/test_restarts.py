import signal

import pytest

RUN = {"CONFIG": "config.py", "WORKDIR": "run"}
SLURM = {**RUN, "SLURM_JOB_ID": "71", "SLURM_NTASKS": "4"}
CODES = """
import pathlib, sys
starts = pathlib.Path("starts")
with starts.open("a") as file:
    print(*sys.argv[1:], file=file)
sys.exit(int({codes}[len(starts.read_text().splitlines()) - 1]))
"""
WAIT = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))
with pathlib.Path("starts").open("a") as file:
    print("start", file=file)
while True:
    time.sleep(0.05)
"""


def starts(tmp_path):
    path = tmp_path / "starts"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("codes", "code", "num_starts"),
    [([0], 0, 1), ([75, 75, 0], 0, 3), ([75, 2], 2, 2), ([3], 3, 1), ([75, 75, 75, 75], 75, 3)],
)
def test_gpu_starts_a_preempted_run_again(run, python, tmp_path, codes, code, num_starts):
    program = python(CODES.format(codes=codes))
    found, _, err = run("gpu.sh", "--config.seed=1", **RUN, PYTHON=program, RESTART_SECONDS=0, MAX_RESTARTS=2)
    assert found == code
    assert starts(tmp_path) == ["stepcot_jax.main --config=config.py --workdir=run --config.seed=1"] * num_starts
    assert err.count("preempted") == num_starts - 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_gpu_passes_a_signal_on_and_does_not_start_again(launch, python, tmp_path, wait_for, number):
    process = launch("gpu.sh", **RUN, PYTHON=python(WAIT.format(code=75)), RESTART_SECONDS=0)
    wait_for(lambda: starts(tmp_path))
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 75
    assert len(starts(tmp_path)) == 1


@pytest.fixture
def cluster(put, tmp_path):
    """srun runs one task; scancel signals it; scontrol writes down what it was asked."""
    put(
        "srun",
        f'echo "$@" >>{tmp_path}/srun; while [[ $1 != env ]]; do shift; done; echo $$ >{tmp_path}/task; exec "$@"',
    )
    put("scancel", f'echo "$@" >>{tmp_path}/scancel; kill -TERM "$(cat {tmp_path}/task)"')
    put("scontrol", f'echo "$@" >>{tmp_path}/scontrol')

    def asked(name):
        path = tmp_path / name
        return path.read_text().splitlines() if path.exists() else []

    return asked


@pytest.mark.parametrize(("code", "requeued"), [(0, []), (2, []), (3, []), (75, ["requeue 71"])])
def test_slurm_puts_a_preempted_job_back(run, python, cluster, tmp_path, code, requeued):
    found, _, _ = run("slurm.sbatch", **SLURM, PYTHON=python(CODES.format(codes=[code])))
    assert found == code
    assert cluster("scontrol") == requeued
    assert cluster("srun")[0].startswith("--kill-on-bad-exit=1 --gpu-bind=none env JAX_PLATFORMS=cuda,cpu ")
    assert starts(tmp_path) == ["stepcot_jax.main --config=config.py --workdir=run --num_processes=4"]


def test_slurm_gives_up_after_so_many_times(run, python, cluster):
    variables = {**SLURM, "SLURM_RESTART_COUNT": 3, "MAX_REQUEUES": 3}
    found, _, err = run("slurm.sbatch", **variables, PYTHON=python(CODES.format(codes=[75])))
    assert (found, cluster("scontrol")) == (75, [])
    assert "requeued 3 times already" in err


@pytest.mark.parametrize(
    ("number", "code", "requeued"),
    [(signal.SIGUSR1, 75, ["requeue 71"]), (signal.SIGTERM, 137, ["requeue 71"]), (signal.SIGTERM, 3, [])],
)
def test_slurm_passes_a_notice_on(launch, python, cluster, tmp_path, wait_for, number, code, requeued):
    process = launch("slurm.sbatch", **SLURM, PYTHON=python(WAIT.format(code=code)))
    wait_for(lambda: starts(tmp_path))
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert cluster("scancel") == ["--signal=TERM 71"]
    assert cluster("scontrol") == requeued
