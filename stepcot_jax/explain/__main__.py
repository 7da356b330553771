"""Show where a trained network looks at each step, and score whether it looks at the lesion.

    python -m stepcot_jax.explain IMAGE... --checkpoint=WORKDIR --out=DIR [--model=teacher] [--given "STEP=ANSWER"]
    python -m stepcot_jax.explain score --checkpoint=WORKDIR [--data=DIR] [--boxes=FILE]

The first writes a picture and a JSON file for each radiograph: the seven maps, how wide each is, whether the focus
narrows, and the teacher's attention between its steps. The second prints a table of the maps against lesion boxes,
beside an even map and a model with random weights: an explanation that is no better explains nothing.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from stepcot_jax.host.errors import BadInput, make_workdir, run_tool

if TYPE_CHECKING:
    from stepcot_jax.predict.trained_model import Trained

EXIT_UNREADABLE = 1


def _parse_images(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m stepcot_jax.explain",
        description="Show where a trained network looks at each step. For research; not a medical device.",
        epilog="python -m stepcot_jax.explain score --help tells of the scores.",
    )
    parser.add_argument("images", nargs="+", type=pathlib.Path, metavar="IMAGE", help="files, or folders of them")
    _add_network(parser)
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="where pictures and JSON go")
    parser.add_argument("--given", action="append", default=[], metavar="STEP=ANSWER", help="as for predict")
    return parser.parse_args(arguments)


def _parse_score(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m stepcot_jax.explain score",
        description="Score the maps against lesion boxes, beside an even map and a model with random weights.",
    )
    _add_network(parser)
    parser.add_argument("--data", type=pathlib.Path, metavar="DIR", help="radiographs with boxes; default: the phantom")
    parser.add_argument(
        "--boxes", type=pathlib.Path, metavar="FILE", help="ChestX-ray8's box list for images of --data"
    )
    parser.add_argument("--num-cases", type=int, default=100, help="most radiographs with boxes, default 100")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the figures as JSON")
    return parser.parse_args(arguments)


def _add_network(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True, metavar="WORKDIR", help="of a run of main")
    parser.add_argument("--model", choices=("teacher", "student"), help="default: the student, where there is one")


def main(arguments: list[str] | None = None) -> int:
    """Explain or score, as the command line says."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["score"]:
        return score(_parse_score(arguments[1:]))
    return explain(_parse_images(arguments))


def explain(options: argparse.Namespace) -> int:
    """Write a picture and a JSON file for each image."""
    from stepcot_jax.explain.drawing import write_explanations
    from stepcot_jax.predict.corrections import read_corrections
    from stepcot_jax.predict.radiographs import find_images

    given = read_corrections(options.given)
    complain, told = _complaints()
    paths, notes = find_images(options.images, refuse=complain)
    for note in notes:
        print(note, file=sys.stderr)
    if not paths:
        return EXIT_UNREADABLE
    trained = _load(options)
    make_workdir(options.out)
    write_explanations(trained, paths, model=options.model, given=given, out=options.out, refuse=complain)
    return EXIT_UNREADABLE if told else 0


def score(options: argparse.Namespace) -> int:
    """Print the table of scores."""
    if options.num_cases < 1:
        raise BadInput(f"--num-cases: found {options.num_cases}, accepted are whole numbers from 1")
    if options.boxes is not None and options.data is None:
        raise BadInput("--boxes: found it without --data, accepted is the folder of the boxes' images with it")
    from stepcot_jax.explain.scoring import describe_scores, score_network, write_scores
    from stepcot_jax.host.files import write_whole

    trained = _load(options)
    found = score_network(
        trained,
        model=options.model,
        data=options.data,
        box_list=options.boxes,
        num_cases=options.num_cases,
    )
    print(describe_scores(found))
    if options.json is not None:
        try:
            write_whole(options.json, write_scores(found))
        except OSError as error:
            raise BadInput(f"--json: {options.json} cannot be written ({error.strerror})") from None
    return 0


def _complaints() -> tuple[Callable[[str], None], list[str]]:
    """A function that tells of a file that cannot be used, and the list of what it has told."""
    from stepcot_jax.data.checks.check_printing import make_printable

    told: list[str] = []

    def complain(line: str) -> None:
        told.append(line)
        print(make_printable(line), file=sys.stderr, flush=True)

    return complain, told


def _load(options: argparse.Namespace) -> "Trained":
    from absl import logging

    from stepcot_jax.predict.trained_model import load_trained, read_default_model

    logging.set_verbosity(logging.ERROR)  # Orbax warns of what reading without writing implies
    options.model = options.model or read_default_model(options.checkpoint)
    return load_trained(options.checkpoint, names=(options.model,))


if __name__ == "__main__":
    run_tool(main)
