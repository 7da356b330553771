"""A Ray cluster on this machine, of three logical cores, for the tests of the extra `ray`."""

import contextlib
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[1]
_NUM_STARTS = 6  # a busy machine may take longer than the 30 seconds after which Ray gives up


@contextlib.contextmanager
def run_cluster():
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    environment.pop("RAY_ADDRESS", None)
    # A token of this cluster's own, so that head and drivers agree on one.
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        process, address = _start(folder, environment)
        try:
            yield {**environment, "RAY_ADDRESS": address}
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # Ray's own end takes half a minute
            process.wait()


def _start(folder, environment):
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0", "--num-cpus=3"]
    command += ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"]
    printed = ""
    for _ in range(_NUM_STARTS):
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        printed = ""
        for line in process.stdout:
            printed += line
            if found := re.search(r"--address='?([\d.]+:\d+)", printed):
                threading.Thread(target=process.stdout.read, daemon=True).start()
                return process, found[1]
        process.wait()
    raise AssertionError(printed)
