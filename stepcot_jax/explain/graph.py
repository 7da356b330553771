"""Attention between the teacher's steps and its memory, as a table."""

import numpy as np
from jaxtyping import Float, Float32

from stepcot_jax.chain import Chain
from stepcot_jax.host.errors import BadInput

MEMORY = "Memory"


def step_attention(
    attention: Float32[np.ndarray, "case step layer head node node"], *, layer: int = -1
) -> Float[np.ndarray, "case step node"]:
    """How much each step, when it is its turn, attends to every step and to the memory; rows sum to 1.

    Args:
      attention: of the teacher's graph, in the pass before each step's answer.
      layer: of the graph attention; the last one makes what the step reads.

    Returns:
      The mean over the heads.
    """
    num_steps = attention.shape[1]
    of_layer = attention[:, :, layer].mean(axis=2, dtype=np.float64)
    return of_layer[:, np.arange(num_steps), np.arange(num_steps)]


def node_names(chain: Chain, *, num_nodes: int) -> tuple[str, ...]:
    """Names of the graph's nodes: the steps, then the memory where there is one.

    Raises:
      BadInput: the chain has another number of steps than the graph.
    """
    names = tuple(step.name for step in chain.steps)
    if num_nodes not in (len(names), len(names) + 1):
        raise BadInput(f"attention: found {num_nodes} nodes, accepted are {len(names)} steps with or without a memory")
    return names + (MEMORY,) * (num_nodes - len(names))


def attention_table(weights: Float[np.ndarray, "step node"], chain: Chain) -> dict[str, dict[str, float]]:
    """Attention of each step by name, for JSON."""
    names = node_names(chain, num_nodes=weights.shape[1])
    return {
        step.name: {name: float(weight) for name, weight in zip(names, row, strict=True)}
        for step, row in zip(chain.steps, weights, strict=True)
    }
