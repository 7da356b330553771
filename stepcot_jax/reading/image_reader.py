"""Read radiographs from files or arrays with a trained network."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, overload

import jax
import numpy as np
from jaxtyping import Float32

from stepcot_jax import __version__
from stepcot_jax.chain import Chain
from stepcot_jax.data.images.projections import Projection
from stepcot_jax.encoders.weights import weights_digest
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.answer_sheet import PROBLEM, as_row
from stepcot_jax.reading.asking import NextStep, find_next_steps
from stepcot_jax.reading.corrections import Given, check_accepts_answers, follows_corrections, given_distributions
from stepcot_jax.reading.programs import Reader
from stepcot_jax.reading.radiographs import (
    Pixels,
    Scale,
    find_images,
    read_picture,
    read_pictures,
    read_radiograph,
    to_input,
)
from stepcot_jax.reading.readings import ChainReading, make_readings, name_reading
from stepcot_jax.reading.trained_model import Trained, load_trained, read_default_model
from stepcot_jax.training.system import System

MAKER = "stepcot_jax"


@dataclasses.dataclass(frozen=True)
class ReportingNetwork:
    """The network that a structured report names as its observer."""

    name: str  # "teacher" or "student", with ", joint reading" if its joint model read
    version: str
    digest: str  # SHA-256 of its weights, in hex

    @property
    def identity(self) -> tuple[str, ...]:
        """The parts that a UID of this observer is derived from."""
        return self.name, self.version, self.digest

    @property
    def title(self) -> str:
        """Package and name."""
        return f"{MAKER} {self.name}"


class Readings(list[ChainReading]):
    """Readings of several radiographs, in order, without those that could not be read."""

    def __init__(self, readings: Iterable[ChainReading] = ()) -> None:
        super().__init__(readings)
        self.problems: dict[str, str] = {}
        self._unread: list[tuple[int, str]] = []

    def refuse(self, index: int, name: str, problem: str) -> None:
        """Note an image that could not be read; `index` counts all images, from 0, and rises from call to call."""
        self.problems[name] = problem
        self._unread.append((index, name))

    def as_rows(self) -> list[dict[str, Any]]:
        """Return a row for each image, in order: of its reading (`answer_sheet.as_row`), or with its problem."""
        rows = [as_row(reading) for reading in self]
        for index, name in self._unread:
            rows.insert(index, {"image": name, PROBLEM: self.problems[name]})
        return rows


def load(
    workdir: str | os.PathLike[str],
    *,
    model: str | None = None,
    batch_size: int = 1,
    as_published: bool = False,
    system: System | None = None,
) -> "ImageReader":
    """Load a trained network as a reader, with its joint model unless `as_published` or the run has none."""
    workdir = pathlib.Path(workdir)
    model = model or read_default_model(workdir)
    return ImageReader(
        load_trained(workdir, names=(model,), system=system),
        model=model,
        batch_size=batch_size,
        as_published=as_published,
    )


class ImageReader:
    """Reads radiographs with a trained network; made by `load`.

    Attributes:
      trained: the run's network, calibration and preprocessing.
      model: "teacher" or "student".
    """

    def __init__(self, trained: Trained, *, model: str, batch_size: int, as_published: bool = False) -> None:
        self.trained, self.model = trained, model
        self._reader = Reader(
            trained, model=model, batch_size=batch_size, with_attention=False, as_published=as_published
        )

    @property
    def chain(self) -> Chain:
        """The steps that the network answers."""
        return self.trained.chain

    @property
    def joined(self) -> bool:
        """Whether its joint model reads."""
        return self._reader.joint is not None

    @property
    def follows(self) -> bool:
        """Whether other steps follow given answers: by the joint model, or as the run measured."""
        return self.joined or follows_corrections(self.trained, model=self.model)

    @property
    def network(self) -> ReportingNetwork:
        """What structured reports name as the reading network."""
        name = name_reading(self.model, joined=self.joined)
        leaves = jax.tree_util.tree_leaves_with_path(self._reader.params)
        tensors = {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}
        frozen, text = self.trained.frozen_encoder, self._reader.text_features
        if frozen is not None:
            tensors["frozen encoder"] = np.frombuffer(frozen.digest.encode(), np.uint8)
        if text is not None:
            tensors["text features"] = np.asarray(text)
        return ReportingNetwork(name, __version__, weights_digest(tensors))

    @property
    def image_size(self) -> int:
        """Height and width in pixels of the image encoder's input."""
        return self.trained.preprocessing.size

    @overload
    def read(
        self, image: list[Any] | tuple[Any, ...], *, given: Given | None = None, scale: Scale | None = None
    ) -> Readings: ...

    @overload
    def read(self, image: Any, *, given: Given | None = None, scale: Scale | None = None) -> ChainReading: ...

    def read(self, image: Any, *, given: Given | None = None, scale: Scale | None = None) -> "ChainReading | Readings":
        """Read one radiograph, or all of a list or folder.

        Args:
          image: a path, the bytes of a PNG, JPEG or DICOM file, a PIL image, or pixels [height, width] or
            [height, width, 3], uint8 or with `scale`; a list of these, or a folder, gives `Readings`.
          scale: values of an array that are black and white, such as (0, 1); values beyond are clipped.
          given: answers in place of the network's, by step: its name or number -> an option or its letter; uncertain
            ones as "Nodular 70 %" or {"Nodular": 0.7, "Cavity": 0.3} (`corrections.given_distributions`).
        """
        shares = self.distributions(given)
        if isinstance(image, list | tuple):
            return self._read_many(image, shares, scale)
        if isinstance(image, str | os.PathLike) and pathlib.Path(image).is_dir():
            return self._read_many(find_images([pathlib.Path(image)], refuse=_raise), shares, scale)
        picture, projection = self._read_picture(image, scale)
        return self._read_pictures([_name_image(image)], [picture], [projection], shares)[0]

    def _read_picture(self, image: Any, scale: Scale | None) -> tuple[Pixels, Projection]:
        return read_radiograph(image, self.trained.preprocessing, max_pixels=self.trained.max_pixels, scale=scale)

    def _read_many(
        self, images: Sequence[Any], given: Float32[np.ndarray, "step answer"] | None, scale: Scale | None
    ) -> Readings:
        readings = Readings()
        for first in range(0, len(images), self._reader.batch_size):
            names, pictures, projections = list[str](), list[Pixels](), list[Projection]()
            for index in range(first, min(first + self._reader.batch_size, len(images))):
                name = _name_image(images[index], index)
                try:
                    picture, projection = self._read_picture(images[index], scale)
                except BadInput as error:
                    readings.refuse(index, name, str(error))
                else:
                    names.append(name)
                    pictures.append(picture)
                    projections.append(projection)
            readings += self._read_pictures(names, pictures, projections, given) if names else []
        return readings

    def read_files(
        self, paths: Iterable[pathlib.Path], *, given: Given | None = None, refuse: Callable[[str], None]
    ) -> Iterator[ChainReading]:
        """Read files in batches; an unreadable one is skipped and reported to `refuse`."""
        shares = self.distributions(given)
        batches = read_pictures(
            paths,
            self.trained.preprocessing,
            batch_size=self._reader.batch_size,
            max_pixels=self.trained.max_pixels,
            num_threads=self.trained.run.num_threads,
            refuse=refuse,
        )
        for names, pictures, projections in batches:
            yield from self._read_pictures([str(name) for name in names], pictures, projections, shares)

    def ask_next(self, reading: ChainReading, *, leave_out: Collection[str] = ()) -> NextStep | None:
        """Return the step whose answer is expected to raise the accuracy of the last step most, at the run's costs.

        None if no step is left, or if the rise is less than `config.evaluation.least_gain`.
        """
        images, run = to_input([reading.picture], self.trained.preprocessing), self.trained.run
        return find_next_steps(
            self._reader.given_reader(images),
            self._given_of(reading)[None],
            self.trained.chain,
            costs=run.step_costs,
            leave_out=leave_out,
            least_gain=run.least_gain,
        )[0]

    def correct(self, reading: ChainReading, given: Given) -> ChainReading:
        """Return a reading of the same image with answers given; those given before stay where not given anew.

        Args:
          reading: of this reader.
          given: as of `read`.
        """
        earlier, shares = self._given_of(reading), self.distributions(given)
        if shares is not None:
            earlier = np.where(shares.any(axis=-1, keepdims=True), shares, earlier)
        return self._read_pictures([reading.source], [reading.picture], [reading.check.projection], earlier)[0]

    def explain(self, reading: ChainReading) -> Float32[np.ndarray, "step row column"]:
        """Return a map for each answer of a reading: the parts of the image that support it.

        Args:
          reading: of this reader.

        Returns:
          Maps [step, row, column], not negative, each with sum 1.
        """
        from stepcot_jax.reading.explain import Explainer  # another 350 lines, for those who ask

        images = to_input([reading.picture], self.trained.preprocessing)
        labels = np.array([[answer.label for answer in reading.steps]], np.int32)
        given = self._given_of(reading)[None] if reading.has_given else None
        explainer = Explainer(self.trained, model=self.model, as_published=not self.joined)
        return explainer.explain(images, given_answers=given, labels=labels).maps[0]

    def _given_of(self, reading: ChainReading) -> Float32[np.ndarray, "step answer"]:
        given = np.zeros((len(reading.steps), max(self.trained.chain.answers_per_step)), np.float32)
        for position, answer in enumerate(reading.steps):
            given[position, : len(answer.given_shares)] = answer.given_shares
        return given

    def distributions(self, given: Given | None) -> Float32[np.ndarray, "step answer"] | None:
        """Return given answers as distributions; None without any."""
        if not given:
            return None
        shares = given_distributions(given, self.trained.chain)
        self.check_accepts_answers()
        return shares

    def check_accepts_answers(self) -> None:
        """Refuse given answers for a network without a joint model whose later steps cannot follow them."""
        if not self.joined:
            check_accepts_answers(self.trained, model=self.model)

    def _read_pictures(
        self,
        names: list[str],
        pictures: list[Pixels],
        projections: list[Projection],
        given: Float32[np.ndarray, "step answer"] | None,
    ) -> list[ChainReading]:
        images = to_input(pictures, self.trained.preprocessing)
        uncorrected = self._reader.read(images)
        reading = uncorrected
        if given is not None:
            reading = self._reader.read(images, np.repeat(given[None], len(images), axis=0))
        return make_readings(
            reading,
            self.trained.chain,
            sources=names,
            model=self.model,
            calibration=self.trained.calibration,
            given=given,
            uncorrected=None if given is None else uncorrected,
            pictures=pictures,
            joined=self.joined,
            rules=self.trained.rules,
            points=self.trained.operating_points,
            trained_on=self.trained.trained_on,
            projections=projections,
        )


def _name_image(image: Any, index: int | None = None) -> str:
    if isinstance(image, str | os.PathLike):
        return str(os.fspath(image))
    return "image" if index is None else f"image {index + 1}"


def _raise(message: str) -> None:
    raise BadInput(message)


def explain_image(reader: ImageReader, image: Any) -> Float32[np.ndarray, "step row column"]:
    """Return for each step a map over an image: the parts that support the network's answer.

    Args:
      reader: of `load`.
      image: a path, the bytes of an image file, or uint8 pixels [height, width] or [height, width, 3].

    Returns:
      Maps [step, row, column], not negative, each with sum 1; of what the encoder sees, after cropping or padding.

    Raises:
      BadInput: the image cannot be read, or the run's encoder runs in another framework.
    """
    from stepcot_jax.reading.explain import Explainer

    trained = reader.trained
    pixels = read_picture(image, trained.preprocessing, max_pixels=trained.max_pixels)
    images = to_input([pixels], trained.preprocessing)
    return Explainer(trained, model=reader.model).explain(images).maps[0]
