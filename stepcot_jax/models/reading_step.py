"""One reading step as a pure function, which the teacher runs in a scan over its steps (paper: Appendix D.2)."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from stepcot_jax.models.graph_attention import GraphAttentionStack
from stepcot_jax.models.memory import MemoryCell, gated_update
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
      conclusion: answer distribution @ classifier weight -> input of the memory; None where nothing is written back.
      memory_cell: the memory's update; None where nothing is written back.
      memory: whether the last node is a memory, which every step reads beside its own node.
    """

    graph_attention: GraphAttentionStack
    context: Projection
    head: StepHead
    conclusion: nn.Dense | None
    memory_cell: MemoryCell | None
    memory: bool

    def attend(
        self, params: dict[str, Any], nodes: Array, *, keep: Array | None
    ) -> tuple[Array, Float[Array, "*case layer head node node"]]:
        """Pass all nodes through the graph attention.

        Args:
          params: parameters by the names of the modules, and "node_mask" [case, node], where False hides a node from
            the others; None hides none.
          nodes: [node, width] while the cases share them, else [case, node, width].
          keep: dropout's masks [case, layer, head, node i, node j]; None for none.

        Returns:
          Nodes, and attention [*case, layer, head, node i, node j]; with a case axis where the cases differ.
        """
        nodes, attentions = self.graph_attention.apply(
            {"params": params["graph_attention"]}, nodes, node_mask=params["node_mask"], keep=keep
        )
        # A layer that ran on shared nodes has no case axis yet.
        shape = max((weights.shape for weights in attentions), key=len)
        return nodes, jnp.stack([jnp.broadcast_to(weights, shape) for weights in attentions], axis=-4)

    def answer(
        self, params: dict[str, Any], nodes: Float[Array, "case node width"], inputs: dict[str, Any]
    ) -> tuple[Float[Array, "case node width"], dict[str, Any]]:
        """Answer one step from the nodes and write the answer back.

        Args:
          params: parameters by the names of the modules, but for the head's, which are the step's own.
          nodes: [case, node, width] after the step's graph attention.
          inputs: what belongs to the step: "step" (its number), "image_feature" [case, width], "head" (parameters),
            "classifier" (kernel [width, answer] and bias [answer]), "concluded" (see `conclude`), "given_answer"
            int [case] (-1 to predict) and "keep" (dropout's masks by place; empty for none).

        Returns:
          Nodes [case, node, width] after the write-back, and the outputs "logits" [case, answer] and "memory"
          [case, width] or None.
        """
        keep = inputs["keep"]
        source = jax.lax.dynamic_index_in_dim(nodes, inputs["step"], axis=-2, keepdims=False)
        if self.memory:
            source = jnp.concatenate([source, nodes[:, -1]], axis=-1)
        context = self.context.apply({"params": params["context"]}, source, keep.get("context"))
        hidden = self.head.apply(
            {"params": inputs["head"]}, inputs["image_feature"], context, keep.get("fusion_0"), keep.get("fusion_1")
        ).astype(jnp.float32)
        logits = hidden @ inputs["classifier"]["kernel"] + inputs["classifier"]["bias"][None]
        memory = self._write_back(params, nodes[:, -1], logits, inputs)
        if memory is not None:
            nodes = jnp.concatenate([nodes[:, :-1], memory[:, None]], axis=1)
        return nodes, {"logits": logits, "memory": memory}

    def conclude(
        self, params: dict[str, Any], kernels: Float[Array, "step width answer"]
    ) -> Float[Array, "step answer gates"] | None:
        """What each answer alone would give the memory's gates; None where nothing is written back.

        The write-back is linear from the answer distribution to the gates: distribution @ classifier weight, then
        `conclusion`, then the cell's input map. As a distribution sums to 1, biases included, applying both maps to
        the answers of all steps once and mixing the results is the same as applying them to every case of every
        step, and reads their weights once a pass.
        """
        if self.memory_cell is None or self.conclusion is None:
            return None
        answers = jnp.swapaxes(kernels, -1, -2).astype(self.memory_cell.dtype)
        concluded = self.conclusion.apply({"params": params["conclusion"]}, answers)
        into_gates = nn.Dense(params["memory_cell"]["input"]["bias"].shape[0], dtype=concluded.dtype, parent=None)
        return into_gates.apply({"params": params["memory_cell"]["input"]}, concluded)

    def _write_back(
        self, params: dict[str, Any], memory: Array, logits: Array, inputs: dict[str, Any]
    ) -> Float[Array, "case width"] | None:
        """The memory after it has taken in the step's answer, the predicted distribution or the given one."""
        if self.memory_cell is None:
            return memory if self.memory else None
        given = inputs["given_answer"][:, None]
        one_hot = jax.nn.one_hot(given[:, 0], logits.shape[-1])
        answer = jnp.where(given >= 0, one_hot, jax.nn.softmax(logits, axis=-1))
        hidden_map = params["memory_cell"]["hidden"]
        into_gates = nn.Dense(hidden_map["bias"].shape[0], dtype=self.memory_cell.dtype, parent=None)
        return gated_update(
            from_input=answer.astype(memory.dtype) @ inputs["concluded"],
            from_memory=into_gates.apply({"params": hidden_map}, memory),
            memory=memory,
        )
