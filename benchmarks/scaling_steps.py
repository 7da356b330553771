"""Cost and traffic of the joint step on stored features, by number of steps, answers and cases."""

import dataclasses
import json
import time
from typing import Any

import jax
import numpy as np

from benchmarks.communication import read_collectives, totals
from benchmarks.measure import make_sgemm, sgemm_gflop, time_in_turn
from stepcot_jax.losses.step_cot import Objective
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.systems.networks import Networks, init_params
from stepcot_jax.systems.updates import SHARED, make_joint_update, start_state, student_part, teacher_part
from stepcot_jax.training.devices import ONE_DEVICE, Devices, Transform
from stepcot_jax.training.optimizers import make_optimizer
from stepcot_jax.training.state import TrainState, count_parameters
from stepcot_jax.training.system import Update


@dataclasses.dataclass(frozen=True)
class Size:
    """Widths of the networks.

    Attributes:
      name: name in the tables.
      teacher_width: width of nodes, memory and image projections.
      student_width: width of the feature that the answers update.
      projection_width: width of the projections that channel alignment compares.
      image_width: width of a stored feature.
      text_width: width of a prompt's vector.
    """

    name: str
    teacher_width: int = 768
    student_width: int = 512
    projection_width: int = 256
    image_width: int = 512
    text_width: int = 768


PUBLISHED = Size("published")
SMALL = Size("small", teacher_width=96, student_width=96, projection_width=48)
SIZES = {size.name: size for size in (PUBLISHED, SMALL)}


@dataclasses.dataclass(frozen=True)
class Problem:
    """A size with its chain and batch.

    Attributes:
      size: widths of the networks.
      answers: number of answers of each step.
      batch_size: cases in a global batch.
    """

    size: Size
    answers: tuple[int, ...] = (9,) * 7
    batch_size: int = 32

    @property
    def num_steps(self) -> int:
        """Steps in the chain."""
        return len(self.answers)

    @property
    def networks(self) -> Networks:
        """The Flax modules."""
        return Networks(
            teacher=Teacher(self.answers, width=self.size.teacher_width),
            student=Student(self.answers, width=self.size.student_width),
            projection_width=self.size.projection_width,
        )

    def make_update(self) -> Update:
        """Return one device's joint update, not compiled."""
        return make_joint_update(self.networks, Objective(), _make_optimizers())

    def make_state(self, key: jax.Array) -> TrainState:
        """Return the state before the first batch."""
        text_features = jax.numpy.zeros((self.num_steps, self.size.text_width))
        example = {"image_features": jax.numpy.zeros((1, self.size.image_width))}
        params = init_params(self.networks, key=key, batch=example, text_features=text_features)
        return start_state(params, Objective(), _make_optimizers(), key=key)

    def make_batch(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return random features, labels with one in five missing, and prompt vectors."""
        draw = np.random.default_rng(0)
        labels = draw.integers(0, self.answers, (self.batch_size, self.num_steps), np.int32)
        labels[draw.random(labels.shape) < 0.2] = -100
        features = draw.standard_normal((self.batch_size, self.size.image_width), np.float32)
        batch = {"image_features": features, "labels": labels}
        return batch, draw.standard_normal((self.num_steps, self.size.text_width), np.float32)

    @property
    def trained_parameters(self) -> int:
        """Number of values that the two optimizers update."""
        params = jax.eval_shape(self.make_state, jax.random.key(0)).params
        parts = (teacher_part(params), student_part(params, train_teacher_projection=False))
        return sum(count_parameters(part) for part in parts)


def _make_optimizers() -> dict[str, Any]:
    return {"teacher": make_optimizer(learning_rate=5e-5), "student": make_optimizer(learning_rate=1e-4)}


def measure_step(problem: Problem, *, rounds: int, max_megabytes: float) -> dict[str, Any]:
    """Measure the seconds to compile and to run the joint step, and its memory.

    Args:
      problem: size, chain and batch.
      rounds: number of measured rounds; the median is returned.
      max_megabytes: a program with more working memory is compiled but not run.

    Returns:
      One row of numbers; times are None if the program was not run.
    """
    batch, text_features = problem.make_batch()
    shapes = jax.eval_shape(problem.make_state, jax.random.key(0))
    update = problem.make_update()

    def step(state: TrainState, batch: Any, text_features: Any) -> Any:
        return update(state, {**batch, "text_features": text_features}, ONE_DEVICE)

    lowered = jax.jit(step, donate_argnums=0).lower(shapes, batch, text_features)
    start = time.perf_counter()
    compiled = lowered.compile()
    compile_seconds = time.perf_counter() - start
    megabytes = compiled.memory_analysis().temp_size_in_bytes / 1e6
    row: dict[str, Any] = {
        "size": problem.size.name,
        "num_steps": problem.num_steps,
        "num_answers": max(problem.answers),
        "batch_size": problem.batch_size,
        "trained_parameters": problem.trained_parameters,
        "compile_seconds": compile_seconds,
        "work_megabytes": megabytes,
        "step_seconds": None,
        "step_spread": None,
        "case_gflop": None,
    }
    if megabytes > max_megabytes:
        return row
    run = _Run(compiled, jax.jit(problem.make_state)(jax.random.key(0)), batch, text_features)
    timings = time_in_turn({"sgemm": make_sgemm(), "step": run}, rounds=rounds)
    row["step_seconds"], row["step_spread"] = timings["step"].median, timings["step"].spread
    row["case_gflop"] = sgemm_gflop() * timings["step"].median / timings["sgemm"].median / problem.batch_size
    return row


class _Run:
    """Consecutive steps on one batch; each call continues from the last state."""

    def __init__(self, step: Any, state: TrainState, batch: Any, text_features: Any) -> None:
        self.step, self.state = step, state
        self.inputs = jax.device_put((batch, text_features))

    def __call__(self) -> None:
        self.state, metrics = self.step(self.state, *self.inputs)
        jax.block_until_ready((self.state, metrics))


def compile_parallel(problem: Problem, *, transform: Transform, num_devices: int) -> Any:
    """Compile the joint step for several devices."""
    devices = Devices(transform=transform, num_devices=num_devices, shared=SHARED)
    shapes = jax.eval_shape(problem.make_state, jax.random.key(0))
    batch, text_features = problem.make_batch()
    whole, batch = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=devices.replicated), (shapes, batch)
    )
    batch["text_features"] = devices.replicate(text_features)
    return devices.compile_update(problem.make_update(), state=whole, batch=batch)


def measure_communication(problem: Problem, *, transform: Transform, num_devices: int) -> dict[str, Any]:
    """Count what the compiled step sends between devices.

    Args:
      problem: size, chain and batch.
      transform: "pmap" or "shard_map", see `training.parallel`.
      num_devices: number of devices, real or virtual.
    """
    program = compile_parallel(problem, transform=transform, num_devices=num_devices).as_text()
    return {
        "size": problem.size.name,
        "transform": transform,
        "num_devices": num_devices,
        "num_steps": problem.num_steps,
        "batch_size": problem.batch_size,
        "trained_parameters": problem.trained_parameters,
        "kinds": totals(read_collectives(program)),
    }


if __name__ == "__main__":  # in its own process, started with virtual devices
    transforms: tuple[Transform, ...] = ("pmap", "shard_map")
    print(
        json.dumps(
            [
                measure_communication(Problem(size, batch_size=256), transform=transform, num_devices=8)
                for size in SIZES.values()
                for transform in transforms
            ]
        )
    )
