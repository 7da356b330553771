"""Export the Qwen2.5-VL of a run as a checkpoint folder that transformers and vLLM read, with LoRA merged."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from stepcot_jax.export.folder import list_sizes, write_sums
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir
from stepcot_jax.policies.qwen_weights import write_qwen
from stepcot_jax.reading.trained_policy import TrainedPolicy
from stepcot_jax.training.state import count_parameters


def export_qwen(
    trained: TrainedPolicy, out: pathlib.Path, *, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Write the network of a run, bfloat16, with the config, tokenizer and preprocessing that it started from.

    A run with random weights is exported too, if it had the folder of a checkpoint and its size.
    """
    source, policy = trained.source, trained.run.settings.policy
    if source is None or not hasattr(trained.network, "merge"):
        raise ValueError("trained: its network is no Qwen2.5-VL")
    if source.folder is None or policy.shrink > 1:
        raise BadInput(
            f"{trained.workdir}: a dry run cannot be exported (config.policy.random=True, shrink={policy.shrink}: it "
            "has no config.json of its size); config.policy.weights of the run must be a folder, and shrink 1"
        )
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()
    make_workdir(out.parent)
    say("writing the checkpoint")
    merged = trained.network.merge(trained.params)
    write_qwen(out, merged, trained.network.network, source=source.folder, dtype=jnp.bfloat16)
    write_sums(out)
    about = {"parameters": count_parameters(merged), "phase": trained.phase, "step": trained.step}
    return {"folder": str(out), "files": list_sizes(out), "policy": about}
