"""Host memory of loading a Qwen2.5-VL onto a mesh: `python -m benchmarks.qwen_loading`.

A random checkpoint of the shape of VL-3B at half the widths and layers, about 1 GB in bfloat16, is written to a
temporary folder and loaded as a run loads it, onto a mesh of virtual CPU devices. Their arrays lie in host memory too,
so that each is deleted once it is there: the peak is that of loading, and of one array on the devices.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import resource
import tempfile
import time
from typing import Any

NAME = "Qwen/Qwen2.5-VL-3B-Instruct"


def make_config(shrink: int) -> Any:
    """Return the config of VL-3B, shrunk."""
    from stepcot_jax.policies.qwen_weights import published_config, shrink_config

    return shrink_config(published_config(NAME), shrink)


def write_checkpoint(folder: pathlib.Path, shrink: int) -> dict[str, int]:
    """Write a checkpoint of random tensors; returns the bytes of all and of the largest."""
    import jax
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import save_file

    from stepcot_jax.models.qwen import QwenVl
    from stepcot_jax.policies.qwen_weights import name_tensors, qwen_shapes

    config, rng = make_config(shrink), np.random.default_rng(0)
    sizes, vision = config.sizes, config.vision
    params = jax.tree.map(
        lambda leaf: rng.standard_normal(leaf.shape, np.float32).astype(ml_dtypes.bfloat16), qwen_shapes(sizes, vision)
    )
    tensors = name_tensors(params, QwenVl(sizes, vision))
    save_file(tensors, folder / "model.safetensors")
    rotary = {"type": "mrope", "mrope_section": list(sizes.sections)}
    tower = {
        "depth": vision.num_layers, "hidden_size": vision.width, "intermediate_size": vision.mlp_width,
        "num_heads": vision.num_heads, "out_hidden_size": vision.out_width,
        "fullatt_block_indexes": list(vision.full_layers),
    }  # fmt: skip
    found = {
        "model_type": "qwen2_5_vl", "hidden_size": sizes.width, "intermediate_size": sizes.mlp_width,
        "num_attention_heads": sizes.num_heads, "num_hidden_layers": sizes.num_layers,
        "num_key_value_heads": sizes.num_kv_heads, "rms_norm_eps": sizes.epsilon, "rope_theta": sizes.theta,
        "vocab_size": sizes.num_words, "tie_word_embeddings": sizes.is_tied, "eos_token_id": config.stops[0],
        "rope_scaling": rotary, "image_token_id": config.image_token, "vision_config": tower,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(found))
    return {
        "stored": sum(each.nbytes for each in tensors.values()),
        "largest": max(each.nbytes for each in tensors.values()),
    }


def load(folder: pathlib.Path, *, data: int, model: int) -> dict[str, float]:
    """Load a checkpoint onto a mesh, and return bytes and seconds."""
    import jax
    import jax.numpy as jnp

    from stepcot_jax.models.qwen import SquareQwen
    from stepcot_jax.policies.qwen_policy import QwenPolicy, param_shardings
    from stepcot_jax.policies.qwen_weights import read_qwen_config
    from stepcot_jax.run.qwen_source import QwenSource
    from stepcot_jax.training.devices import make_mesh
    from stepcot_jax.training.state import put_given

    config = read_qwen_config(folder)
    assert config.vision is not None  # noqa: S101 - for the type checker
    source = QwenSource(folder=folder, config=config, vision=config.vision, grid=8)
    policy = QwenPolicy(SquareQwen(config.sizes, config.vision, jnp.dtype(jnp.bfloat16), grid=8), is_given=True)
    shapes = jax.eval_shape(lambda: policy.init(jax.random.key(0)))["params"]
    places = param_shardings(shapes, make_mesh(jax.devices()[: data * model], {"data": data, "model": model}))
    blank = jax.tree.map(lambda leaf, to: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=to), shapes, places)
    before, start = _peak_bytes(), time.perf_counter()
    given = source.load(policy)
    for target, values in zip(*map(jax.tree.leaves, (blank, given)), strict=True):
        put_given(target, values).delete()
    return {"host_peak": _peak_bytes() - before, "seconds": time.perf_counter() - start}


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Print the numbers as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.qwen_loading", description="Host memory of loading.")
    parser.add_argument("--data", type=int, default=2, help="devices along data (default 2)")
    parser.add_argument("--model", type=int, default=2, help="devices along model (default 2)")
    parser.add_argument("--shrink", type=int, default=2, choices=(2, 4, 8), help="VL-3B's sizes divided by (default 2)")
    options = parser.parse_args()
    flags = f"--xla_force_host_platform_device_count={options.data * options.model}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    with tempfile.TemporaryDirectory() as folder:
        # In another process, whose memory does not count.
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            sizes = pool.submit(write_checkpoint, pathlib.Path(folder), options.shrink).result()
        print(json.dumps(sizes | load(pathlib.Path(folder), data=options.data, model=options.model)))


if __name__ == "__main__":
    main()
