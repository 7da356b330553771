"""Everything that training changes, in one tree that a checkpoint can hold."""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from stepcot_jax.models.baseline import Baseline
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher

Params = dict[str, Any]


class Networks(flax.struct.PyTreeNode):
    """The modules of a run; all static.

    Attributes:
      teacher: the graph-attention teacher.
      student: the chain student.
      image_encoder: images -> features, trained with the teacher; None when batches carry features.
      projection_width: width of the space in which channel alignment compares the two.
      remat: compute the image encoder's activations again in the backward pass instead of keeping them.
      baseline: the perceptron on pooled embeddings; None where no run needs it.
    """

    teacher: Teacher = flax.struct.field(pytree_node=False)
    student: Student = flax.struct.field(pytree_node=False)
    image_encoder: nn.Module | None = flax.struct.field(pytree_node=False, default=None)
    projection_width: int = flax.struct.field(pytree_node=False, default=256)
    remat: bool = flax.struct.field(pytree_node=False, default=False)
    baseline: Baseline | None = flax.struct.field(pytree_node=False, default=None)


class TrainState(flax.struct.PyTreeNode):
    """State of a run between two batches.

    Attributes:
      step: int32 scalar, batches seen since the start of the run.
      params: by part: "teacher", "student", "teacher_projection", "student_projection", "image_encoder" if trained.
      optimizers: optimizer states, "teacher" and "student".
      key: data of the run's random key, uint32; a step's own keys are folded from it and `step`.
    """

    step: Array
    params: Params
    optimizers: dict[str, optax.OptState]
    key: Array

    def key_of_step(self) -> Array:
        """The random key of the batch to come."""
        return jax.random.fold_in(jax.random.wrap_key_data(self.key), self.step)


def init_params(networks: Networks, *, key: Array, batch: dict[str, Array], text_features: Array | None) -> Params:
    """Random parameters of all networks for batches of the given shapes.

    Args:
      networks: the modules.
      key: random key.
      batch: an example with "image_features" [case, width], or "images" [case, height, width, 3] when there is an
        image encoder; only its shape matters.
      text_features: [step, width] or [case, step, width]; None without text.
    """
    encoder_key, teacher_key, student_key, *projection_keys = jax.random.split(key, 5)
    params: Params = {}
    if networks.image_encoder is None:
        features = jnp.zeros_like(batch["image_features"][:1])
    else:
        images = jnp.zeros_like(batch["images"][:1])
        params["image_encoder"] = networks.image_encoder.init(encoder_key, images)["params"]
        features = networks.image_encoder.apply({"params": params["image_encoder"]}, images)
    if text_features is not None and text_features.ndim == 3:
        text_features = text_features[:1]
    params["teacher"] = networks.teacher.init(
        teacher_key, image_features=features, text_features=text_features, deterministic=True
    )["params"]
    params["student"] = networks.student.init(student_key, image_features=features, deterministic=True)["params"]
    for side, width, projection_key in zip(
        ("teacher", "student"), (networks.teacher.width, networks.student.width), projection_keys, strict=True
    ):
        projection = nn.Dense(networks.projection_width)
        params[f"{side}_projection"] = projection.init(projection_key, jnp.zeros((1, width)))["params"]
    return params


def count_parameters(params: Any) -> int:
    """Number of scalars in a parameter tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def shapes_by_name(tree: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays of a state or of a checkpoint's metadata; random keys have none that compare."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
        if name != "key":
            found[name] = tuple(leaf.shape)
    return found
