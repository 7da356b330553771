"""Export the Qwen2.5-VL of a run as a checkpoint folder that transformers and vLLM read, with LoRA merged."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from stepcot_jax.export.folder import list_sizes
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.exported_files import write_sums
from stepcot_jax.policies.qwen_weights import write_qwen
from stepcot_jax.run.stored import read_policy, read_stored
from stepcot_jax.training.state import count_parameters


def export_qwen(
    workdir: str | pathlib.Path, out: str | pathlib.Path, *, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Write the network of a run, bfloat16, with the config, tokenizer and preprocessing that it started from."""
    workdir, out = pathlib.Path(workdir), pathlib.Path(out)
    policy = read_stored(workdir).settings.policy
    if not policy.weights:
        raise BadInput(f"{workdir}: a policy of this package is not exported; sc.load({str(workdir)!r}) reads its run")
    trained = read_policy(workdir)
    source = trained.source
    if source is None or source.folder is None or policy.shrink > 1:
        raise BadInput(
            f"{workdir}: a dry run cannot be exported (config.policy.random=True, shrink={policy.shrink}: it "
            "has no config.json of its size); config.policy.weights of the run must be a folder, and shrink 1"
        )
    say("writing the checkpoint")
    merged = trained.network.merge(trained.params)
    write_qwen(out, merged, trained.network.network, source=source.folder, dtype=jnp.bfloat16)
    write_sums(out)
    about = {"parameters": count_parameters(merged), "phase": trained.phase, "step": trained.step}
    return {"folder": str(out), "files": list_sizes(out), "policy": about}
