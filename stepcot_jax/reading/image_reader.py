"""Read radiographs from files or arrays with a trained network; `load` also opens a trained policy."""

import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Float32

from stepcot_jax.chain import Chain
from stepcot_jax.host.download import find_checkpoint
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.corrections import Given, check_accepts_answers, follows_corrections, given_distributions
from stepcot_jax.reading.programs import Reader
from stepcot_jax.reading.radiographs import (
    Header,
    Pixels,
    Scale,
    find_images,
    read_picture,
    read_pictures,
    read_radiograph,
    to_input,
)
from stepcot_jax.reading.readings import ChainReading, make_readings
from stepcot_jax.reading.trained_model import Trained, load_trained, read_default_model
from stepcot_jax.run.given import read_given
from stepcot_jax.run.stored import read_stored
from stepcot_jax.training.system import System

if TYPE_CHECKING:
    from stepcot_jax.reading.asking import NextStep
    from stepcot_jax.reading.explain import Claim, Explainer, Explanation


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
        from stepcot_jax.reading.answer_sheet import PROBLEM, as_row  # sheets, for those who write one

        rows = [as_row(reading) for reading in self]
        for index, name in self._unread:
            rows.insert(index, {"image": name, PROBLEM: self.problems[name]})
        return rows


def load_chain_reader(
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
      model: "teacher", "student" or "plain".
    """

    def __init__(self, trained: Trained, *, model: str, batch_size: int, as_published: bool = False) -> None:
        self.trained, self.model = trained, model
        self._reader = Reader(
            trained, model=model, batch_size=batch_size, with_attention=False, as_published=as_published
        )

    def __repr__(self) -> str:
        """Name the network, its questions and its pictures."""
        names = ", ".join(step.name for step in self.chain.steps[:8]) + ", ..." * (len(self.chain.steps) > 8)
        return f"ImageReader: the {self.model} of {self.image_size} x {self.image_size} pixels answers {names}"

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
        picture, header = self._read_picture(image, scale)
        return self._read_pictures([_name_image(image)], [picture], [header], shares)[0]

    def _read_picture(self, image: Any, scale: Scale | None) -> tuple[Pixels, Header]:
        return read_radiograph(image, self.trained.preprocessing, max_pixels=self.trained.run.max_pixels, scale=scale)

    def _read_many(
        self, images: Sequence[Any], given: Float32[np.ndarray, "step answer"] | None, scale: Scale | None
    ) -> Readings:
        readings = Readings()
        for first in range(0, len(images), self._reader.batch_size):
            names, pictures, headers = list[str](), list[Pixels](), list[Header]()
            for index in range(first, min(first + self._reader.batch_size, len(images))):
                name = _name_image(images[index], index)
                try:
                    picture, header = self._read_picture(images[index], scale)
                except BadInput as error:
                    readings.refuse(index, name, str(error))
                else:
                    names.append(name)
                    pictures.append(picture)
                    headers.append(header)
            readings += self._read_pictures(names, pictures, headers, given) if names else []
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
            max_pixels=self.trained.run.max_pixels,
            num_threads=self.trained.run.num_threads,
            refuse=refuse,
        )
        for names, pictures, headers in batches:
            yield from self._read_pictures([str(name) for name in names], pictures, headers, shares)

    def ask_next(self, reading: ChainReading, *, leave_out: Collection[str] = ()) -> "NextStep | None":
        """Return the step whose answer is expected to raise the accuracy of the last step most, at the run's costs.

        None if no step is left, or if the rise is less than `config.evaluation.least_gain`.
        """
        from stepcot_jax.reading.asking import find_next_steps  # for those who ask

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
        header = Header(reading.check.projection, reading.check.notes)
        return self._read_pictures([reading.source], [reading.picture], [header], earlier)[0]

    def explain(self, reading: ChainReading) -> tuple[Float32[np.ndarray, "step row column"], tuple["Claim", ...]]:
        """Return a map for each answer of a reading: the parts of the image that it loses probability without.

        Args:
          reading: of this reader.

        Returns:
          Maps [step, 16, 16], not negative, each with sum 1; and for each step what its map claims, printable: what
          becomes of the answer's probability when the brightest tenth is blurred, and a random tenth.
        """
        from stepcot_jax.reading.explain import Explainer  # another 250 lines, for those who ask

        images = to_input([reading.picture], self.trained.preprocessing)
        labels = np.array([[answer.label for answer in reading.steps]], np.int32)
        given = self._given_of(reading)[None] if reading.has_given else None
        explainer = Explainer(self.trained, model=self.model, as_published=not self.joined)
        explained = explainer.explain(images, given_answers=given, labels=labels)
        return explained.maps[0], explained.claims[0]

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
        headers: list[Header],
        given: Float32[np.ndarray, "step answer"] | None,
    ) -> list[ChainReading]:
        images = to_input(pictures, self.trained.preprocessing)
        uncorrected = self._reader.read(images)
        reading = uncorrected
        if given is not None:
            reading = self._reader.read_again(uncorrected, images, np.repeat(given[None], len(images), axis=0))
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
            headers=headers,
        )


def _name_image(image: Any, index: int | None = None) -> str:
    if isinstance(image, str | os.PathLike):
        return str(os.fspath(image))
    return "image" if index is None else f"image {index + 1}"


def _raise(message: str) -> None:
    raise BadInput(message)


def explain_image(reader: ImageReader, image: Any) -> Float32[np.ndarray, "step row column"]:
    """Return for each step a map over an image: the parts that the network's answer loses probability without.

    Args:
      reader: of `load`.
      image: a path, the bytes of an image file, or uint8 pixels [height, width] or [height, width, 3].

    Returns:
      Maps [step, 16, 16], not negative, each with sum 1; of what the encoder sees, after cropping or padding.

    Raises:
      BadInput: the image cannot be read.
    """
    from stepcot_jax.reading.explain import Explainer

    trained = reader.trained
    pixels = read_picture(image, trained.preprocessing, max_pixels=trained.run.max_pixels)
    images = to_input([pixels], trained.preprocessing)
    explainer = Explainer(trained, model=reader.model, as_published=not reader.joined)
    return explainer.explain(images, with_claims=False).maps[0]


def explain_pictures(
    explainer: "Explainer",
    *,
    names: list[str],
    pictures: list[Pixels],
    given: np.ndarray,
    headers: Sequence[Header] = (),
    before: np.ndarray | None = None,
) -> "tuple[Explanation, list[ChainReading]]":
    """Return maps of the answers to pictures, and the answers; the map of a given answer explains that answer.

    `before` has the maps of the image before these, which claims are compared with.
    """
    from stepcot_jax.reading.explain import PREDICTED

    trained = explainer.trained
    images = to_input(pictures, trained.preprocessing)
    labels = np.where(given.any(axis=-1), given.argmax(axis=-1), PREDICTED)
    of_cases = [np.repeat(rows[None], len(pictures), axis=0) for rows in (given, labels)]
    explained = explainer.explain(images, given_answers=of_cases[0], labels=of_cases[1], before=before)
    uncorrected = explainer.reader.read(images) if given.any() else None
    readings = make_readings(
        explained.reading,
        trained.chain,
        sources=names,
        model=explainer.model,
        calibration=trained.calibration,
        given=given,
        uncorrected=uncorrected,
        joined=explainer.reader.joint is not None,
        rules=trained.rules,
        trained_on=trained.trained_on,
        headers=headers,
    )
    return explained, readings


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
      workdir: a folder that `stepcot_jax.main` or `stepcot export` wrote, also on a store, "gs://BUCKET/FOLDER"; or an
        export on the Hugging Face hub, "hf://OWNER/NAME" or "hf://OWNER/NAME@REVISION", whose JSON and safetensors are
        downloaded and not run; or "phantom", the reader of drawn chests that the package ships, unless there is such a
        folder.
      model: "teacher", "student" or "plain"; None loads the run's best on validation. Of a policy, the phase with the
        wanted weights, "sft" or "grpo"; None for the last phase.
      batch_size: images that `ImageReader.read_files` reads at once; not for a policy.
      as_published: whether the network's own answers are read, each given one written back to it, and not its joint
        model (`evaluation.joint`); not for a policy.
      system: of a run that `fit` trained with networks of its caller: a system with the same networks.

    Returns:
      For jobs that train a policy a `policy_reader.PolicyReader`, which answers questions: `.answer(image, question)`;
      for others an `ImageReader`, which reads the steps: `.read(image)`.

    Raises:
      BadInput: the workdir is incomplete or damaged, or its networks cannot read images; or the store or the hub has no
        such folder.
    """
    workdir = find_checkpoint(workdir, "checkpoint")
    if not read_stored(workdir).trains_policy:
        return load_chain_reader(workdir, model=model, batch_size=batch_size, as_published=as_published, system=system)
    if batch_size != 1 or as_published:
        problem = f"a policy takes neither batch_size nor as_published; got {batch_size} and {as_published}"
        raise BadInput(f"{workdir}: {problem}")
    from stepcot_jax.reading.policy_reader import load_reader

    return load_reader(workdir, phase=model)


def prepare_first_answer(workdir: pathlib.Path, *, say: Callable[[str], object] = str) -> tuple[str, ...]:
    """Read an empty image with each network, so that the user's cache has the programs of `predict`."""
    run = read_stored(workdir)
    if run.problem or read_given(workdir).networks:
        return ()
    say("compiling what a first answer needs")
    for name in run.names:
        load_chain_reader(workdir, model=name).read(np.zeros((8, 8), np.uint8))
    return run.names
