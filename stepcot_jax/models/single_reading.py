"""Reading one radiograph fast: every step's head where it lies, instead of copied out of a stack.

With a handful of cases the teacher's time is the time to read its weights. A scan over steps copies each step's head
out of the stacked ones before it uses it, which for a single case doubles that time. Training keeps the stack, whose
copies are small beside a batch's arithmetic and which compiles once for all steps.
"""

from typing import Any

import jax
import jax.numpy as jnp


def split_heads(teacher_params: dict[str, Any]) -> dict[str, Any]:
    """The teacher's parameters with a tree for each step's head in place of the stacked ones.

    Args:
      teacher_params: as `models.teacher.Teacher` declares them.

    Returns:
      The same with "heads" a tuple, one tree a step; for `join_heads` inside of a compiled function.
    """
    num_steps = len(jax.tree.leaves(teacher_params["heads"])[0])
    heads = tuple(
        jax.tree.map(lambda leaf, step=step: leaf[step], teacher_params["heads"]) for step in range(num_steps)
    )
    return {**teacher_params, "heads": heads}


def join_heads(split_params: dict[str, Any]) -> dict[str, Any]:
    """What `split_heads` was given.

    Inside of a compiled function, with a teacher whose `unroll` is True, nothing is copied: taking a step's head out of
    a stack that was just made of the heads is that head.
    """
    return {**split_params, "heads": jax.tree.map(lambda *leaves: jnp.stack(leaves), *split_params["heads"])}
