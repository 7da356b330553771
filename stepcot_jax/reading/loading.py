"""`load(workdir)`: a trained network, or a trained policy, as a reader of radiographs."""

import os
import pathlib
from typing import Any

import numpy as np

from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading import image_reader
from stepcot_jax.run.given import read_given
from stepcot_jax.run.stored import read_stored


def load(
    workdir: str | os.PathLike[str],
    *,
    model: str | None = None,
    batch_size: int = 1,
    as_published: bool = False,
    system: Any = None,
) -> Any:
    """Load a run's trained network or policy as a reader of radiographs.

    Args:
      workdir: a folder that `stepcot_jax.main` or `stepcot export` wrote, also on a store, "gs://BUCKET/FOLDER" or
        "s3://BUCKET/FOLDER"; or an export on the Hugging Face hub, "hf://OWNER/NAME" or "hf://OWNER/NAME@REVISION",
        whose JSON and safetensors are downloaded and not run.
      model: "teacher" or "student"; None loads the student if the run has one. Of a policy, the phase with the wanted
        weights, "sft" or "grpo"; None for the last phase.
      batch_size: images that `ImageReader.read_files` reads at once; not for a policy.
      as_published: whether the network's own answers are read, each given one written back to it, and not its joint
        model, which a run of an earlier version lacks (`evaluation.joint`); not for a policy.
      system: of a run that `fit` trained with networks of its caller: a system with the same networks.

    Returns:
      For jobs that train a policy a `policy_reader.PolicyReader`, which answers questions: `.answer(image, question)`;
      for others an `image_reader.ImageReader`, which reads the steps: `.read(image)`.

    Raises:
      BadInput: the workdir is incomplete or damaged, or its networks cannot read images; or the store or the hub has no
        such folder.
    """
    workdir = find_path(workdir, "checkpoint")
    if not read_stored(workdir).trains_policy:
        return image_reader.load(workdir, model=model, batch_size=batch_size, as_published=as_published, system=system)
    if batch_size != 1 or as_published:
        problem = f"a policy takes neither batch_size nor as_published; got {batch_size} and {as_published}"
        raise BadInput(f"{workdir}: {problem}")
    from stepcot_jax.reading.policy_reader import load_reader

    return load_reader(workdir, phase=model)


def prepare_first_answer(workdir: pathlib.Path) -> tuple[str, ...]:
    """Read an empty image with each network, so that the user's cache has the programs of `predict`."""
    run = read_stored(workdir)
    if run.problem or read_given(workdir).networks:
        return ()
    for name in run.names:
        image_reader.load(workdir, model=name).read(np.zeros((8, 8), np.uint8))
    return run.names
