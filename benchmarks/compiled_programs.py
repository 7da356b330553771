"""The programs that users run, compiled from shapes alone for devices that the machine need not have.

XLA's compilers for CUDA and TPU run on a description of the devices; see `benchmarks.compiled`.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

from benchmarks.communication import read_collectives, totals
from benchmarks.work import read_work

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

SETTINGS = {
    "quickstart": "joint update of --config=quickstart, 32 images of 64 px",
    "predict": "student of the quickstart with its gate, 32 images, on one device",
    "encode": "frozen ViT-B/32, 256 images a device, on the devices of one process",
    "teacher": "teacher's update of --config=paper on stored features, 32 cases",
    "joint": "joint update of --config=paper on stored features, 32 cases",
    "sft": "fine-tuning update of --config=gemex, VL-7B",
    "grpo": "GRPO update of --config=gemex, VL-7B with its reference",
    "dpo": "DPO update at the sizes of --config=gemex, VL-7B with its reference",
    "decode": "sampling of --config=gemex, VL-7B, 128 x 8 replies of 300 tokens",
    "self_check": "96 self-checks of --config=medsage, VL-7B, contexts of 1,450 and replies of 1,300 tokens",
}
POLICY = ("sft", "grpo", "dpo", "decode", "self_check")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a policy's program; defaults are those of `--config=gemex` with two layers of each kind."""

    layers: int = 2
    vision_layers: int = 0  # 0: as many as of the decoder
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
    scan: int = 1  # 0: one layer after another

    @classmethod
    def choose(cls, case: str, num_devices: int, **named: int) -> "Sizes":
        """Return the sizes of a case; a pass of one device is as large as one of 2 x 4."""
        chosen = {"model_devices": math.gcd(num_devices, 4), "passes": 64 if num_devices == 1 else 32}
        if case == "self_check":
            chosen |= {"prompts": 96, "group": 1, "longest_prompt": 1450, "longest_reply": 1300}
        return cls(**chosen | named)


def describe_h100(number: int) -> list[Any]:
    """Return the devices of a machine of H100 that need not exist."""
    return _describe("h100", platform="cuda", target_config=H100, topology=f"1x1x{number}")


def describe_devices(target: str) -> list[Any]:
    """Return the devices of a target, such as "h100x8" or "v5e:4x4", in the order of their processes."""
    if target.startswith("h100x"):
        return describe_h100(int(target.removeprefix("h100x")))
    devices = _describe(target, platform="tpu")
    return sorted(devices, key=lambda device: (device.process_index, device.id))


def _describe(name: str, **how: Any) -> list[Any]:
    import jax
    from jax.experimental import topologies

    jax.config.update("jax_enable_compilation_cache", False)  # it cannot load a program of devices that do not exist
    jax.devices()  # loads the plugins
    return list(topologies.get_topology_desc(name, **how).devices)


def compile_program(name: str, sizes: Sizes, devices: list[Any]) -> tuple[Any, Any]:
    """Compile one of `SETTINGS`; return also the shapes of its parameters, or None.

    Args:
      name: of the program.
      sizes: of a policy's program.
      devices: as of `describe_devices`.
    """
    if name in POLICY:
        return _compile_policy(name, sizes, devices)
    compilers = {"quickstart": _compile_quickstart, "predict": _compile_predict, "encode": _compile_encoder}
    return compilers.get(name, functools.partial(_compile_published, name))(devices), None


def describe_program(name: str, target: str, **named: int) -> dict[str, Any]:
    """Compile a program for a target, with sizes of a policy; return its figures, as of `read_figures`."""
    devices = describe_devices(target)
    sizes, began = Sizes.choose(name, len(devices), **named), os.times()
    compiled, params = compile_program(name, sizes, devices)
    seconds, own = (sum(os.times()[:parts]) - sum(began[:parts]) for parts in (4, 2))  # all, and without ptxas
    unknown = sizes.longest_reply if name in ("decode", "self_check") else 1  # a reply may end early
    used = {"compile_seconds": round(seconds, 1), "own_seconds": round(own, 1)}
    return used | read_figures(compiled, params, unknown_trips=unknown)


def read_figures(compiled: Any, params: Any, *, unknown_trips: int) -> dict[str, Any]:
    """Return the figures of one run of a program on one device.

    "flops" are by type, "sent" are bytes by kind of collective, "operations" those of the compiled text, all other
    sizes bytes. Those of a "turn" are what collectives inside loops return, each once: at a token of decoding, or in a
    pass of an update. "looped" has kind, elements of arrays and bytes of each of these; "leaves" the elements of each
    matrix of parameters.
    """
    import jax

    text, memory = compiled.as_text(), compiled.memory_analysis()
    collectives = read_collectives(text, unknown_trips=unknown_trips)
    work, looped = read_work(text, unknown_trips=unknown_trips), [each for each in collectives if each.in_loop]
    return {
        "arguments": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "flops": work.flops,
        "bytes": work.num_bytes,
        "sent": {kind: row["sent_bytes"] for kind, row in totals(collectives).items()},
        "gathered": sum(each.num_bytes * each.times for each in collectives if each.kind == "all-gather"),
        "turn": sum(each.num_bytes for each in looped),
        "turn_beside_sums": sum(each.num_bytes for each in looped if each.kind != "all-reduce"),
        "operations": text.count(" = "),
        "kernels": work.num_kernels,
        "turn_kernels": work.loop_kernels,
        "looped": [[each.kind, each.sizes, each.num_bytes] for each in looped],
        "leaves": [leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim > 1],
    }


def _compile_published(name: str, devices: list[Any]) -> Any:
    """Compile an update of the published networks on features of a frozen encoder."""
    import jax.numpy as jnp

    from stepcot_jax.chain import Chain
    from stepcot_jax.systems.step_cot import StepCoT

    system = StepCoT(Chain.published())
    batch = {
        "image_features": jnp.zeros((32, 512)),
        "labels": jnp.zeros((32, system.chain.num_steps), jnp.int32),
        "text_features": jnp.zeros((system.chain.num_steps, 768)),
    }
    return _compile_chain_update(system, name, batch, devices)


def _compile_chain_update(system: Any, name: str, batch: Any, devices: list[Any]) -> Any:
    import jax

    from stepcot_jax.training.devices import Devices

    shapes = jax.eval_shape(lambda: system.init(jax.random.key(0), batch))
    with _as_devices(devices):
        replicated = Devices(shared=system.shared)
        state = _lay_out(shapes, replicated.replicated)
        batch = {each: jax.ShapeDtypeStruct(array.shape, array.dtype) for each, array in batch.items()}
        update = next(phase.update for phase in system.phases() if phase.name == name)
        return replicated.compile_update(update, state=state, batch=batch)


@contextlib.contextmanager
def _as_devices(devices: list[Any]) -> Iterator[None]:
    """Let `Devices`, and networks that look at the devices' kind, take these."""
    import jax

    with mock.patch.object(jax, "devices", return_value=devices):
        yield


def _lay_out(tree: Any, sharding: Any) -> Any:
    import jax

    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def _load_quickstart() -> Any:
    """Return the quickstart's run, of few phantoms: their number is in no program."""
    from stepcot_jax.run.training_run import Run

    with tempfile.TemporaryDirectory() as folder:
        return Run("quickstart", folder, **{"phantom.num_cases": 60})


def _compile_quickstart(devices: list[Any]) -> Any:
    run = _load_quickstart()
    return _compile_chain_update(run.system, "joint", run.task.batch_shapes, devices)


def _compile_predict(devices: list[Any]) -> Any:
    """Compile the reading of `stepcot predict`."""
    import jax
    import jax.numpy as jnp

    from stepcot_jax.reading.programs import read_batch
    from stepcot_jax.systems.networks import encode_with_moments

    run = _load_quickstart()
    networks, params = run.system.networks, run.state_shapes.params
    batch = {"images": jax.ShapeDtypeStruct(run.task.batch_shapes["images"].shape, jnp.float32)}
    number, chain = batch["images"].shape[0], run.system.chain
    _, moments = jax.eval_shape(functools.partial(encode_with_moments, networks), params, batch)
    width = moments.shape[1]
    given = jax.ShapeDtypeStruct((number, chain.num_steps, max(chain.answers_per_step)), jnp.float32)
    gate = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((width,), (width, width)))
    read = {name: params[name] for name in ("student", "image_encoder")}
    read, batch, given, gate = _lay_out((read, batch, given, gate), jax.sharding.SingleDeviceSharding(devices[0]))
    how = {"networks": networks, "model": "student", "with_attention": False}
    with _as_devices(devices):
        return read_batch.lower(read, batch, None, given, gate, **how).compile()


def _compile_encoder(devices: list[Any]) -> Any:
    """Compile the encoding of `stepcot features`."""
    import jax
    import jax.numpy as jnp

    from stepcot_jax.encoders.checkpoints import CLIP_VISION_SIZES
    from stepcot_jax.encoders.load import _encode_images
    from stepcot_jax.encoders.transformer import VisionTransformer
    from stepcot_jax.training.devices import make_mesh

    local = [device for device in devices if device.process_index == devices[0].process_index]
    mesh = make_mesh(local, {"case": len(local)})
    network = VisionTransformer(CLIP_VISION_SIZES, image_size=224, patch_size=32, projected_width=512)
    params = jax.eval_shape(lambda: network.init(jax.random.key(0), jnp.zeros((1, 224, 224, 3)))["params"])
    values = jax.ShapeDtypeStruct((256, 3), jnp.float32)
    params, values = _lay_out((params, values), jax.NamedSharding(mesh, jax.P()))
    images = jax.ShapeDtypeStruct(
        (256 * len(local), 224, 224, 3), jnp.uint8, sharding=jax.NamedSharding(mesh, jax.P("case"))
    )
    return _encode_images.lower(params, images, values, network).compile()


# Programs of Qwen2.5-VL-7B.


def _compile_policy(case: str, sizes: Sizes, devices: list[Any]) -> tuple[Any, Any]:
    """Return one program of Qwen2.5-VL-7B, and the shapes of its parameters."""
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

    published = published_config("Qwen/Qwen2.5-VL-7B-Instruct")
    of_tower = sizes.vision_layers or sizes.layers
    network = SquareQwen(
        dataclasses.replace(published.sizes, num_layers=sizes.layers, num_words=sizes.words),
        dataclasses.replace(published.vision, num_layers=of_tower, full_layers=tuple(range(1, of_tower, 8))),
        jnp.dtype(jnp.bfloat16),
        True,
        grid=sizes.image_size // 28,
        image_token=7,
    )
    with _as_devices(devices):
        meshed = MeshDevices(param_shardings, model_devices=sizes.model_devices, num_passes=sizes.passes)
    scans = bool(sizes.scan)
    policy = QwenPolicy(network, None, meshed.mesh, is_given=True, scans_layers=scans)
    name = "sft" if case in ("decode", "self_check") else case
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
    if case in ("decode", "self_check"):
        return _compile_sampling(sizes, policy, meshed, state), state.params
    return _compile_update(case, sizes, (policy, _normalise, optimizer), meshed, state), state.params


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


if __name__ == "__main__":  # of `benchmarks.compiled`, which compiles each program apart
    print(json.dumps(describe_program(sys.argv[2], sys.argv[1], **json.loads(sys.argv[3]))))
