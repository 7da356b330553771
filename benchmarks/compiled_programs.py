"""Programs of a large policy, compiled for 8 H100 on a machine without one: `python -m benchmarks.compiled decode sft`.

XLA's CUDA compiler runs without a GPU on a description of one. Memory plan, collectives and kernels are those of the
device; times are not known. `bash .ci/compilers PYTHON cuda` fetches the compiler and prints its folder, which
PYTHONPATH must have.
"""

import argparse
import dataclasses
import json
import time
from typing import Any

from benchmarks.communication import Collective, count_kernels, read_collectives

# Figures of XLA's public device specifications.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 7 }
runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

CASES = ("decode", "sft", "grpo", "dpo")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a program; defaults are those of `--config=gemex` with two layers of each kind."""

    layers: int = 2
    words: int = 152_064
    model_devices: int = 4
    prompts: int = 128
    group: int = 8
    longest_prompt: int = 400
    longest_reply: int = 300
    rows: int = 256
    row_tokens: int = 700
    passes: int = 32
    image_size: int = 448


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a compiled program does."""

    collectives: list[Collective]
    num_kernels: int
    temporary: int
    arguments: int
    seconds: float
    params: Any

    def describe(self) -> dict[str, float]:
        """Return the figures; "in the loop" is one token of decoding, and one pass of an update."""
        looped = [each for each in self.collectives if each.in_loop]
        gathered = [each for each in self.collectives if each.kind == "all-gather"]
        others = [each for each in looped if each.kind != "all-reduce"]
        once = {"loop_MB": looped, "loop_MB_beside_all_reduce": others}
        return {
            **{name: sum(each.num_bytes for each in part) / 1e6 for name, part in once.items()},
            "gathered_GB": sum(each.num_bytes * each.times for each in gathered) / 1e9,
            "loop_kernels": self.num_kernels,
            "temporary_GB": self.temporary / 1e9,
            "arguments_GB": self.arguments / 1e9,
            "compile_seconds": self.seconds,
        }


def describe_h100(number: int) -> list[Any]:
    """Return the devices of a machine of H100 that need not exist."""
    import jax
    from jax.experimental import topologies

    jax.config.update("jax_enable_compilation_cache", False)  # it cannot load a program of devices that do not exist
    jax.devices()  # loads the plugins
    topology = topologies.get_topology_desc("h100", platform="cuda", target_config=H100, topology=f"1x1x{number}")
    return list(topology.devices)


def compile_case(case: str, sizes: Sizes, devices: list[Any]) -> Plan:
    """Compile one program of Qwen2.5-VL-7B from shapes alone."""
    import jax
    import jax.numpy as jnp

    from stepcot_jax.models.qwen import SquareQwen
    from stepcot_jax.policies.policy import FROZEN, TRAINED, copy_frozen
    from stepcot_jax.policies.qwen_policy import QwenPolicy, param_shardings
    from stepcot_jax.policies.qwen_weights import published_config
    from stepcot_jax.systems.options import REFERENCE
    from stepcot_jax.systems.sft import POLICY
    from stepcot_jax.training.devices import MeshDevices
    from stepcot_jax.training.optimizers import make_optimizer
    from stepcot_jax.training.state import TrainState

    jax.devices = lambda: devices  # type: ignore[assignment]
    published = published_config("Qwen/Qwen2.5-VL-7B-Instruct")
    network = SquareQwen(
        dataclasses.replace(published.sizes, num_layers=sizes.layers, num_words=sizes.words),
        dataclasses.replace(published.vision, num_layers=sizes.layers, full_layers=tuple(range(1, sizes.layers, 8))),
        jnp.dtype(jnp.bfloat16),
        True,
        grid=sizes.image_size // 28,
        image_token=7,
    )
    meshed = MeshDevices(param_shardings, model_devices=sizes.model_devices, num_passes=sizes.passes)
    policy = QwenPolicy(network, None, meshed.mesh, is_given=True)
    name = {"decode": "sft"}.get(case, case)
    optimizer = make_optimizer(learning_rate=1e-5, is_packed=False)

    def start() -> TrainState:
        params = policy.init(jax.random.key(0))["params"]
        reference = {REFERENCE: copy_frozen(policy, params[TRAINED])} if case in ("grpo", "dpo") else {}
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params={POLICY: params[TRAINED], FROZEN: params[FROZEN], **reference},
            optimizers={name: optimizer.init({POLICY: params[TRAINED]})},
            key=jax.random.key_data(jax.random.key(1)),
        )

    shapes = jax.eval_shape(start)
    state = jax.tree.map(
        lambda leaf, to: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=to), shapes, meshed.shardings(shapes)
    )
    began = time.perf_counter()
    if case == "decode":
        compiled = _compile_sampling(sizes, policy, meshed, state)
    else:
        compiled = _compile_update(case, sizes, (policy, _normalise, optimizer), meshed, state)
    seconds, text = time.perf_counter() - began, compiled.as_text()
    memory = compiled.memory_analysis()
    return Plan(
        collectives=read_collectives(text, unknown_trips=1),
        num_kernels=count_kernels(text),
        temporary=memory.temp_size_in_bytes,
        arguments=memory.argument_size_in_bytes,
        seconds=seconds,
        params=state.params,
    )


def _normalise(pixels: Any) -> Any:
    from stepcot_jax.policies.policy import normalise

    return normalise(pixels, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def _compile_sampling(sizes: Sizes, policy: Any, meshed: Any, state: Any) -> Any:
    """Compile the sampling of `systems.grpo.Rollouts`."""
    import jax
    import jax.numpy as jnp

    from stepcot_jax.policies.policy import policy_params
    from stepcot_jax.policies.sampling import Sampling, generate, rollout_keys
    from stepcot_jax.systems.sft import POLICY

    sampling, number = Sampling(longest=sizes.longest_reply, stop=1), sizes.prompts

    def sample(params: Any, rows: Any, key: Any) -> Any:
        keys = rollout_keys(key, first=0, number=sizes.group * number)
        images = _normalise(rows["images"])
        return generate(policy, params, images, rows["prompts"], rows["lengths"], sampling=sampling, keys=keys)

    side = sizes.image_size
    shapes = {"images": (side, side, 3), "prompts": (sizes.longest_prompt,), "lengths": ()}
    rows = {
        name: jax.ShapeDtypeStruct(
            (number, *shape), jnp.uint8 if name == "images" else jnp.int32, sharding=meshed.by_row
        )
        for name, shape in shapes.items()
    }
    key = jax.eval_shape(lambda: jax.random.key(0))
    sampled = jax.jit(sample, out_shardings=meshed.replicated)
    return sampled.lower(policy_params(state.params, POLICY), rows, key).compile()


def _compile_update(case: str, sizes: Sizes, common: tuple[Any, ...], meshed: Any, state: Any) -> Any:
    import jax
    import numpy as np

    from stepcot_jax.systems.dpo import DpoUpdate
    from stepcot_jax.systems.grpo import GrpoUpdate
    from stepcot_jax.systems.options import DpoOptions, GrpoOptions, SelfCheckOptions, SftOptions
    from stepcot_jax.systems.sft import SftUpdate

    side, group = sizes.image_size, 2 if case == "dpo" else sizes.group
    tokens, reply = (sizes.row_tokens,), (group, sizes.longest_reply)
    if case == "sft":
        update: Any = SftUpdate(*common, SftOptions())
        number = sizes.rows
        shapes: Any = dict.fromkeys(("tokens", "segments", "places", "targets", "parts"), (tokens, np.int32))
        shapes["part_weights"] = ((2,), np.float32)
    else:
        number = sizes.prompts
        shapes = {"prompts": ((sizes.longest_prompt,), np.int32), "lengths": ((), np.int32)}
        shapes |= {"completions": (reply, np.int32), "counted": (reply, bool)}
        update = DpoUpdate(*common, DpoOptions())
        if case == "grpo":
            update = GrpoUpdate(*common, GrpoOptions(), SelfCheckOptions())
            shapes |= {"old_log_probs": (reply, np.float32), "advantages": ((group, 1), np.float32)}
        else:
            shapes["paired"] = ((), bool)
    shapes["images"] = ((side, side, 3), np.uint8)
    batch = {name: jax.ShapeDtypeStruct((number, *shape), dtype) for name, (shape, dtype) in shapes.items()}
    return meshed.compile_update(update, state=state, batch=batch)


def main() -> None:
    """Print the figures of each case as a line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description="Plans for 8 H100.")
    parser.add_argument("cases", nargs="+", choices=CASES)
    for field in dataclasses.fields(Sizes):
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=int, default=field.default, help=f"default {field.default}")
    options = vars(parser.parse_args())
    cases, devices = options.pop("cases"), describe_h100(8)
    for case in cases:
        figures = compile_case(case, Sizes(**options), devices).describe()
        print(json.dumps({"case": case} | {name: round(value, 3) for name, value in figures.items()}), flush=True)


if __name__ == "__main__":
    main()
