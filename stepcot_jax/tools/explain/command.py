"""Map which parts of a radiograph each answer depends on, and score the maps against lesion boxes.

Scores stand less those of the best constant map, of the maps of other cases with the same answer, and of a model with
random weights: an explanation that is no better explains nothing.
"""

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING

from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import make_workdir, writing_for
from stepcot_jax.tools.options import OF_READER, add, add_network, check_numbers, local_path, prepare_reading

if TYPE_CHECKING:
    from stepcot_jax.reading.trained_model import Trained

EXIT_UNREADABLE = 1


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    add(parser, "--checkpoint WORKDIR", OF_READER, required=True)
    add_network(parser)


def main(arguments: list[str] | None = None) -> int:
    """Score maps if the first argument is `score`; otherwise explain images."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["score"]:
        return score(arguments[1:])
    return explain(arguments)


def explain(arguments: list[str]) -> int:
    """Write a picture and a JSON file for each image."""
    parser = argparse.ArgumentParser(
        prog="stepcot explain",
        description="Map which parts of a radiograph each answer depends on. For research; not a medical device.",
        epilog="For scores see: stepcot explain score --help",
    )
    images = "files, or folders of them; also on gs://"
    parser.add_argument("images", nargs="+", metavar="IMAGE", help=images)
    _add_checkpoint(parser)
    add(parser, "--out DIR", "folder for pictures and JSON", type=local_path, required=True)
    add(parser, "--given STEP=ANSWER", "as for predict", [], action="append")
    add(parser, "--as-published", "as for predict")
    options = parser.parse_args(arguments)
    from stepcot_jax.host.download import find_path
    from stepcot_jax.host.text import make_printable
    from stepcot_jax.reading.corrections import read_corrections
    from stepcot_jax.reading.radiographs import Complaints, find_images
    from stepcot_jax.tools.explain.drawing import write_explanations

    given = read_corrections(options.given)
    complaints = Complaints()
    inputs = [find_path(image, "IMAGE") for image in options.images]
    paths = find_images(inputs, refuse=complaints.refuse, note=complaints.note)
    if not paths:
        return EXIT_UNREADABLE
    trained = _load(options)
    make_workdir(options.out)
    how = {name: getattr(options, name) for name in ("model", "out", "as_published")}
    for path, reading in write_explanations(trained, paths, given=given, refuse=complaints.refuse, **how):
        print(path)
        lines = [f"warning: {line}" for line in reading.warnings] + [f"note: {line}" for line in reading.check.notes]
        for line in lines:
            print(make_printable(f"{reading.source}: {line}"), file=sys.stderr)
    return EXIT_UNREADABLE if complaints.num_refused else 0


def score(arguments: list[str]) -> int:
    """Print the table of scores."""
    parser = argparse.ArgumentParser(
        prog="stepcot explain score",
        description="Score the maps against lesion boxes, less constant maps, other cases' maps and random weights.",
    )
    _add_checkpoint(parser)
    add(parser, "--data DIR", "radiographs with boxes; or gs://; default: the phantom")
    add(parser, "--boxes FILE", "ChestX-ray8's box list for images of --data; or gs://")
    add(parser, "--num-cases", "most radiographs with boxes (default: 100)", 100)
    add(parser, "--json FILE", "also write the figures as JSON", type=local_path)
    options = parser.parse_args(arguments)
    check_numbers(options, "num_cases")
    if options.boxes is not None and options.data is None:
        raise BadInput("--data is required with --boxes (the folder of the boxes' images)")
    from stepcot_jax.host.download import find_path
    from stepcot_jax.host.files import write_whole
    from stepcot_jax.tools.explain.scoring import describe_scores, score_network, write_scores

    data = options.data and find_path(options.data, "--data")
    boxes = options.boxes and find_path(options.boxes, "--boxes")
    trained = _load(options)
    scores = score_network(trained, model=options.model, data=data, box_list=boxes, num_cases=options.num_cases)
    scores = scores if options.data is None else dataclasses.replace(scores, data=options.data)
    print(describe_scores(scores))
    if options.json is not None:
        with writing_for("--json", options.json):
            write_whole(options.json, write_scores(scores))
    return 0


def _load(options: argparse.Namespace) -> "Trained":
    from stepcot_jax.host.download import find_checkpoint
    from stepcot_jax.reading.trained_model import load_trained, read_default_model

    options.checkpoint = find_checkpoint(options.checkpoint)
    prepare_reading()
    options.model = options.model or read_default_model(options.checkpoint)
    return load_trained(options.checkpoint, names=(options.model,))


if __name__ == "__main__":
    run_tool(main)
