"""Read radiographs with a trained network: the questions, its answers and how sure it is, and a paragraph.

    python -m stepcot_jax.predict IMAGE... --checkpoint=WORKDIR [--model=teacher] [--given "STEP=ANSWER"]... [--json]

IMAGE is a PNG, JPEG or DICOM file or a folder of them. An answer that is given takes the place of the teacher's own,
and later answers follow from it. Exit code 1: some images could not be read, which stderr names. In Python:

    from stepcot_jax import predict
    reader = predict.load("runs/quickstart")
    print(reader.read("image.png"))

For research; not a medical device.
"""

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import writing_whole

if TYPE_CHECKING:
    from stepcot_jax.predict.answers import ChainReading
    from stepcot_jax.predict.trained_model import Trained

EXIT_UNREADABLE = 1
BATCH_SIZE = 8
"""Images that the command reads at once."""


class ImageReader:
    """Reads radiographs from files or arrays; see `load`.

    Attributes:
      trained: the run.
      model: "teacher" or "student".
    """

    def __init__(self, trained: "Trained", *, model: str, batch_size: int) -> None:
        from stepcot_jax.predict.reader import Reader

        self.trained, self.model = trained, model
        self._reader = Reader(trained, model=model, batch_size=batch_size, with_attention=False)
        self._max_pixels = int(trained.settings.data.max_megapixels * 1e6)

    def read(self, image: Any, *, given: Mapping[str, str] | None = None) -> "ChainReading":
        """Read one radiograph.

        Args:
          image: a path, the bytes of a PNG, JPEG or DICOM file, or uint8 pixels [height, width] or [height, width, 3].
          given: answers in place of the network's, by step: its name or number -> an option or its letter; the teacher
            alone takes them.

        Returns:
          The reading: `.answers`, `.probabilities`, `.paragraph`, and `.flipped`, the answers that `given` changed.

        Raises:
          BadInput: the image cannot be read, or `given` not be taken.
        """
        from stepcot_jax.predict.radiographs import read_picture

        picture = read_picture(image, self.trained.preprocessing, max_pixels=self._max_pixels)
        name = os.fspath(image) if isinstance(image, str | os.PathLike) else "image"
        return self._read_pictures([str(name)], [picture], self.label(given))[0]

    def read_files(
        self,
        paths: Iterable[pathlib.Path],
        *,
        given: Mapping[str, str] | None = None,
        refuse: Callable[[str], None],
    ) -> Iterator["ChainReading"]:
        """Read files in batches.

        Args:
          paths: of files, not folders.
          given: as for `read`, the same for all of them.
          refuse: told of each file that cannot be read, and why; the file is left out.
        """
        from stepcot_jax.predict.radiographs import read_pictures

        labels = self.label(given)
        batches = read_pictures(
            paths,
            self.trained.preprocessing,
            batch_size=self._reader.batch_size,
            max_pixels=self._max_pixels,
            refuse=refuse,
        )
        for names, pictures in batches:
            yield from self._read_pictures([str(name) for name in names], pictures, labels)

    def label(self, given: Mapping[str, str] | None) -> Any:
        """Labels [step] of given answers; None if there are none.

        Raises:
          BadInput: a step or an answer is not among those of the chain, or the network takes none.
        """
        if not given:
            return None
        from stepcot_jax.predict.corrections import label_corrections

        labels = label_corrections(given, self.trained.chain)
        self._reader.check_takes_answers()
        return labels

    def _read_pictures(self, names: list[str], pictures: list[Any], labels: Any) -> list["ChainReading"]:
        import numpy as np

        from stepcot_jax.predict.answers import make_readings
        from stepcot_jax.predict.radiographs import to_input

        images = to_input(pictures, self.trained.preprocessing)
        uncorrected = self._reader.read(images)
        reading = uncorrected
        if labels is not None:
            reading = self._reader.read(images, np.repeat(labels[None], len(images), axis=0))
        return make_readings(
            reading,
            self.trained.chain,
            sources=names,
            model=self.model,
            calibration=self.trained.calibration,
            given=labels,
            uncorrected=None if labels is None else uncorrected,
        )


def load(workdir: str | os.PathLike[str], *, model: str | None = None, batch_size: int = 1) -> ImageReader:
    """What a run has trained, as a reader of radiographs.

    Args:
      workdir: what `stepcot_jax.main` wrote.
      model: "teacher" or "student"; None takes the student where there is one.
      batch_size: images that are read at once by `read_files`.

    Raises:
      BadInput: the workdir cannot be used; the message says what would be.
    """
    from stepcot_jax.predict.trained_model import load_trained, read_default_model

    workdir = pathlib.Path(workdir)
    model = model or read_default_model(workdir)
    return ImageReader(load_trained(workdir, names=(model,)), model=model, batch_size=batch_size)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m stepcot_jax.predict",
        description="Read radiographs with a trained network. For research; not a medical device.",
        epilog="Exit code 0: every image was read; 1: some could not be, stderr names them; 2: nothing could be done.",
    )
    parser.add_argument(
        "images", nargs="+", type=pathlib.Path, metavar="IMAGE", help="PNG, JPEG or DICOM files, or folders of them"
    )
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True, metavar="WORKDIR", help="of a run of main")
    parser.add_argument("--model", choices=("teacher", "student"), help="default: the student, where there is one")
    parser.add_argument(
        "--given",
        action="append",
        default=[],
        metavar="STEP=ANSWER",
        help='an answer that later steps follow from, such as "Anatomical location=Lower lung zone"; needs the '
        "teacher; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line and image")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="write there instead of to stdout")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Read the images named on the command line."""
    options = _parse(arguments)
    _quieten()
    from stepcot_jax.predict.corrections import read_corrections
    from stepcot_jax.predict.radiographs import find_images

    given = read_corrections(options.given)
    refused: list[str] = []

    def refuse(line: str) -> None:
        refused.append(line)
        _complain(line)

    paths, notes = find_images(options.images, refuse=refuse)
    for note in notes:
        _complain(note)
    if not paths:
        return EXIT_UNREADABLE
    reader = load(options.checkpoint, model=options.model, batch_size=min(BATCH_SIZE, len(paths)))
    reader.label(given)  # a wrong one before the first image is read

    readings = reader.read_files(paths, given=given, refuse=refuse)
    _write((_as_text(reading, options.json, number) for number, reading in enumerate(readings)), options.out)
    return EXIT_UNREADABLE if refused else 0


def _as_text(reading: "ChainReading", as_json: bool, number: int) -> str:
    return json.dumps(reading.as_dict()) if as_json else "\n" * bool(number) + str(reading)


def _write(texts: Iterable[str], out: pathlib.Path | None) -> None:
    if out is None:
        for text in texts:
            print(text, flush=True)
        return
    try:
        with writing_whole(out) as file:
            file.writelines(f"{text}\n".encode() for text in texts)
    except OSError as error:
        raise BadInput(f"--out: {out} cannot be written ({error.strerror}), accepted is a file that can") from None


def _quieten() -> None:
    """Orbax warns of what reading without writing implies."""
    from absl import logging

    logging.set_verbosity(logging.ERROR)


def _complain(line: str) -> None:
    from stepcot_jax.data.checks.check_printing import make_printable

    print(make_printable(line), file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_tool(main)
