"""Scripts run with a PATH of their own, in which nothing reaches a cloud or a cluster."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

LAUNCH = pathlib.Path(__file__).parents[2] / "launch"


@pytest.fixture
def tools(tmp_path):
    """A folder first on the PATH: what a script must not call for real stands here as a program that fails."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("gcloud", "kubectl", "docker", "srun", "scancel", "scontrol", "sbatch"):
        _write_program(folder / name, 'echo "$0 was called" >&2; exit 99')
    return folder


def _write_program(path, text):
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def put(tools):
    return lambda name, text: _write_program(tools / name, text)


@pytest.fixture
def python(tmp_path):
    """A stand-in for the interpreter: `-m stepcot_jax.main` is what `program` was given, all else the real one."""
    path = tmp_path / "python"

    def program(text):
        (tmp_path / "program.py").write_text(text)
        _write_program(
            path, f'if [[ $1 == -m ]]; then shift; set -- {tmp_path}/program.py "$@"; fi; exec {sys.executable} "$@"'
        )
        return path

    return program


@pytest.fixture
def launch(tools, tmp_path):
    """Start a script: `launch(name, *arguments, VARIABLE=value)` gives the running process."""
    started = []

    def start(name, *arguments, **variables):
        kept = {name: os.environ[name] for name in ("LANG", "HOME") if name in os.environ}
        kept["VIRTUAL_ENV"] = "/an/active/one"  # so that scripts start `python3`, also in a clone with its .venv
        environment = {**kept, "PATH": f"{tools}:{os.environ['PATH']}", **{k: str(v) for k, v in variables.items()}}
        process = subprocess.Popen(
            ["bash", str(LAUNCH / name), *arguments],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with what the script started: it holds the pipes open
            process.communicate(timeout=60)


@pytest.fixture
def run(launch):
    """Run a script to its end: (exit code, stdout, stderr)."""

    def run_to_end(name, *arguments, **variables):
        process = launch(name, *arguments, **variables)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    return run_to_end


@pytest.fixture
def wait_for():
    def wait(condition, seconds=20.0):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "nothing happened"
            time.sleep(0.05)

    return wait
