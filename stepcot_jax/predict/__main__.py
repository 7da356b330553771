"""Read radiographs with a trained network: questions, answers with their probabilities, and a paragraph.

    python -m stepcot_jax.predict IMAGE... --checkpoint=WORKDIR [--given "STEP=ANSWER"]... [--model=teacher] [--json]

IMAGE is a PNG, JPEG or DICOM file or a folder of them. A given answer replaces the network's own, and its later answers
follow from it. `--ask` asks for corrections at the terminal, one step at a time, the most useful first. Exit code 1:
some images could not be read; stderr names them. In Python:

    from stepcot_jax import predict
    reader = predict.load("runs/quickstart")
    print(reader.read("image.png"))

For research; not a medical device.
"""

import argparse
import json
import pathlib
from collections.abc import Iterable

from stepcot_jax.host.compilation_cache import use_compilation_cache
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import writing_whole

EXIT_UNREADABLE = 1
_HARDLY_FOLLOWS = (
    "note: the run measured that this network's later answers hardly follow given ones, or did not measure it; with "
    "--pairs they follow counted pairs of answers"
)
BATCH_SIZE = 8
"""Images that the command reads at once."""


def main(arguments: list[str] | None = None) -> int:
    """Read the images that the command line names."""
    options = _parse(arguments)
    # Imported here: jax takes seconds, and `--help` and a wrong flag should not.
    from absl import logging

    from stepcot_jax.predict.asking import ask_in_turn
    from stepcot_jax.predict.corrections import check_takes_answers, read_corrections
    from stepcot_jax.predict.image_reader import load
    from stepcot_jax.predict.radiographs import Complaints, find_images

    use_compilation_cache()
    logging.set_verbosity(logging.ERROR)  # Orbax warns on every restore without an optimizer
    given = read_corrections(options.given)
    if options.ask and (given or options.json):
        raise BadInput("--ask cannot be used with --given or --json")
    complaints = Complaints()
    paths = find_images(options.images, refuse=complaints.refuse, note=complaints.note)
    if not paths:
        return EXIT_UNREADABLE
    if options.ask and len(paths) > 1:
        raise BadInput(f"--ask: found {len(paths)} images, expected 1")
    reader = load(options.checkpoint, model=options.model, batch_size=min(BATCH_SIZE, len(paths)), pairs=options.pairs)
    if options.ask:
        check_takes_answers(reader.trained, model=reader.model)
        if not reader.follows:
            print(_HARDLY_FOLLOWS)
        reading = ask_in_turn(reader, paths[0], answer=input, say=print)
        _write([f"\n{reading}"], options.out)
        return 0
    reader.take(given)  # reports a wrong answer before the first image is read
    readings = reader.read_files(paths, given=given, refuse=complaints.refuse)
    if options.json:
        _write((json.dumps(reading.as_dict()) for reading in readings), options.out)
    else:
        _write(("\n" * bool(number) + str(reading) for number, reading in enumerate(readings)), options.out)
    return EXIT_UNREADABLE if complaints.num_refused else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m stepcot_jax.predict",
        description="Read radiographs with a trained network. For research; not a medical device.",
        epilog="Exit code 0: every image was read; 1: some could not be read, stderr names them; 2: wrong input.",
    )
    parser.add_argument(
        "images", nargs="+", type=pathlib.Path, metavar="IMAGE", help="PNG, JPEG or DICOM files, or folders of them"
    )
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True, metavar="WORKDIR", help="of a run of main")
    parser.add_argument("--model", choices=("teacher", "student"), help="default: the student, if the run has one")
    parser.add_argument(
        "--given",
        action="append",
        default=[],
        metavar="STEP=ANSWER",
        help='an answer that later steps follow from, such as "Anatomical location=Lower lung zone", or "... 70 %%" '
        "if it is not certain; may be repeated",
    )
    parser.add_argument(
        "--pairs",
        action="store_true",
        help="steps after a given answer also follow counted pairs of answers (for networks trained as published)",
    )
    parser.add_argument("--ask", action="store_true", help="ask for corrections at the terminal, for one image")
    parser.add_argument("--json", action="store_true", help="write one JSON object a line and image")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="write there instead of to stdout")
    return parser.parse_args(arguments)


def _write(texts: Iterable[str], out: pathlib.Path | None) -> None:
    if out is None:
        for text in texts:
            print(text, flush=True)
        return
    try:
        with writing_whole(out) as file:
            file.writelines(f"{text}\n".encode() for text in texts)
    except OSError as error:
        raise BadInput(f"--out: {out} cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    run_tool(main)
