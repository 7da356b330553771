import contextlib
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import pytest
from run.small_run import SIZES

from stepcot_jax.host.errors import BadInput
from stepcot_jax.training import processes

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[2]
RUN = {"CONFIG": str(ROOT / "configs/quickstart.py"), "WORKDIR": "run"}
RUN |= {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
TASK = {"SLURM_PROCID": "0", "SLURM_NTASKS": "3"}
NO_GPU = pytest.mark.skipif(pathlib.Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
MISSING = "JAX_PLATFORMS=cuda,cpu: no cuda device"


@NO_GPU
def test_a_script_without_a_gpu_ends_with_2(run, tmp_path):
    code, _, err = run("gpu.sh", **RUN)
    assert (code, MISSING in err) == (2, True), err
    assert not (tmp_path / "run/settings.json").exists()


@pytest.mark.parametrize(
    ("backend", "variables", "words"),
    [
        ("cpu", {}, None),
        ("cpu", {"JAX_PLATFORMS": "cpu"}, None),
        ("gpu", {"JAX_PLATFORMS": "cuda,cpu", "CUDA_VISIBLE_DEVICES": "0,3"}, None),
        ("tpu", {"JAX_PLATFORMS": "tpu,cpu"}, None),
        ("cpu", {"JAX_PLATFORMS": "tpu,cpu"}, r"no tpu device \(backend: cpu\)"),
        ("cpu", {"JAX_PLATFORMS": "rocm"}, "no rocm device"),
        # CUDA ends its list at the first id that does not exist.
        ("gpu", {"JAX_PLATFORMS": "cuda,cpu", "CUDA_VISIBLE_DEVICES": "0,3,9"}, "names 3 GPUs, found 2"),
        # Slurm names all GPUs of the node, of which each task takes its own.
        ("gpu", {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": "0,1,2"} | TASK, None),
        ("gpu", {"JAX_PLATFORMS": "cuda", "JAX_LOCAL_DEVICE_IDS": "0,1"} | TASK, None),
        ("gpu", {"JAX_PLATFORMS": "cuda", "JAX_LOCAL_DEVICE_IDS": "0,1,2"} | TASK, "IDS=0,1,2: names 3 GPUs, found 2"),
    ],
)
def test_the_backend_is_the_one_that_was_asked_for(monkeypatch, backend, variables, words):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "local_device_count", lambda: 2)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: None)
    with pytest.raises(BadInput, match=words) if words else contextlib.nullcontext():
        processes.join_processes(environment=variables)


def test_one_task_a_node_owns_its_gpus_and_divides_parameters_among_them(run, put, python, tmp_path):
    """jax joins for real, with four CPU devices in the place of each node's GPUs."""
    put(
        "srun",
        """while [[ $1 != env ]]; do shift; done
export SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=localhost SLURM_LOCALID=0
for SLURM_PROCID in 0 1; do export SLURM_PROCID; "$@" & tasks+=($!); done
for task in "${tasks[@]}"; do wait "$task" || exit; done""",
    )
    program = python("""
import os, pathlib
os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
import jax
from stepcot_jax.training import devices, processes
processes.join_processes(num_processes=2)
mesh = devices.MeshDevices(None, model_devices=4).mesh
rows = [sorted({device.process_index for device in row}) for row in mesh.devices]
visible = jax.config.read("jax_cuda_visible_devices")
pathlib.Path(f"found_{jax.process_index()}").write_text(f"{visible} {dict(mesh.shape)} {rows}")
""")
    slurm = {"SLURM_JOB_ID": os.getpid() % 4096, "SLURM_NTASKS": 2, "SLURM_NNODES": 2, "SLURM_GPUS_ON_NODE": 4}
    code, _, err = run("slurm.sbatch", **RUN | slurm | {"PYTHON": program})
    assert code == 0, err
    for process in (0, 1):
        found = (tmp_path / f"found_{process}").read_text()
        assert found == "0,1,2,3 {'data': 2, 'model': 4} [[0], [1]]"


def test_a_user_without_a_home_trains(tmp_path):
    """As the image's entry point under Kubernetes: uid 1000, HOME=/, and nothing below / can be written."""
    if os.getuid() or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv (Debian: util-linux)")
    work = tmp_path / "work"
    work.mkdir()
    os.chown(work, 1000, 1000)
    for parent in (work, *work.parents):  # pytest's own folders are root's alone
        if parent.stat().st_mode & 0o777 == 0o700:
            parent.chmod(0o711)
    as_user = [
        *("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"),
        # Reading the interpreter and this checkout, which may lie in root's home; writing is refused as ever.
        *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", sys.executable),
    ]
    dropped = ("XDG_", "JAX_COMPILATION")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    variables = {**kept, "HOME": "/", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(work)}

    def start(*arguments):
        command, how = [*as_user, *arguments], {"capture_output": True, "text": True, "timeout": 400}
        done = subprocess.run(command, env=variables, cwd=work, **how)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()

    code = "from stepcot_jax.extras.cloud.copies import _cache_folder; print(_cache_folder('runs'))"
    assert pathlib.Path(start("-c", code)).parent == work / "stepcot_jax-1000"
    settings = SIZES | {"parallel.num_devices": 1, "job": "baseline", "baseline.epochs": 1}
    flags = [f"--config.{name}={value}" for name, value in settings.items()]
    start("-m", "stepcot_jax.main", "--config=quickstart", f"--workdir={work / 'run'}", *flags)
    assert (work / "run/report.json").exists()


def test_slurms_variables_without_srun_are_named_at_once_and_end_with_2():
    """jax would be silent for five minutes and then abort in C++."""
    code = (
        "import stepcot_jax.training.processes as p; from stepcot_jax.host.errors import run_tool; p.JOIN_SECONDS = 3; "
        "run_tool(p.join_processes)"
    )
    names = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    names |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_NODELIST": "localhost", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | names, capture_output=True, text=True)
    first, last = done.stderr.splitlines()
    assert (done.returncode, first) == (2, "waiting for 3 more processes of Slurm's 4 (SLURM_NTASKS); start with srun")
    assert last.startswith("error: the platform's coordinator: the processes did not join")


@NO_GPU
def test_every_command_names_a_platform_that_is_missing():
    code = "import jax; from stepcot_jax.host.errors import run_tool; run_tool(jax.devices)"
    environment = os.environ | {"JAX_PLATFORMS": "cuda"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "error: no GPU found (JAX_PLATFORMS=cuda); JAX_PLATFORMS=cpu computes on the CPU",
    )
