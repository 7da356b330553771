"""Speed, compile time and memory of the joint step, on stored features at the published sizes."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.measure import make_sgemm, peak_megabytes, sgemm_gflop, time_in_turn
from benchmarks.plain import PlainTeacher, make_plain_optimizer
from stepcot_jax.host.machine import release_freed_memory
from stepcot_jax.losses.step_cot import Objective
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.systems.networks import Networks, init_params
from stepcot_jax.systems.updates import make_joint_update, start_state
from stepcot_jax.training.optimizers import make_optimizer

ANSWERS = (4, 4, 6, 7, 5, 7, 9)
IMAGE_WIDTH, TEXT_WIDTH = 512, 768
BATCH_SIZES = (8, 32, 128, 256)

_TEACHERS: dict[str, Callable[[], Any]] = {
    "": lambda: Teacher(ANSWERS),
    "plain": lambda: PlainTeacher(ANSWERS),
    "unrolled": lambda: Teacher(ANSWERS, unroll=True),
}


def make_batch(batch_size: int) -> dict[str, jax.Array]:
    """Return random features and labels."""
    features = jax.random.normal(jax.random.key(1), (batch_size, IMAGE_WIDTH))
    labels = jax.random.randint(jax.random.key(2), (batch_size, len(ANSWERS)), 0, 4)
    return {"image_features": features, "labels": labels}


def make_joint(teacher: Any = None, make_optimizer: Any = make_optimizer) -> tuple[Any, Callable[..., Any], jax.Array]:
    """Return state, joint step (which donates the state) and prompt features at the published sizes."""
    networks = Networks(teacher=teacher or Teacher(ANSWERS), student=Student(ANSWERS))
    optimizers = {"teacher": make_optimizer(learning_rate=5e-5), "student": make_optimizer(learning_rate=1e-4)}
    text_features = jax.random.normal(jax.random.key(3), (len(ANSWERS), TEXT_WIDTH))

    def make_state(key: jax.Array) -> Any:
        params = init_params(networks, key=key, batch=make_batch(1), text_features=text_features)
        return start_state(params, Objective(), optimizers, key=key)

    state = jax.jit(make_state)(jax.random.key(0))
    update = make_joint_update(networks, Objective(), optimizers)
    step = jax.jit(lambda state, batch, text: update(state, {**batch, "text_features": text}), donate_argnums=0)
    return state, step, text_features


class JointTask:
    """Consecutive joint steps of one batch size; each call continues from the last state."""

    def __init__(self, batch_size: int) -> None:
        self.state, self.step, self.text_features = make_joint()
        self.batch = make_batch(batch_size)
        self.batch_size = batch_size
        self.num_steps = max(1, 64 // batch_size)

    def __call__(self) -> None:
        """Train on `num_cases` cases."""
        for _ in range(self.num_steps):
            self.state, metrics = self.step(self.state, self.batch, self.text_features)
        jax.block_until_ready((self.state, metrics))

    @property
    def num_cases(self) -> int:
        """Cases that a call trains on."""
        return self.num_steps * self.batch_size


def measure_joint(rounds: int) -> dict[str, float]:
    """Return cases per second and cost of a case for each batch size, compile times and memory."""
    numbers: dict[str, float] = {}
    for batch_size in BATCH_SIZES:
        task = JointTask(batch_size)
        timings = time_in_turn({"sgemm": make_sgemm(), "joint": task}, rounds=rounds, warm_up=2)
        rates = [task.num_cases / seconds for seconds in timings["joint"].seconds]
        costs = [
            sgemm_gflop() / yardstick / rate for yardstick, rate in zip(timings["sgemm"].seconds, rates, strict=True)
        ]
        name = f"joint_b{batch_size}"
        numbers[f"{name}_cases_per_second"] = sorted(rates)[len(rates) // 2]
        numbers[f"{name}_cost_gflop"] = sorted(costs)[len(costs) // 2]
        numbers[f"{name}_spread"] = timings["joint"].spread
    return numbers | measure_compilation(rounds)


def measure_compilation(rounds: int) -> dict[str, float]:
    """Return the seconds to compile the joint step at batch 32, without and with the compilation cache.

    Two teachers whose steps are compiled separately are compared: "plain" is `benchmarks.plain`, the straightforward
    implementation, and "unrolled" is our teacher with its scan unrolled.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ("cold", "warm", "plain", "unrolled")}
    for _ in range(max(1, rounds // 2)):
        with tempfile.TemporaryDirectory() as cache:
            found["cold"].append(_in_new_process({"cache": cache}))
            found["warm"].append(_in_new_process({"cache": cache}))
        for name in ("plain", "unrolled"):
            found[name].append(_in_new_process({"teacher": name}))
    cold, warm, plain, unrolled = (
        {name: statistics.median(each[name] for each in runs) for name in runs[0]} for runs in found.values()
    )
    return {
        "joint_compile_seconds": cold["seconds"],
        "joint_restart_seconds": warm["seconds"],
        "joint_plain_compile_seconds": plain["seconds"],
        "joint_unrolled_compile_seconds": unrolled["seconds"],
        "joint_compile_vs_plain": cold["seconds"] / plain["seconds"],
        "joint_compile_vs_unrolled": cold["seconds"] / unrolled["seconds"],
        "joint_restart_vs_compile": warm["seconds"] / cold["seconds"],
        "joint_peak_megabytes": cold["megabytes"],
    }


def _in_new_process(arguments: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.joint", *(f"{name}={value}" for name, value in arguments.items())]
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)  # noqa: S603
    return json.loads(found.stdout.splitlines()[-1])


def _compile_once(arguments: dict[str, str]) -> dict[str, float]:
    """Return the seconds from the step function to its executable, and the memory after ten steps."""
    if "cache" in arguments:
        jax.config.update("jax_compilation_cache_dir", arguments["cache"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    name = arguments.get("teacher", "")
    state, step, text_features = make_joint(
        _TEACHERS[name](), make_plain_optimizer if name == "plain" else make_optimizer
    )
    jax.block_until_ready(state)
    release_freed_memory()  # here and after the compilation, as in a run
    batch = make_batch(32)
    start = time.perf_counter()
    compiled = step.lower(state, batch, text_features).compile()
    seconds = time.perf_counter() - start
    release_freed_memory()
    for _ in range(10):
        state, metrics = compiled(state, batch, text_features)
    jax.block_until_ready(state)
    assert bool(jnp.isfinite(metrics.losses["student"].total))  # noqa: S101 - a benchmark of NaNs measures nothing
    return {"seconds": seconds, "megabytes": peak_megabytes()}


if __name__ == "__main__":
    print(json.dumps(_compile_once(dict(argument.split("=", 1) for argument in sys.argv[1:]))))
