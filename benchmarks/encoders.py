"""Throughput of the published encoders with random weights, compared with PyTorch's transformers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import median_of_ratios, time_in_turn
from stepcot_jax.encoders.checkpoints import BERT_SIZES, CLIP_VISION_SIZES
from stepcot_jax.encoders.transformer import Bert, VisionTransformer

BATCH_SIZE, IMAGE_SIZE, NUM_TOKENS = 32, 224, 128


def make_clip() -> tuple[Any, Callable[[Any, Any], jax.Array]]:
    """Return random parameters of CLIP ViT-B/32's image tower, and a function images -> features."""
    network = VisionTransformer(CLIP_VISION_SIZES, image_size=IMAGE_SIZE, patch_size=32, projected_width=512)
    images = jnp.zeros((1, IMAGE_SIZE, IMAGE_SIZE, 3))
    params = jax.jit(lambda key: network.init(key, images)["params"])(jax.random.key(0))
    return params, jax.jit(lambda params, images: network.apply({"params": params}, images)[0])


def make_bert() -> tuple[Any, Callable[[Any, Any], jax.Array]]:
    """Return random parameters of BERT-base, and a function token ids [text, token] -> CLS vectors."""
    network = Bert(BERT_SIZES, vocabulary_size=30522, max_positions=512, num_types=2)
    tokens = jnp.zeros((1, 2), jnp.int32)
    params = jax.jit(lambda key: network.init(key, tokens, tokens == 0)["params"])(jax.random.key(0))

    def encode(params: Any, tokens: Any) -> jax.Array:
        return network.apply({"params": params}, tokens, jnp.ones(tokens.shape, bool)).cls

    return params, jax.jit(encode)


def make_images(num_images: int) -> np.ndarray:
    """Return random normalised images [case, 224, 224, 3]."""
    return np.random.default_rng(0).standard_normal((num_images, IMAGE_SIZE, IMAGE_SIZE, 3)).astype(np.float32)


def make_tokens(num_texts: int) -> np.ndarray:
    """Return random token ids [text, 128]."""
    return np.random.default_rng(0).integers(1000, 30000, (num_texts, NUM_TOKENS)).astype(np.int32)


def measure_encoders(rounds: int) -> dict[str, float]:
    """Return the throughput of both encoders, and its ratio to PyTorch's if torch is installed."""
    clip_params, clip = make_clip()
    bert_params, bert = make_bert()
    images, tokens = jax.device_put(make_images(BATCH_SIZE)), jax.device_put(make_tokens(BATCH_SIZE))
    tasks: dict[str, Callable[[], object]] = {
        "clip": lambda: clip(clip_params, images).block_until_ready(),
        "bert": lambda: bert(bert_params, tokens).block_until_ready(),
    }
    tasks |= torch_tasks()
    timings = time_in_turn(tasks, rounds=rounds)
    numbers = {
        "clip_images_per_second": BATCH_SIZE / timings["clip"].median,
        "bert_prompts_per_second": BATCH_SIZE / timings["bert"].median,
        "clip_spread": timings["clip"].spread,
        "bert_spread": timings["bert"].spread,
    }
    for name in ("clip", "bert"):
        if f"torch_{name}" in timings:
            numbers[f"{name}_vs_torch"] = median_of_ratios(timings[f"torch_{name}"], timings[name])
            numbers[f"torch_{name}_spread"] = timings[f"torch_{name}"].spread
    return numbers


def torch_tasks() -> dict[str, Callable[[], object]]:
    """Return the same encoders in PyTorch, if it is installed."""
    try:
        import torch
        from transformers import BertConfig, BertModel, CLIPVisionConfig, CLIPVisionModelWithProjection
    except ImportError:
        return {}
    clip = CLIPVisionModelWithProjection(CLIPVisionConfig(projection_dim=512)).eval()
    bert = BertModel(BertConfig()).eval()
    images = torch.from_numpy(np.ascontiguousarray(make_images(BATCH_SIZE).transpose(0, 3, 1, 2)))
    tokens = torch.from_numpy(make_tokens(BATCH_SIZE)).long()

    def run_clip() -> None:
        with torch.inference_mode():
            clip(pixel_values=images)

    def run_bert() -> None:
        with torch.inference_mode():
            bert(input_ids=tokens)

    return {"torch_clip": run_clip, "torch_bert": run_bert}
