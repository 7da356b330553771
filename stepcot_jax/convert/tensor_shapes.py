"""Which tensor contradicts the others in shape?

Sizes are not asked for: each axis has a name ("teacher_width"), every tensor says how long it takes that axis to be,
and the length that most tensors agree on is taken. So the tensor that is refused is the odd one, whichever it is.
"""

import collections
from collections.abc import Mapping

from stepcot_jax.host.errors import BadInput

Axis = str | int
"""A named length, a multiple of one such as "3*teacher_width", or a fixed one."""


def find_lengths(shapes: Mapping[str, tuple[int, ...]], axes: Mapping[str, tuple[Axis, ...]]) -> dict[str, int]:
    """The length of each named axis that most tensors agree on.

    Args:
      shapes: tensor names -> found shapes.
      axes: tensor names -> named axes.

    >>> find_lengths({"kernel": (2, 3), "bias": (2,)}, {"kernel": ("out", "in"), "bias": ("out",)})
    {'out': 2, 'in': 3}
    """
    votes: dict[str, collections.Counter[int]] = {}
    for name, shape in shapes.items():
        if len(shape) != len(axes[name]):
            continue
        for length, axis in zip(shape, axes[name], strict=True):
            factor, axis_name = _parse(axis)
            if axis_name and length % factor == 0:
                votes.setdefault(axis_name, collections.Counter())[length // factor] += 1
    return {name: counter.most_common(1)[0][0] for name, counter in votes.items()}


def _parse(axis: Axis) -> tuple[int, str]:
    """An axis as factor and name; the name is empty for a fixed length."""
    if isinstance(axis, int):
        return axis, ""
    factor, _, name = axis.rpartition("*")
    return int(factor or 1), name


def refuse_misshapen(shapes: Mapping[str, tuple[int, ...]], axes: Mapping[str, tuple[Axis, ...]]) -> None:
    """Refuse the tensors whose shapes contradict those of the others.

    Args:
      shapes: tensor names -> found shapes.
      axes: tensor names -> named axes.

    Raises:
      BadInput: there are such tensors; all of them are listed with found and expected shape.
    """
    sizes = find_lengths(shapes, axes)
    if {"num_heads", "teacher_width"} <= set(sizes):  # the heads share the width, whatever a_src and a_dst say
        sizes["head_width"] = sizes["teacher_width"] // sizes["num_heads"]
    problems = []
    for name, shape in shapes.items():
        expected = []
        for axis in axes[name]:
            factor, axis_name = _parse(axis)
            expected.append(factor * sizes.get(axis_name, 0) if axis_name else factor)
        if tuple(expected) != tuple(shape):
            words = ", ".join(str(axis) for axis in axes[name])
            problems.append(f"{name}: found shape {list(shape)}, expected {expected} ({words})")
    if problems:
        raise BadInput("; ".join(problems))
