"""Teacher: steps as graph nodes, a memory node, and write-back of every answer (paper: Eq. 7 to 16)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.models.deferred_gradients import scan_steps
from stepcot_jax.models.layers import (
    GraphAttentionStack,
    MemoryCell,
    Projection,
    draw_keeps,
    gated_update,
    given_distributions,
    is_given,
)
from stepcot_jax.models.student import ABSENT_LOGIT, stack_heads

# One step of the teacher as a pure function, for a scan over the steps (paper: Eq. 12 to 16).


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
            distribution, or zeros to predict; None to predict for every case) and "keep" (dropout masks by site,
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


class TeacherReading(flax.struct.PyTreeNode):
    """The teacher's output for a batch.

    Attributes:
      logits: float32 [case, step, answer]; `ABSENT_LOGIT` where a step has fewer answers.
      image_features: [case, step, width], each step's image projection; input of channel alignment.
      memory: [case, step, width] after each step's write-back; None without a memory.
      attention: [case, step, layer, head, node i, node j]; None unless requested.
    """

    logits: Any
    image_features: Any
    memory: Any
    attention: Any


class Teacher(nn.Module):
    """Image and prompt features -> logits of all steps.

    The steps run in one scan over stacked step heads, so that compile time does not grow with their number. The first
    pass of the graph attention, whose nodes the batch may share, and the last answer are outside the scan.

    Attributes:
      answers_per_step: number of answers of each step.
      width: size of nodes, memory and image projections (d_T, 768 in the paper).
      num_layers: graph-attention layers per pass.
      num_heads: heads per layer.
      negative_slope: of the attention's LeakyReLU.
      attention_dropout_rate: dropout of attention weights.
      context_dropout_rate: dropout of the fused context.
      head_dropout_rate: dropout of image projections and step heads.
      memory: False removes the memory node and its GRU (ablation).
      write_back: False writes no answer to the memory node (ablation): it still takes part in the graph attention, but
        answers reach no later step.
      text: False replaces prompts by learned step vectors (ablation).
      unroll: True compiles the steps one by one, for a single case or for comparison.
      remat: True keeps only the state between steps for the backward pass and recomputes the rest.
      dtype: compute dtype; logits, softmax and parameters are float32.
    """

    answers_per_step: Sequence[int]
    width: int = 768
    num_layers: int = 2
    num_heads: int = 4
    negative_slope: float = 0.2
    attention_dropout_rate: float = 0.1
    context_dropout_rate: float = 0.2
    head_dropout_rate: float = 0.3
    memory: bool = True
    write_back: bool = True
    text: bool = True
    unroll: bool = False
    remat: bool = False
    dtype: DTypeLike = jnp.float32

    def setup(self) -> None:
        """Declare the parameters (called by Flax)."""
        num_steps, case = len(self.answers_per_step), jnp.zeros((1, self.width))
        modules = self._reading_step
        self.graph_attention = self._declare("graph_attention", modules.graph_attention, case)
        self.context = self._declare("context", modules.context, jnp.tile(case, 2 if self.memory else 1))
        self.heads = self._declare("heads", modules.head, case, case, copies=num_steps)
        self.classifiers = [
            self._declare(f"classifier_{step}", nn.Dense(num_answers, parent=None), case)
            for step, num_answers in enumerate(self.answers_per_step)
        ]
        if self.memory:
            self.memory_start = self.param("memory_start", nn.initializers.zeros, (self.width,))
        if self._writes_back:
            self.memory_cell = self._declare("memory_cell", modules.memory_cell, case, case)
            self.conclusion = self._declare("conclusion", modules.conclusion, case)
        if not self.text:
            self.step_vectors = self.param("step_vectors", nn.initializers.normal(1.0), (num_steps, self.width))
        self.image_projections = Projection(self.width, self.head_dropout_rate, self.dtype)
        self.text_projection = nn.Dense(self.width, dtype=self.dtype)

    @property
    def _reading_step(self) -> ReadingStep:
        return ReadingStep(
            graph_attention=GraphAttentionStack(
                num_layers=self.num_layers,
                num_heads=self.num_heads,
                width=self.width,
                negative_slope=self.negative_slope,
                dropout_rate=self.attention_dropout_rate,
                dtype=self.dtype,
                parent=None,
            ),
            context=Projection(self.width, self.context_dropout_rate, self.dtype, parent=None),
            head=StepHead(self.width, self.head_dropout_rate, self.dtype, parent=None),
            conclusion=nn.Dense(self.width, dtype=self.dtype, parent=None) if self._writes_back else None,
            memory_cell=MemoryCell(self.dtype, parent=None) if self._writes_back else None,
            memory=self.memory,
        )

    @property
    def _writes_back(self) -> bool:
        return self.memory and self.write_back

    def _declare(self, name: str, module: Any, *inputs: Array, copies: int | None = None) -> Any:
        """Declare the parameters of an unbound module, stacked `copies` times on a leading axis if given."""

        def init(key: Array) -> Any:
            def init_one(one_key: Array) -> Any:
                return module.init(one_key, *inputs)["params"]

            return init_one(key) if copies is None else jax.vmap(init_one)(jax.random.split(key, copies))

        return self.param(name, init)

    def __call__(
        self,
        *,
        image_features: Float[Array, "case image_width"],
        text_features: Float[Array, "*case_or_none step text_width"] | None = None,
        node_mask: Bool[Array, "case node"] | None = None,
        given_answers: Int[Array, "case step"] | Float[Array, "case step answer"] | None = None,
        deterministic: bool,
        with_attention: bool = False,
        first_case: Int[Array, ""] | int = 0,
    ) -> TeacherReading:
        """Read a batch, step by step.

        Args:
          image_features: [case, image width].
          text_features: [step, text width] if the cases share their prompts, else [case, step, text width]; None
            without text. A text width other than the teacher's goes through a learned linear map.
          node_mask: [case, node], the steps in order, then the memory; False hides a node from the others.
          given_answers: labels [case, step], -1 to predict, or soft answers [case, step, answer], zeros to predict. A
            given answer is written to memory instead of the prediction; the step's logits stay the prediction.
          deterministic: disables dropout; otherwise an rng named "dropout" is required.
          with_attention: also return the attention weights.
          first_case: position of the first case in the global batch, which seeds the dropout masks.

        Raises:
          ValueError: text features are missing, or do not have one vector per step.
        """
        num_cases, num_steps = image_features.shape[0], len(self.answers_per_step)
        nodes = self._first_nodes(text_features)
        if node_mask is not None:
            nodes = jnp.broadcast_to(nodes, (num_cases, *nodes.shape[-2:]))
        keeps = {} if deterministic else self._draw_keeps(first_case + jnp.arange(num_cases))
        projected = self._project_image(image_features, keeps.pop("image", None))
        classifiers = stack_heads(self.classifiers, absent_bias=ABSENT_LOGIT)
        shared = {"graph_attention": self.graph_attention, "context": self.context, "node_mask": node_mask}
        if self._writes_back:
            shared |= {"memory_cell": self.memory_cell, "conclusion": self.conclusion}
        attention_keeps = keeps.pop("attention", None)
        inputs = {
            "step": jnp.arange(num_steps),
            "image_feature": projected,
            "head": self.heads,
            "classifier": classifiers,
            "concluded": self._reading_step.conclude(shared, classifiers["kernel"]),
            "given_answer": given_distributions(given_answers, num_answers=max(self.answers_per_step)),
            "keep": keeps,
        }
        outputs = self._read_steps(shared, nodes, inputs, attention_keeps)
        outputs["attention"] = outputs["attention"] if with_attention else None
        by_case = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), outputs)
        return TeacherReading(image_features=jnp.moveaxis(projected, 0, 1), **by_case)

    def _read_steps(
        self, shared: dict[str, Any], nodes: Array, inputs: dict[str, Any], attention_keeps: Array | None
    ) -> dict[str, Any]:
        """Return outputs of all steps [step, case, ...]: attend, then answer and attend again, then the last answer."""
        attend, answer = self._reading_step.attend, self._reading_step.answer

        def answer_and_attend(shared: dict[str, Any], nodes: Array, scanned: Any) -> tuple[Array, dict[str, Any]]:
            step_inputs, keep_of_next = scanned
            nodes, outputs = answer(shared, nodes, step_inputs)
            nodes, attention = attend(shared, nodes, keep=keep_of_next)
            return nodes, outputs | {"attention": attention}

        keep_of_first = None if attention_keeps is None else attention_keeps[0]
        keeps_of_rest = None if attention_keeps is None else attention_keeps[1:]
        num_cases = inputs["image_feature"].shape[1]
        nodes, attention = attend(shared, nodes, keep=keep_of_first)
        nodes = jnp.broadcast_to(nodes, (num_cases, *nodes.shape[-2:]))
        attention = jnp.broadcast_to(attention, (num_cases, *attention.shape[-4:]))
        scanned = (jax.tree.map(lambda leaf: leaf[:-1], inputs), keeps_of_rest)
        nodes, outputs = scan_steps(answer_and_attend, shared, nodes, scanned, unroll=self.unroll, remat=self.remat)
        attentions = outputs.pop("attention")
        _, of_last = answer(shared, nodes, jax.tree.map(lambda leaf: leaf[-1], inputs))
        outputs = jax.tree.map(lambda others, one: jnp.concatenate([others, one[None]]), outputs, of_last)
        return outputs | {"attention": jnp.concatenate([attention[None], attentions])}

    def _draw_keeps(self, cases: Array) -> dict[str, Array]:
        """Draw the dropout masks [step, case, ...] of every site in a pass."""
        num_nodes = (num_steps := len(self.answers_per_step)) + self.memory
        sites = {
            "image": ((self.width,), self.head_dropout_rate),
            "context": ((self.width,), self.context_dropout_rate),
            "fusion_0": ((self.width,), self.head_dropout_rate),
            "fusion_1": ((self.width,), self.head_dropout_rate),
            "attention": ((self.num_layers, self.num_heads, num_nodes, num_nodes), self.attention_dropout_rate),
        }
        return draw_keeps(self.make_rng("dropout"), cases=cases, leading=(num_steps,), sites=sites)

    def _project_image(self, image_features: Array, keep: Array | None) -> Array:
        """Return each step's projection of the image feature, [step, case, width]."""
        project = nn.vmap(
            lambda projection, features, keep: projection(features, keep),
            in_axes=(None, None if keep is None else 0),
            axis_size=len(self.answers_per_step),
            variable_axes={"params": 0},
            split_rngs={"params": True},
        )
        return project(self.image_projections, image_features, keep)

    def _first_nodes(self, text_features: Array | None) -> Array:
        """Return the initial nodes, [node, width] if all cases share them, else [case, node, width]."""
        num_steps = len(self.answers_per_step)
        if not self.text:
            nodes = self.step_vectors
        elif text_features is None or text_features.shape[-2] != num_steps:
            shape = None if text_features is None else text_features.shape
            raise ValueError(f"text_features must have shape [{num_steps}, width]; got {shape}")
        else:
            nodes = text_features
            if nodes.shape[-1] != self.width:
                nodes = self.text_projection(nodes)
        nodes = nodes.astype(self.dtype)
        if not self.memory:
            return nodes
        memory = jnp.broadcast_to(self.memory_start.astype(self.dtype), (*nodes.shape[:-2], 1, self.width))
        return jnp.concatenate([nodes, memory], axis=-2)
