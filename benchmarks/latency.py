"""Latency from a decoded radiograph to the answers of all steps: teacher and student, one image and four."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.encoders import make_clip
from benchmarks.joint import ANSWERS, TEXT_WIDTH, make_batch
from benchmarks.measure import median_of_ratios, time_in_turn
from stepcot_jax.data.images.preprocessing import Preprocessing, normalise, resize_image
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.reading.programs import join_heads, split_heads
from stepcot_jax.systems.networks import Networks, init_params, read_as_teacher

RADIOGRAPH_SIZE = 1024


def measure_latency(rounds: int) -> dict[str, float]:
    """Return milliseconds from decoded pixels to answers at the published sizes, with prompts encoded ahead."""
    networks = Networks(teacher=Teacher(ANSWERS, unroll=True), student=Student(ANSWERS))
    text_features = jax.random.normal(jax.random.key(3), (len(ANSWERS), TEXT_WIDTH))
    init = jax.jit(lambda key: init_params(networks, key=key, batch=make_batch(1), text_features=text_features))
    params = init(jax.random.key(0))
    split = split_heads(params["teacher"])  # as `stepcot predict` does
    clip_params, clip = make_clip()
    teacher = jax.jit(
        lambda split, features: read_as_teacher(networks, join_heads(split), features, text_features, key=None).logits
    )
    student = jax.jit(
        lambda params, features: (
            networks.student.apply({"params": params["student"]}, image_features=features, deterministic=True).logits
        )
    )
    preprocessing = Preprocessing(size=224)
    radiographs = np.random.default_rng(0).integers(0, 256, (4, RADIOGRAPH_SIZE, RADIOGRAPH_SIZE, 3), np.uint8)

    def answer(network: Callable[..., jax.Array], params: Any, num_images: int) -> Callable[[], object]:
        def run() -> np.ndarray:
            pixels = np.stack([resize_image(image, preprocessing) for image in radiographs[:num_images]])
            features = clip(clip_params, normalise(pixels, preprocessing))
            return np.asarray(network(params, features).argmax(axis=-1))

        return run

    tasks = {
        f"{name}{suffix}": answer(network, network_params, num_images)
        for num_images, suffix in ((1, ""), (4, "_b4"))
        for name, network, network_params in (("teacher", teacher, split), ("student", student, params))
    }
    timings = time_in_turn(tasks, rounds=max(15, 3 * rounds), warm_up=3)
    numbers = {f"{name}_ms": 1000 * timing.median for name, timing in timings.items()}
    numbers |= {f"{name}_spread": timing.spread for name, timing in timings.items()}
    numbers["teacher_vs_student_latency"] = median_of_ratios(timings["teacher"], timings["student"])
    return numbers
