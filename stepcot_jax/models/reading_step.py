"""One reading step as a pure function, which the teacher runs in a scan over its steps (paper: Appendix D.2)."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from stepcot_jax.models.graph_attention import GraphAttentionStack
from stepcot_jax.models.memory import MemoryCell
from stepcot_jax.models.projection import Projection


class StepHead(nn.Module):
    """Image feature of a step and its context -> the hidden vector that the step's classifier reads."""

    width: int
    dropout_rate: float
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, image_feature: Float[Array, "case width"], context: Float[Array, "case width"], *keeps: Array | None
    ) -> Float[Array, "case width"]:
        """Fuse `image_feature` and `context`, both [case, width]; `keeps` are dropout's masks of the two layers."""
        hidden = jnp.concatenate([image_feature, context], axis=-1)
        for layer, keep in enumerate(keeps or (None, None)):
            hidden = Projection(self.width, self.dropout_rate, self.dtype, name=f"fusion_{layer}")(hidden, keep)
        return hidden


@dataclasses.dataclass(frozen=True)
class ReadingStep:
    """The modules of a step, unbound: lax.scan wants pure functions, so their parameters come as an argument.

    Attributes:
      graph_attention: what all nodes pass through.
      context: node of the step, and memory if there is one -> context.
      head: image feature and context -> what the classifier reads.
      conclusion: answer distribution @ classifier weight -> input of the memory; None without a memory.
      memory_cell: the memory's update; None without a memory.
    """

    graph_attention: GraphAttentionStack
    context: Projection
    head: StepHead
    conclusion: nn.Dense | None
    memory_cell: MemoryCell | None

    def __call__(
        self,
        params: dict[str, Any],
        nodes: Array,
        inputs: dict[str, Any],
        *,
        node_mask: Array | None,
        with_attention: bool,
    ) -> tuple[Array, dict[str, Any]]:
        """Read one step.

        Args:
          params: parameters by the names of the modules, but for the head's, which are the step's own.
          nodes: [node, width] while the cases share them, else [case, node, width].
          inputs: what belongs to the step: "step" (its number), "image_feature" [case, width], "head" (parameters),
            "classifier" (kernel [width, answer] and bias [answer]), "given_answer" int [case] (-1 to predict) and
            "keep" (dropout's masks by place; empty for none).
          node_mask: [case, node], False hides a node from the others; None hides none.
          with_attention: return the attention weights too.

        Returns:
          Nodes [case, node, width] after the write-back, and the outputs "logits" [case, answer], "memory"
          [case, width] or None, and "attention" [case, layer, head, node i, node j] or None.
        """
        keep, num_cases = inputs["keep"], inputs["image_feature"].shape[0]
        nodes, attentions = self.graph_attention.apply(
            {"params": params["graph_attention"]}, nodes, node_mask=node_mask, keep=keep.get("attention")
        )
        source = jax.lax.dynamic_index_in_dim(nodes, inputs["step"], axis=-2, keepdims=False)
        if self.memory_cell is not None:
            source = jnp.concatenate([source, nodes[..., -1, :]], axis=-1)
        context = self.context.apply({"params": params["context"]}, source, keep.get("context"))
        hidden = self.head.apply(
            {"params": inputs["head"]},
            inputs["image_feature"],
            jnp.broadcast_to(context, (num_cases, context.shape[-1])),
            keep.get("fusion_0"),
            keep.get("fusion_1"),
        ).astype(jnp.float32)
        logits = hidden @ inputs["classifier"]["kernel"] + inputs["classifier"]["bias"][None]
        nodes = jnp.broadcast_to(nodes, (num_cases, *nodes.shape[-2:]))
        memory = self._write_back(params, nodes[:, -1], logits, inputs)
        if memory is not None:
            nodes = jnp.concatenate([nodes[:, :-1], memory[:, None]], axis=1)
        attention = None
        if with_attention:
            # A layer that ran on shared nodes has no case axis yet.
            full = [jnp.broadcast_to(weights, (num_cases, *weights.shape[-3:])) for weights in attentions]
            attention = jnp.stack(full, axis=1)
        return nodes, {"logits": logits, "memory": memory, "attention": attention}

    def _write_back(
        self, params: dict[str, Any], memory: Array, logits: Array, inputs: dict[str, Any]
    ) -> Float[Array, "case width"] | None:
        """The memory after it has taken in the step's answer, the predicted distribution or the given one."""
        if self.memory_cell is None or self.conclusion is None:
            return None
        given = inputs["given_answer"][:, None]
        one_hot = jax.nn.one_hot(given[:, 0], logits.shape[-1])
        answer = jnp.where(given >= 0, one_hot, jax.nn.softmax(logits, axis=-1))
        concluded = (answer @ inputs["classifier"]["kernel"].T).astype(memory.dtype)
        concluded = self.conclusion.apply({"params": params["conclusion"]}, concluded)
        return self.memory_cell.apply({"params": params["memory_cell"]}, concluded, memory)
