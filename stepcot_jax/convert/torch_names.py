"""The authors' PyTorch parameter names and our paths: one entry per tensor.

Layouts: torch stores a linear map as [out, in], Flax as [in, out]; the authors have one model per step, we stack the
heads of all steps on a leading axis; the memory's start is [1, width] in torch and [width] here.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

Axis = str | int
"""A named length, a multiple of one such as "3*teacher_width", or a fixed length."""

NETWORKS: dict[str, str] = {
    "teacher": "teacher",
    "student": "student",
    "proj_t": "teacher_projection",
    "proj_s": "student_projection",
}
"""The authors' name of each network -> ours."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor: name and axes in the authors' state_dict, our path, and the difference in layout."""

    torch_name: str
    path: tuple[str, ...]
    axes: tuple[Axis, ...]
    transposed: bool = False
    step: int | None = None
    leading_one: bool = False

    def to_flax(self, array: np.ndarray) -> np.ndarray:
        """Convert from the authors' layout, of one step where steps are stacked."""
        array = array.T if self.transposed else array
        return array[0] if self.leading_one else array

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """Convert to the authors' layout; the inverse of `to_flax`."""
        array = array[None] if self.leading_one else array
        return array.T if self.transposed else array

    @property
    def flax_axes(self) -> tuple[Axis, ...]:
        """Axes of our parameter."""
        axes = self.axes[::-1] if self.transposed else self.axes
        axes = axes[1:] if self.leading_one else axes
        return axes if self.step is None else ("num_steps", *axes)


def _linear(
    torch_name: str, *path: str, out: Axis, into: Axis, step: int | None = None, bias: bool = True
) -> Iterator[Entry]:
    yield Entry(f"{torch_name}.weight", (*path, "kernel"), (out, into), transposed=True, step=step)
    if bias:
        yield Entry(f"{torch_name}.bias", (*path, "bias"), (out,), step=step)


def _norm(torch_name: str, *path: str, width: Axis, step: int | None = None) -> Iterator[Entry]:
    yield Entry(f"{torch_name}.weight", (*path, "scale"), (width,), step=step)
    yield Entry(f"{torch_name}.bias", (*path, "bias"), (width,), step=step)


def _block(torch_name: str, first: int, *path: str, out: Axis, into: Axis, step: int | None = None) -> Iterator[Entry]:
    yield from _linear(f"{torch_name}.{first}", *path, "linear", out=out, into=into, step=step)
    yield from _norm(f"{torch_name}.{first + 1}", *path, "norm", width=out, step=step)


def entries(network: str, *, num_steps: int, num_layers: int, memory: bool = True) -> tuple[Entry, ...]:
    """List every tensor of a network."""
    if network in ("proj_t", "proj_s"):
        width = "teacher_width" if network == "proj_t" else "student_width"
        kernel = Entry("weight", ("kernel",), ("projection_width", width), transposed=True)
        return (kernel, Entry("bias", ("bias",), ("projection_width",)))
    if network == "student":
        heads = (
            entry
            for step in range(num_steps)
            for entry in _linear(f"step_heads.{step}", f"head_{step}", out=f"answers_{step}", into="student_width")
        )
        return (*_block("img_proj", 0, "image_projection", out="student_width", into="image_width"), *heads)
    return tuple(_teacher_entries(num_steps, num_layers, memory))


def _teacher_entries(num_steps: int, num_layers: int, memory: bool) -> Iterator[Entry]:
    width, both = "teacher_width", "2*teacher_width"
    for step in range(num_steps):
        model = f"step_models.{step}"
        yield from _block(f"{model}.img_proj", 0, "image_projections", out=width, into="image_width", step=step)
        yield from _block(f"{model}.fusion_head", 0, "heads", "fusion_0", out=width, into=both, step=step)
        yield from _block(f"{model}.fusion_head", 4, "heads", "fusion_1", out=width, into=width, step=step)
        yield from _linear(f"{model}.classifier", f"classifier_{step}", out=f"answers_{step}", into=width)
    for layer in range(num_layers):
        yield from _graph_attention_entries(layer)
    yield from _block("fusion_proj", 0, "context", out=width, into=both if memory else width)
    if memory:
        yield Entry("memory_init", ("memory_start",), (1, width), leading_one=True)
        for torch_part, part in (("ih", "input"), ("hh", "hidden")):
            kernel, bias = ("memory_cell", part, "kernel"), ("memory_cell", part, "bias")
            yield Entry(f"mem_gru.weight_{torch_part}", kernel, ("3*teacher_width", width), transposed=True)
            yield Entry(f"mem_gru.bias_{torch_part}", bias, ("3*teacher_width",))
        yield from _linear("pred2mem", "conclusion", out=width, into=width)


def _graph_attention_entries(layer: int) -> Iterator[Entry]:
    theirs, ours = f"memory_gat.layers.{layer}", ("graph_attention", f"attention_{layer}")
    # The names suggest the reverse: in the authors' code `a_src` multiplies the attending node i (a row of the
    # attention matrix, our "target") and `a_dst` the attended node j (our "source"). The golden numbers show it:
    # `gat/attention_layer0` agrees to 2e-7 this way and differs by 0.7 the other way.
    yield Entry(f"{theirs}.a_src", (*ours, "target"), ("num_heads", "head_width"))
    yield Entry(f"{theirs}.a_dst", (*ours, "source"), ("num_heads", "head_width"))
    yield Entry(f"{theirs}.bias", (*ours, "bias"), ("teacher_width",))
    yield from _linear(f"{theirs}.W", *ours, "linear", out="teacher_width", into="teacher_width", bias=False)
    residual = ("graph_attention", f"residual_{layer}")
    yield from _linear(f"memory_gat.projs.{layer}", *residual, out="teacher_width", into="teacher_width")
    yield from _norm(f"memory_gat.norms.{layer}", "graph_attention", f"norm_{layer}", width="teacher_width")
