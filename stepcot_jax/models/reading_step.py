"""One step of the teacher as a pure function, for a scan over the steps (paper: Eq. 12 to 16)."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from stepcot_jax.models.given import is_given
from stepcot_jax.models.graph_attention import GraphAttentionStack
from stepcot_jax.models.memory import MemoryCell, gated_update
from stepcot_jax.models.projection import Projection


class StepHead(nn.Module):
    """Fuses a step's image feature and context into the input of its classifier."""

    width: int
    dropout_rate: float
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, image_feature: Float[Array, "case width"], context: Float[Array, "case width"], *keeps: Array | None
    ) -> Float[Array, "case width"]:
        """Fuse `image_feature` and `context`, both [case, width]; `keeps` are the dropout masks of the two layers."""
        hidden = jnp.concatenate([image_feature, context], axis=-1)
        for layer, keep in enumerate(keeps or (None, None)):
            hidden = Projection(self.width, self.dropout_rate, self.dtype, name=f"fusion_{layer}")(hidden, keep)
        return hidden


@dataclasses.dataclass(frozen=True)
class ReadingStep:
    """The unbound modules of a step; `lax.scan` needs pure functions, so parameters are arguments.

    Attributes:
      graph_attention: applied to all nodes.
      context: node of the step, and the memory if any -> context.
      head: image feature and context -> input of the classifier.
      conclusion: answer distribution @ classifier weight -> input of the memory; None without write-back.
      memory_cell: update of the memory; None without write-back.
      memory: whether the last node is a memory, which every step reads together with its own node.
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
        """Apply the graph attention to all nodes.

        Args:
          params: parameters by module name, and "node_mask" [case, node] (False hides a node from the others) or None.
          nodes: [node, width] if the cases share them, else [case, node, width].
          keep: dropout masks [case, layer, head, node i, node j].

        Returns:
          Nodes, and attention [*case, layer, head, node i, node j]; with a case axis if the cases differ.
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
        """Answer one step and write the answer to the memory.

        Args:
          params: parameters by module name, without the head's.
          nodes: [case, node, width] after the step's graph attention.
          inputs: of this step: "step" (index), "image_feature" [case, width], "head" (parameters), "classifier"
            (kernel [width, answer] and bias [answer]), "concluded" (see `conclude`), "given_answer" [case, answer] (a
            distribution, or zeros to predict; None to predict for every case) and "keep" (dropout masks by place,
            possibly empty).

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
        """Return the contribution of each single answer to the memory's gates; None without write-back.

        The write-back is linear from answer distribution to gates: distribution @ classifier weight, `conclusion`, the
        cell's input map. A distribution sums to 1, so both maps, biases included, can be applied to all answers once
        and their results mixed for each case, which reads the weights once per pass.
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
        """Return the memory updated with the step's answer, the predicted distribution or the given one."""
        if self.memory_cell is None:
            return memory if self.memory else None
        answer, given = jax.nn.softmax(logits, axis=-1), inputs["given_answer"]
        if given is not None:
            answer = jnp.where(is_given(given)[:, None], given, answer)
        hidden_map = params["memory_cell"]["hidden"]
        into_gates = nn.Dense(hidden_map["bias"].shape[0], dtype=self.memory_cell.dtype, parent=None)
        return gated_update(
            from_input=answer.astype(memory.dtype) @ inputs["concluded"],
            from_memory=into_gates.apply({"params": hidden_map}, memory),
            memory=memory,
        )


def split_heads(teacher_params: dict[str, Any]) -> dict[str, Any]:
    """Return the teacher's parameters with the stacked step heads as a tuple of trees, for reading few cases fast.

    With a handful of cases the teacher's time is the time to read its weights. A scan copies each step's head out of
    the stack first, which doubles the time of a single case. Training keeps the stack: its copies are small compared
    with a batch's arithmetic, and it compiles once for all steps.

    Args:
      teacher_params: as declared by `models.teacher.Teacher`.

    Returns:
      The parameters with "heads" a tuple; a compiled function passes them to `join_heads`.
    """
    num_steps = len(jax.tree.leaves(teacher_params["heads"])[0])
    heads = tuple(
        jax.tree.map(lambda leaf, step=step: leaf[step], teacher_params["heads"]) for step in range(num_steps)
    )
    return {**teacher_params, "heads": heads}


def join_heads(split_params: dict[str, Any]) -> dict[str, Any]:
    """Undo `split_heads`; in a compiled function, with a teacher whose `unroll` is True, this copies nothing."""
    return {**split_params, "heads": jax.tree.map(lambda *leaves: jnp.stack(leaves), *split_params["heads"])}
