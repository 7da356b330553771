"""Processes and signals: joining a run of several processes, agreeing among them, and preemption."""

import contextlib
import itertools
import os
import pathlib
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from stepcot_jax.host.errors import EXIT_BAD_INPUT, BadInput, Preempted

JOIN_SECONDS = 300
"""How long a process waits for the others at the start."""

_EXTRAS = {"cuda": "cuda12", "tpu": "tpu"}
_MOST_SECONDS = 7 * 24 * 3600
_NUM_WAITS = itertools.count()
_LOOKS = 30
"""Network file systems may show a new file half a minute late."""


def join_processes(
    *,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Join the processes of a run, if there are several; call it before any computation.

    TPU pods and Slurm provide the number of processes and the rank. Elsewhere all three arguments are required, or the
    variables STEPCOT_COORDINATOR, STEPCOT_NUM_PROCESSES and STEPCOT_PROCESS_ID.
    """
    coordinator = coordinator or environment.get("STEPCOT_COORDINATOR") or None
    num_processes = _number(num_processes, "STEPCOT_NUM_PROCESSES", environment, least=1)
    process_id = _number(process_id, "STEPCOT_PROCESS_ID", environment, least=0)
    if coordinator is None and process_id is not None:
        raise BadInput("--coordinator is required with --process_id (HOST:PORT of process 0)")
    if coordinator is not None:
        if num_processes is None or process_id is None:
            raise BadInput("--coordinator requires --num_processes and --process_id")
        if process_id >= num_processes:
            raise BadInput(f"--process_id: {process_id} is not 0 to {num_processes - 1}")
        if num_processes > 1:
            _initialize(coordinator, num_processes=num_processes, process_id=process_id)
    elif is_cluster(environment) or (num_processes or 1) > 1:  # a TPU VM tells jax by its metadata server alone
        _note_missing_srun(environment)
        _initialize("the platform's coordinator")
    _require_accelerator(environment)
    if num_processes is not None and jax.process_count() != num_processes:
        raise BadInput(
            f"--num_processes: {num_processes} expected, {jax.process_count()} joined; on platforms that "
            "do not report their processes, --coordinator and --process_id are required too"
        )


def _require_accelerator(environment: Mapping[str, str]) -> None:
    """Refuse another backend than the first of JAX_PLATFORMS: jax skips "cuda" where it sees no NVIDIA device."""
    asked = environment.get("JAX_PLATFORMS", "").split(",")[0].strip().lower()
    if asked in ("", "cpu"):
        return
    try:
        backend = jax.default_backend()
    except (RuntimeError, AssertionError):
        backend = "none"
    if backend != {"cuda": "gpu", "rocm": "gpu"}.get(asked, asked):
        raise BadInput(
            f"JAX_PLATFORMS={environment['JAX_PLATFORMS']}: no {asked} device (backend: {backend}); check the driver, "
            f"the extra {_EXTRAS.get(asked, asked)!r} and the visible devices; JAX_PLATFORMS=cpu computes on the CPU"
        )
    # Under Slurm a process has one GPU of those that are visible, or those of JAX_LOCAL_DEVICE_IDS.
    name = "JAX_LOCAL_DEVICE_IDS" if is_cluster(environment) else "CUDA_VISIBLE_DEVICES"
    if backend == "gpu" and (visible := environment.get(name, "")):
        number = len([gpu for gpu in visible.split(",") if gpu.strip()])
        if jax.local_device_count() < number:
            raise BadInput(f"{name}={visible}: names {number} GPUs, found {jax.local_device_count()} on this machine")


def is_cluster(environment: Mapping[str, str]) -> bool:
    """Return whether the platform reports several processes: Slurm, or a TPU pod."""
    return (
        (
            int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or 1) > 1
            and "SLURM_PROCID" in environment
        )
        or "," in environment.get("TPU_WORKER_HOSTNAMES", "")
        or "MEGASCALE_COORDINATOR_ADDRESS" in environment
    )


def _note_missing_srun(environment: Mapping[str, str]) -> None:
    """Say at once what a process waits for that has Slurm's variables and was not started by srun."""
    number = environment.get("SLURM_NTASKS", "")
    if "SLURM_STEP_NUM_TASKS" not in environment and number.isdecimal() and int(number) > 1:
        print(
            f"waiting for {int(number) - 1} more processes of Slurm's {number} (SLURM_NTASKS); start with srun",
            file=sys.stderr,
            flush=True,
        )


@contextlib.contextmanager
def _ending_in_time(message: str) -> Iterator[None]:
    """End the process with one line and code 2 if the block takes `JOIN_SECONDS`: jax itself would abort in C++."""

    def end() -> None:
        print(f"error: {message}", file=sys.stderr, flush=True)
        os._exit(EXIT_BAD_INPUT)

    timer = threading.Timer(JOIN_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _initialize(where: str, *, num_processes: int | None = None, process_id: int | None = None) -> None:
    address = where if num_processes is not None else None
    expected = (
        f"expected an address that all of them reach, each started with another --process_id within {JOIN_SECONDS} s "
        "(under Slurm by srun)"
    )
    try:
        with _ending_in_time(f"{where}: the processes did not join; {expected}"):
            jax.distributed.initialize(
                address,
                num_processes=num_processes,
                process_id=process_id,
                initialization_timeout=2 * JOIN_SECONDS,
            )
    except (RuntimeError, ValueError) as error:
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BadInput(f"{where}: the processes did not join ({first_line}); {expected}") from None


def _number(given: int | None, name: str, environment: Mapping[str, str], *, least: int) -> int | None:
    text = str(given) if given is not None else environment.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or int(text) < least:
        raise BadInput(f"{name}: {text!r} is not a whole number from {least}")
    return int(text)


def is_first() -> bool:
    """Return whether this is process 0, which writes logs, tables and pictures."""
    return jax.process_index() == 0


def any_process(condition: bool) -> bool:
    """Return whether a condition holds in any process; collective."""
    if jax.process_count() == 1:
        return condition
    return bool(np.any(multihost_utils.process_allgather(np.array(condition))))


def wait_for_all(name: str) -> None:
    """Wait for every process, up to a week: collectives themselves time out after half a minute at first (Gloo)."""
    if jax.process_count() > 1:
        multihost.get_barrier_sync_fn()(key=f"{name}-{next(_NUM_WAITS)}", timeout_ms=1000 * _MOST_SECONDS)


def all_agree(number: int) -> bool:
    """Return whether all processes have the same number, 0 to 2^31 - 1; collective."""
    if jax.process_count() == 1:
        return True
    return len(np.unique(multihost_utils.process_allgather(np.array(number, np.int32)))) == 1


def gather_on_first(tree: Any) -> Any:
    """Return a tree with undivided arrays on the first host, None in others, which never hold them; collective."""
    keeps = is_first()

    def gather(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            full = multihost_utils.process_allgather(leaf, tiled=True)
            return full if keeps else None
        if not keeps:
            return None
        is_divided = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        return np.asarray(leaf.addressable_data(0) if is_divided else leaf)

    gathered = jax.tree.map(gather, tree)
    return gathered if keeps else None


def check_shared(folder: pathlib.Path) -> None:
    """Refuse a folder that is not the same in all processes; collective."""
    if jax.process_count() == 1:
        return
    wait_for_all("processes")
    token = multihost_utils.broadcast_one_to_all(np.array(secrets.randbits(31), np.int32))
    mark = folder / f".shared-{int(token)}"
    if is_first():
        mark.touch()
    wait_for_all("workdir")
    looks = 0
    while not (is_seen := mark.exists()) and looks < _LOOKS:
        looks += 1
        time.sleep(1)
    sees, processes = multihost_utils.process_allgather((np.array(is_seen), np.array(jax.process_index())))
    if is_first():
        mark.unlink(missing_ok=True)
    if not sees.all():
        raise BadInput(
            f"{folder}: processes {sorted(processes[~sees].tolist())} do not see the files of process 0; the folder "
            "must be on a file system that all processes share"
        )


class Preemption:
    """Handles SIGTERM, which Slurm, Kubernetes and cloud hosts send before preemption.

    Inside `patience` the signal is remembered, and the loop saves a checkpoint at the next batch. Elsewhere the latest
    state is on disk already, and the run ends at once.
    """

    def __init__(self) -> None:
        self.asked = False
        self._patient = False

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Handle SIGTERM inside the context, in the main thread; Python allows no other."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextlib.contextmanager
    def patience(self) -> Iterator[None]:
        """Defer SIGTERM inside the context, so that the loop can save a checkpoint first."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False

    def _hear(self, signal_number: int, frame: Any) -> None:  # noqa: ARG002 (signature of a signal handler)
        self.asked = True
        if not self._patient:
            raise Preempted("ended by SIGTERM outside of training; the same command resumes")
