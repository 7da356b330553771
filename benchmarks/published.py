"""The joint step with the encoders repeated as in the authors' code, compared with stored features."""

import jax

from benchmarks.encoders import make_bert, make_clip, make_images, make_tokens
from benchmarks.joint import JointTask
from benchmarks.measure import time_in_turn

NUM_IMAGE_PASSES = 23  # 7 step models x 2 forwards, 7 feature extractions, 2 for the student
NUM_TEXT_PASSES = 14  # 7 step models x 2 forwards
BATCH_SIZE = 8


def measure_published(rounds: int) -> dict[str, float]:
    """Return cases per second with the encoders run as often as published, and the speedup of stored features."""
    clip_params, clip = make_clip()
    bert_params, bert = make_bert()
    images, tokens = jax.device_put(make_images(BATCH_SIZE)), jax.device_put(make_tokens(BATCH_SIZE))
    joint_b8, joint_b32 = JointTask(BATCH_SIZE), JointTask(32)
    joint_b8.num_steps = 1

    def published() -> None:
        for _ in range(NUM_IMAGE_PASSES):
            clip(clip_params, images).block_until_ready()
        for _ in range(NUM_TEXT_PASSES):
            bert(bert_params, tokens).block_until_ready()
        joint_b8()

    timings = time_in_turn({"published": published, "joint_b32": joint_b32}, rounds=max(3, rounds // 2))
    ratios = sorted(
        (joint_b32.num_cases / joint) / (BATCH_SIZE / slow)
        for slow, joint in zip(timings["published"].seconds, timings["joint_b32"].seconds, strict=True)
    )
    return {
        "published_cases_per_second": BATCH_SIZE / timings["published"].median,
        "published_spread": timings["published"].spread,
        "speedup_vs_published": ratios[len(ratios) // 2],
    }
