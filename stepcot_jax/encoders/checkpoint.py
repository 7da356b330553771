"""A pretrained checkpoint on disk: recognised, checked to the last tensor, and read when something is encoded."""

import dataclasses
import pathlib
from typing import Any, Literal

import jax.numpy as jnp
from jax.typing import DTypeLike

from stepcot_jax.encoders.architecture import Architecture, count_parameters, recognise
from stepcot_jax.encoders.assignment import assign
from stepcot_jax.encoders.weight_sources import resolve
from stepcot_jax.encoders.weights import read_tensors, weights_digest
from stepcot_jax.host.errors import BadInput


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One part of a checkpoint, checked but not kept in memory.

    Attributes:
      architecture: of the whole checkpoint.
      path: folder or file.
      part: "image" or "text".
      digest: of the part's tensors.
    """

    architecture: Architecture
    path: pathlib.Path
    part: Literal["image", "text"]
    digest: str

    @property
    def shapes(self) -> Any:
        """The part's parameter tree with shapes as leaves."""
        return self.architecture.shapes()[self.part]

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole checkpoint."""
        return count_parameters(self.architecture.shapes())

    def read_params(self) -> Any:
        """The part's parameters.

        Raises:
          BadInput: the checkpoint is no longer what it was when it was opened.
        """
        tensors = read_tensors(self.path)
        params = _assign(self.architecture, tensors, self.path, only=f"{self.part}/")[self.part]
        if _digest_part(self.architecture, tensors, self.part) != self.digest:
            raise BadInput(f"{self.path}: found other weights than at the start, accepted are files that stay")
        return params


def open_checkpoint(source: str, dtype: DTypeLike, part: Literal["image", "text"]) -> Checkpoint:
    """Find a checkpoint, recognise its architecture, and check all of its tensors.

    Args:
      source: a folder, a file, or a Hugging Face id; see docs/encoders.md.
      dtype: compute dtype of its networks.
      part: which of its encoders is wanted.

    Raises:
      BadInput: there is no such checkpoint, it lacks the part, or its tensors do not fit its config.
    """
    path = resolve(source)
    tensors = read_tensors(path)
    architecture = recognise(path, tensors, jnp.dtype(dtype))
    if getattr(architecture, part) is None:
        raise BadInput(
            f"{path}: found a {architecture.name}, which has no {part} encoder, accepted are models with one"
        )
    _assign(architecture, tensors, path, only=None)
    return Checkpoint(architecture, path, part, _digest_part(architecture, tensors, part))


def _assign(architecture: Architecture, tensors: Any, path: pathlib.Path, *, only: str | None) -> dict[str, Any]:
    return assign(
        architecture.table,
        tensors,
        shapes=architecture.shapes(),
        unused=architecture.unused,
        only=only,
        source=str(path),
    )


def _digest_part(architecture: Architecture, tensors: Any, part: str) -> str:
    names = [name for name, place in architecture.table.items() if place.path.startswith(f"{part}/")]
    return weights_digest(tensors, names)
