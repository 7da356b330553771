"""The data of a run: chain, cases, splits, and pixels at the encoder's size."""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np
from jaxtyping import Int32

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.data.images.pixels import CompactPixels, PixelCache
from stepcot_jax.data.images.preprocessing import Preprocessing, normalise
from stepcot_jax.data.record_table import RecordTable, as_table
from stepcot_jax.data.splits.splits import Splits, write_manifest
from stepcot_jax.data.uncertain import Treatment, make_targets
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file, write_whole
from stepcot_jax.record import SetAside

if TYPE_CHECKING:  # runs on phantoms read no files
    from stepcot_jax.data.images.image_files import ImageFiles

Data = TypeVar("Data")


class TestSplitClosed(RuntimeError):
    """A picture or feature of the test split was requested before the last evaluation."""

    __test__ = False


@dataclasses.dataclass(frozen=True)
class HeldOut(Generic[Data]):
    """Data with their test split, for the last evaluation; `hold_out` also returns the view for everything before it.

    `tests/data/test_held_out.py` lists the functions that open it.
    """

    _data: Data = dataclasses.field(repr=False)

    def open_test(self) -> Data:
        """Return the data with the test split."""
        return self._data


def _refuse(index: int, closed: frozenset[int]) -> None:
    if index in closed:
        raise TestSplitClosed(f"image {index} is of the test split, which the last evaluation alone opens")


class ClosedPixels(PixelCache):
    """The pixels of another cache, without those of closed images."""

    def __init__(self, cache: PixelCache, closed: Iterable[int]) -> None:
        self._cache, self._closed = cache, frozenset(closed)

    def __reduce__(self) -> tuple[Any, ...]:
        return ClosedPixels, (self._cache, self._closed)

    def put(self, index: int, pixels: CompactPixels) -> None:
        """Cache the pixels of an image."""
        self._cache.put(index, pixels)

    def select(self, indices: Sequence[int], read: Callable[[int], CompactPixels]) -> PixelCache:
        """Return a cache of some of the images, none of them closed."""
        for index in indices:
            _refuse(index, self._closed)
        return self._cache.select(indices, read)

    def compact(self, index: int) -> CompactPixels:
        """Return the pixels of an image that is not closed."""
        _refuse(index, self._closed)
        return self._cache.compact(index)


class ClosedFeatures:
    """Features [case, width] by case index, without those of closed cases."""

    def __init__(self, features: Any, closed: Iterable[int]) -> None:
        self._features, self._closed = features, frozenset(closed)
        self.shape, self.dtype = features.shape, features.dtype

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: Any) -> np.ndarray:
        for case in np.arange(len(self))[index].ravel().tolist():
            _refuse(case, self._closed)
        rows: np.ndarray = self._features[index]
        return rows


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The data that training and evaluation need.

    Attributes:
      chain: the steps with their options.
      cases: every readable case; any sequence of cases is converted. Cases of no split are not used.
      splits: which cases train, validate and test.
      pixels: case index -> uint8 [size, size, 3].
      preprocessing: of the image encoder.
      features: float32 [case, width] of a frozen encoder, in memory or read by index; None if images are encoded in
        training.
      set_aside: records that are not among the cases, each with its reason.
      splits_source: where the splits come from, in words.
      images: the cases' encoded images; None for the phantom, which has none, and without the test split.
      digests: SHA-256 of image contents that loading has computed, by case index.
      uncertain: treatment of uncertain answers in training.
    """

    chain: Chain
    cases: RecordTable
    splits: Splits
    pixels: PixelCache
    preprocessing: Preprocessing
    features: Any = None
    set_aside: tuple[SetAside, ...] = ()
    splits_source: str = ""
    images: "ImageFiles | None" = None
    digests: Mapping[int, str] = dataclasses.field(default_factory=dict)
    uncertain: Treatment = "ignore"

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", as_table(self.cases))

    @property
    def labels(self) -> Int32[np.ndarray, "case step"]:
        """Certain labels of all cases, NOT_ANNOTATED where nobody answered or the answer is uncertain."""
        return self.cases.labels.astype(np.int32)

    @functools.cached_property
    def training_targets(self) -> Int32[np.ndarray, "case step"]:
        """Labels that the training split's cases are trained with, in its order; see `uncertain`."""
        chosen = np.asarray(self.splits.train, int)
        labels, uncertain = self.cases.labels[chosen], self.cases.uncertain[chosen]
        return make_targets(labels=labels, uncertain=uncertain, chain=self.chain, treatment=self.uncertain)

    @property
    def digest(self) -> str:
        """SHA-256 of what must not change before a run resumes: steps, options, and each split's images and labels."""
        paths, labels = self.cases.image_paths, self.labels.tolist()
        members = self.splits.by_name()
        splits = {name: [(paths[index], labels[index]) for index in indices] for name, indices in members.items()}
        uncertain = {name: self.cases.uncertain[list(indices)].tolist() for name, indices in members.items()}
        facts = [[(step.name, step.options) for step in self.chain.steps], splits, uncertain]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def batch(self, indices: Iterable[int]) -> dict[str, np.ndarray]:
        """Return cases, such as `dataset.splits.train[:32]`, as a batch for a system; its labels are the certain ones.

        Returns:
          "labels" int32 [case, step], and normalised "images" float32 [case, size, size, 3] or "image_features"
          [case, width].
        """
        chosen = np.asarray(list(indices), int)
        labels = self.labels[chosen]
        if self.features is not None:
            return {"image_features": np.stack([self.features[index] for index in chosen]), "labels": labels}
        pixels = np.stack([self.pixels[index] for index in chosen])
        return {"images": normalise(pixels, self.preprocessing), "labels": labels}

    def hold_out(self) -> "tuple[Dataset, HeldOut[Dataset]]":
        """Return a view without the test split's labels and pictures, and the complete data for the last evaluation.

        Both have the test split's cases and patients. In the view their answers are missing, and reading one of their
        pictures or features raises `TestSplitClosed`.
        """
        closed = self.splits.test
        view = dataclasses.replace(
            self,
            cases=self.cases.without_answers(closed),
            pixels=ClosedPixels(self.pixels, closed),
            features=None if self.features is None else ClosedFeatures(self.features, closed),
            images=None,
            digests={},
        )
        return view, HeldOut(self)

    def with_last_step_alone(self) -> "Dataset":
        """Return the same cases with only the last step's answers."""
        labels, uncertain = self.labels, self.cases.uncertain.copy()
        labels[:, :-1] = uncertain[:, :-1] = NOT_ANNOTATED
        return dataclasses.replace(self, cases=self.cases.with_labels(labels, uncertain))

    def with_origins(self, origins: Sequence[str]) -> "Dataset":
        """Return the same splits with only the cases of the given origins; `BadInput` if that leaves a split empty."""
        known = self.cases.count_origins(np.ones(len(self.cases), bool))
        for origin in origins:
            if origin not in known:
                raise BadInput(f"config.data.origins: {origin!r} is not one of {', '.join(map(repr, sorted(known)))}")
        kept = {
            name: tuple(index for index in indices if self.cases[index].origin in origins)
            for name, indices in self.splits.by_name().items()
        }
        for name, indices in kept.items():
            if not indices:
                raise BadInput(f"config.data.origins: split {name} has no case of {list(origins)}")
        source = f"{self.splits_source}; of {', '.join(origins)} alone"
        return dataclasses.replace(self, splits=Splits(**kept), splits_source=source)

    @property
    def num_cases(self) -> dict[str, int]:
        """Number of cases in each split."""
        return {name: len(indices) for name, indices in self.splits.by_name().items()}


ACCOUNT_FILES = ("splits.json", "quarantine.jsonl", "images.sha256")  # of a workdir; `write_account` writes them
_MOST_BYTES = 2**30


def write_account(dataset: Dataset, workdir: pathlib.Path) -> str | None:
    """Write the splits, the digests of the image files and, with their reasons, the records set aside."""
    if dataset.digests:
        digests = {dataset.cases.image_paths[index]: digest for index, digest in dataset.digests.items()}
        lines = "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items()))
        write_whole(workdir / ACCOUNT_FILES[2], lines.encode())
    write_manifest(workdir / ACCOUNT_FILES[0], dataset.splits, dataset.cases, source=dataset.splits_source)
    quarantine = workdir / ACCOUNT_FILES[1]
    if not dataset.set_aside:
        quarantine.unlink(missing_ok=True)
        return None
    write_quarantine(quarantine, dataset.set_aside)
    num_records = len(dataset.set_aside) + len(dataset.cases)
    return f"{len(dataset.set_aside)} of {num_records} records are set aside, each with its reason in {quarantine}"


def write_quarantine(path: pathlib.Path, set_aside: Sequence[SetAside]) -> None:
    """Write the records set aside, one JSON object per line: record, image_path, reason."""
    lines = [{"record": item.record, "image_path": item.image_path, "reason": item.reason} for item in set_aside]
    write_whole(path, msgspec.json.Encoder().encode_lines(lines))


def check_same_images(dataset: Dataset, workdir: pathlib.Path) -> None:
    """Refuse images of other content than those in `images.sha256`, if the run wrote it and loading read them all."""
    file = workdir / ACCOUNT_FILES[2]
    if not dataset.digests or not file.exists():
        return
    lines = read_file(file, max_bytes=_MOST_BYTES, accepted="the digests of a run").decode().splitlines()
    known = {path: digest for digest, _, path in (line.partition("  ") for line in lines)}
    paths = {dataset.cases.image_paths[index]: digest for index, digest in dataset.digests.items()}
    changed = sorted(path for path, digest in paths.items() if known.get(path, digest) != digest)
    if changed:
        raise BadInput(
            f"{changed[0]}: not the picture that the run started with (its SHA-256 differs from {file}); "
            f"{len(changed)} of {len(paths)} differ; use the same pictures or a new workdir"
        )
