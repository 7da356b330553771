"""Read radiographs from files or arrays with a trained network."""

import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float32

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.consistency_files import read_pair_ratios
from stepcot_jax.predict.answers import ChainReading, make_readings
from stepcot_jax.predict.asking import NextStep, find_next_steps
from stepcot_jax.predict.corrections import Given, check_takes_answers, follows_corrections, give_answers
from stepcot_jax.predict.radiographs import Pixels, read_picture, read_pictures, to_input
from stepcot_jax.predict.reader import Reader
from stepcot_jax.predict.trained_model import Trained, load_trained, read_default_model
from stepcot_jax.run.stored_reading import PAIRS_FILE


def load(
    workdir: str | os.PathLike[str], *, model: str | None = None, batch_size: int = 1, pairs: bool = False
) -> "ImageReader":
    """Load a trained network as a reader of radiographs.

    Args:
      workdir: what `stepcot_jax.main` wrote.
      model: "teacher" or "student"; None loads the student if the run has one.
      batch_size: images that `read_files` reads at once.
      pairs: whether steps after a given one also follow what the run counted in its training labels
        (`evaluation.pair_ratios`); for a network trained as published, which hardly follows by itself.

    Raises:
      BadInput: the workdir is incomplete or damaged, or its networks cannot read images.
    """
    workdir = pathlib.Path(workdir)
    model = model or read_default_model(workdir)
    return ImageReader(load_trained(workdir, names=(model,)), model=model, batch_size=batch_size, pairs=pairs)


class ImageReader:
    """Reads radiographs from files or arrays; see `load`.

    Attributes:
      trained: the run.
      model: "teacher" or "student".
    """

    def __init__(self, trained: Trained, *, model: str, batch_size: int, pairs: bool = False) -> None:
        self.trained, self.model, self._pairs = trained, model, pairs
        counted = read_pair_ratios(trained.workdir / PAIRS_FILE, trained.chain, model=model) if pairs else None
        self._reader = Reader(trained, model=model, batch_size=batch_size, with_attention=False, pairs=counted)

    @property
    def chain(self) -> Chain:
        """The steps that the network answers."""
        return self.trained.chain

    @property
    def follows(self) -> bool:
        """Whether later steps follow given answers: by counted pairs, or as the run measured."""
        return self._pairs or follows_corrections(self.trained, model=self.model)

    @property
    def image_size(self) -> int:
        """Height and width in pixels of what the image encoder takes."""
        return self.trained.preprocessing.size

    def read(self, image: Any, *, given: Given | None = None) -> ChainReading:
        """Read one radiograph.

        Args:
          image: a path, the bytes of a PNG, JPEG or DICOM file, or uint8 pixels [height, width] or [height, width, 3].
          given: answers in place of the network's, by step: its name or number -> an option or its letter; not certain
            ones as "Nodular 70 %" or {"Nodular": 0.7, "Cavity": 0.3} (`corrections.give_answers`).

        Returns:
          The reading: `.answers`, `.probabilities`, `.paragraph`, and `.flipped`, the answers that `given` changed.

        Raises:
          BadInput: the image cannot be read, or the network does not take `given`.
        """
        picture = read_picture(image, self.trained.preprocessing, max_pixels=self.trained.max_pixels)
        name = os.fspath(image) if isinstance(image, str | os.PathLike) else "image"
        return self._read_pictures([str(name)], [picture], self.take(given))[0]

    def read_files(
        self,
        paths: Iterable[pathlib.Path],
        *,
        given: Given | None = None,
        refuse: Callable[[str], None],
    ) -> Iterator[ChainReading]:
        """Read files in batches.

        Args:
          paths: of files, not folders.
          given: as for `read`, the same for all files.
          refuse: called with a message for each file that cannot be read; the file is skipped.
        """
        taken = self.take(given)
        batches = read_pictures(
            paths,
            self.trained.preprocessing,
            batch_size=self._reader.batch_size,
            max_pixels=self.trained.max_pixels,
            refuse=refuse,
        )
        for names, pictures in batches:
            yield from self._read_pictures([str(name) for name in names], pictures, taken)

    def ask_next(self, reading: ChainReading, *, leave_out: Collection[str] = ()) -> NextStep | None:
        """Return the step whose answer is expected to settle the last step most, at the run's costs.

        Args:
          reading: of this reader; its given answers count as given.
          leave_out: names of steps that nobody can answer.

        Returns:
          The step with what each answer to it would change; None if there is none left to ask.
        """
        images = to_input([reading.picture], self.trained.preprocessing)
        most = max(self.trained.chain.answers_per_step)
        given = np.zeros((1, len(reading.steps), most), np.float32)
        for place, each in enumerate(reading.steps):
            given[0, place, : len(each.given_shares)] = each.given_shares
        costs = self.trained.settings.evaluation.step_costs
        read = self._reader.given_reader(images)
        return find_next_steps(read, given, self.trained.chain, costs=costs, leave_out=leave_out)[0]

    def take(self, given: Given | None) -> Float32[np.ndarray, "step answer"] | None:
        """Return given answers as distributions; None without any.

        Raises:
          BadInput: the chain has no such step or answer, or the network takes no given answers.
        """
        if not given:
            return None
        shares = give_answers(given, self.trained.chain)
        check_takes_answers(self.trained, model=self.model)
        return shares

    def _read_pictures(
        self, names: list[str], pictures: list[Pixels], given: Float32[np.ndarray, "step answer"] | None
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
            pairs=self._pairs,
        )
