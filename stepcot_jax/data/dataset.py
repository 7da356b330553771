"""The cases of a run: chain, labels, splits, and pixels at the encoder's size."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.data.images.image_files import ImageFiles
from stepcot_jax.data.images.pixels import PixelCache
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.records import SetAside, write_quarantine
from stepcot_jax.data.splits.splits import Splits, write_manifest
from stepcot_jax.host.errors import BadInput


@dataclasses.dataclass(frozen=True)
class Dataset:
    """All that training and evaluation need of the data.

    Attributes:
      chain: the steps with their options.
      cases: every case that can be read; those of no split take part in nothing.
      splits: which cases train, validate and test.
      pixels: case index -> uint8 [size, size, 3].
      preprocessing: what the image encoder asks for.
      features: float32 [case, width] of a frozen encoder, in memory or read by index; None where images are encoded
        in training.
      set_aside: records that are not among the cases, each with its reason.
      splits_source: where the splits come from, in words.
      images: the cases' encoded images; None for the phantom, which has none.
    """

    chain: Chain
    cases: Sequence[Case]
    splits: Splits
    pixels: PixelCache
    preprocessing: Preprocessing
    features: Any = None
    set_aside: tuple[SetAside, ...] = ()
    splits_source: str = ""
    images: ImageFiles | None = None

    @property
    def labels(self) -> Int32[np.ndarray, "case step"]:
        """Labels of all cases, NOT_ANNOTATED where nobody answered."""
        return np.array([case.labels for case in self.cases], np.int32)

    @property
    def digest(self) -> str:
        """SHA-256 over what a resumed run must find unchanged: steps, options, and each split's images and labels."""
        splits = {
            name: [(self.cases[index].image_path, self.cases[index].labels) for index in indices]
            for name, indices in self.splits.by_name().items()
        }
        text = json.dumps([[(step.name, step.options) for step in self.chain.steps], splits])
        return hashlib.sha256(text.encode()).hexdigest()

    def with_last_step_alone(self) -> "Dataset":
        """The same cases with no answer but the last step's, so that nothing else supervises or is measured."""
        cases = tuple(
            dataclasses.replace(case, labels=(*[NOT_ANNOTATED] * (len(case.labels) - 1), case.labels[-1]))
            for case in self.cases
        )
        return dataclasses.replace(self, cases=cases)

    def with_origins(self, origins: Sequence[str]) -> "Dataset":
        """The same splits, each with its cases of some origins alone; the other cases are in none.

        Raises:
          BadInput: no case has one of the origins, or a split has no case left.
        """
        found = {case.origin for case in self.cases}
        for origin in origins:
            if origin not in found:
                raise BadInput(
                    f"config.data.origins: found {origin!r}, accepted are {', '.join(map(repr, sorted(found)))}"
                )
        kept = {
            name: tuple(index for index in indices if self.cases[index].origin in origins)
            for name, indices in self.splits.by_name().items()
        }
        for name, indices in kept.items():
            if not indices:
                raise BadInput(
                    f"config.data.origins: found no case of {list(origins)} in split {name}, accepted is one"
                )
        source = f"{self.splits_source}; of {', '.join(origins)} alone"
        return dataclasses.replace(self, splits=Splits(**kept), splits_source=source)

    @property
    def num_cases(self) -> dict[str, int]:
        """Number of cases in each split."""
        return {name: len(getattr(self.splits, name)) for name in ("train", "val", "test")}


def write_account(dataset: Dataset, workdir: pathlib.Path) -> str | None:
    """Write who is in which split to `splits.json`, and what was set aside, with its reason, to `quarantine.jsonl`.

    Returns:
      A sentence for the person if anything was set aside, else None.
    """
    write_manifest(workdir / "splits.json", dataset.splits, dataset.cases, source=dataset.splits_source)
    quarantine = workdir / "quarantine.jsonl"
    if not dataset.set_aside:
        quarantine.unlink(missing_ok=True)
        return None
    write_quarantine(quarantine, dataset.set_aside)
    num_records = len(dataset.set_aside) + len(dataset.cases)
    return f"{len(dataset.set_aside)} of {num_records} records are set aside, each with its reason in {quarantine}"
