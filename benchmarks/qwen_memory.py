"""Memory a device of fine-tuning Qwen2.5-VL, from compiled programs: `python -m benchmarks.qwen_memory VL-3B --data 8`.

Nothing is allocated: the update is compiled for virtual CPU devices from shapes alone. Arguments (parameters, AdamW's
moments, the batch) are exact for any device; temporary memory is XLA's plan for CPUs, whose fusions and schedules
differ from those of GPUs and TPUs.
"""

import argparse
import contextlib
import functools
import json
import os
import time
from typing import Any

NAMES = {"VL-3B": "Qwen/Qwen2.5-VL-3B-Instruct", "VL-7B": "Qwen/Qwen2.5-VL-7B-Instruct"}


def compile_update(name: str, *, data: int, model: int, tokens: int, windows: int, low_rank: bool) -> dict[str, float]:
    """Return bytes a device of one update with one case a `data` device.

    Args:
      name: "VL-3B" or "VL-7B".
      data: devices along `data`.
      model: devices along `model`.
      tokens: of a case, image included.
      windows: of its image, 112 px squared each.
      low_rank: LoRA with a frozen decoder and a trained projector, instead of training the decoder.
    """
    import flax.traverse_util
    import jax
    import jax.numpy as jnp
    import optax

    from stepcot_jax.losses.sequence import sequence_loss
    from stepcot_jax.models.low_rank import COLLECTION, LowRankSettings, adapt_layers, init_low_rank
    from stepcot_jax.models.qwen import QwenImages, QwenPrompts, QwenVl
    from stepcot_jax.policies import qwen_policy
    from stepcot_jax.policies.qwen_weights import published_config, qwen_shapes
    from stepcot_jax.training.devices import make_mesh

    config = published_config(NAMES[name])
    decoder, vision = config.sizes, config.vision
    assert vision is not None  # noqa: S101 - for the type checker
    network = QwenVl(decoder, vision, jnp.bfloat16, remat=True)
    mesh = make_mesh(jax.devices()[: data * model], {"data": data, "model": model})
    settings, shapes = LowRankSettings(), qwen_shapes(decoder, vision)
    trained = qwen_policy.PROJECTOR if low_rank else qwen_policy.DECODER_AND_PROJECTOR
    chosen, frozen = qwen_policy.divide_params(shapes, trained)
    chosen, frozen = (
        {path: jax.ShapeDtypeStruct(leaf.shape, dtype) for path, leaf in part.items()}
        for part, dtype in ((chosen, jnp.float32), (frozen, jnp.bfloat16))
    )
    adapted = jax.eval_shape(lambda: init_low_rank(jax.random.key(0), shapes, settings)) if low_rank else {}
    tuned = {"params": chosen, "low_rank": adapted}
    optimizer = optax.adamw(1e-5)
    state = jax.eval_shape(optimizer.init, tuned)
    patches = (data, windows, (vision.window_units * vision.merge_size) ** 2)
    whole = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    row = whole((data, tokens))
    images = QwenImages(
        jax.ShapeDtypeStruct((*patches, vision.num_features), jnp.float32),
        whole((2, *patches)),
        jax.ShapeDtypeStruct(patches, jnp.bool_),
    )
    rows = (images, QwenPrompts(row, whole((3, data, tokens)), row), row, row)

    def shard_row(path: Any, leaf: Any) -> Any:
        names = {key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)}
        axis = 1 if names & {"positions", "coordinates"} else 0
        divided = None if leaf.shape[axis] % data else qwen_policy.DATA
        return jax.NamedSharding(mesh, jax.P(*[None] * axis, divided))

    def compute_loss(tuned: Any, frozen: Any, rows: Any) -> Any:
        images, texts, targets, parts = rows
        context = adapt_layers(settings) if low_rank else contextlib.nullcontext()
        with context, qwen_policy.divide_cases(mesh):
            collections = {"params": qwen_policy.join_params(tuned["params"], frozen)}
            if low_rank:
                collections[COLLECTION] = flax.traverse_util.unflatten_dict(tuned["low_rank"], sep="/")
            logits: Any = network.apply(collections, images, texts, method="score_texts")
        return sequence_loss(logits=logits, tokens=targets, parts=parts, part_weights=jnp.ones((parts.shape[0], 1)))

    def update(tuned: Any, state: Any, frozen: Any, rows: Any) -> Any:
        loss, gradients = jax.value_and_grad(compute_loss)(tuned, frozen, rows)
        updates, state = optimizer.update(gradients, state, tuned)
        return optax.apply_updates(tuned, updates), state, loss

    shardings = [qwen_policy.param_shardings(tree, mesh) for tree in (tuned, state, frozen)]
    of_rows = jax.tree_util.tree_map_with_path(shard_row, rows)
    given = [
        jax.tree.map(lambda leaf, to: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=to), tree, to)
        for tree, to in zip((tuned, state, frozen, rows), (*shardings, of_rows), strict=True)
    ]
    start = time.perf_counter()
    compiled = jax.jit(update, donate_argnums=(0, 1), out_shardings=(*shardings[:2], None)).lower(*given).compile()
    memory: Any = compiled.memory_analysis()
    return {
        "arguments": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "not_reused_outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "compile_seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Print the numbers of one model and mesh as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.qwen_memory", description="Memory a device.")
    parser.add_argument("name", choices=tuple(NAMES))
    parser.add_argument("--data", type=int, default=8, help="devices along data, one case each (default 8)")
    parser.add_argument("--model", type=int, default=1, help="devices along model (default 1)")
    parser.add_argument("--tokens", type=int, default=1024, help="of a case, image included (default 1024)")
    parser.add_argument("--windows", type=int, default=16, help="of an image, 112 px squared each (default 16)")
    parser.add_argument("--low-rank", action="store_true", help="LoRA instead of training the whole decoder")
    options = vars(parser.parse_args())
    flags = f"--xla_force_host_platform_device_count={options['data'] * options['model']}"
    # Machine code is not needed, only the plan of its memory, in an order that keeps few arrays at a time: the default
    # on CPUs starts as much as possible at once, and so collects the parameters of all layers first.
    flags += " --xla_backend_optimization_level=0 --xla_cpu_enable_concurrency_optimized_scheduler=false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    print(json.dumps(options | compile_update(**options)))


if __name__ == "__main__":
    main()
