"""Ask a trained policy about a radiograph: its reply, the answer in it, and its boxes drawn.

Boxes are printed in pixels of the image. For research; not a medical device.
"""

import argparse
import json

from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import write_whole, writing_for
from stepcot_jax.host.machine import use_compilation_cache
from stepcot_jax.host.text import make_printable
from stepcot_jax.tools.options import local_path


def main(arguments: list[str] | None = None) -> None:
    """Answer the question of the command line."""
    options = _parse(arguments)
    if not options.sample and (options.seed is not None or options.temperature is not None):
        raise BadInput("--seed and --temperature have no effect without --sample; add it or leave them out")
    if options.out is not None and not str(options.out).lower().endswith(".png"):
        raise BadInput(f"--out: {options.out} must end in .png")
    from absl import logging

    from stepcot_jax.data.images.drawn_boxes import write_png
    from stepcot_jax.host.download import find_path
    from stepcot_jax.reading.policy_reader import load_reader

    use_compilation_cache()
    logging.set_verbosity(logging.ERROR)  # Orbax warns on every restore without an optimizer
    image = find_path(options.image, "IMAGE")
    reader = load_reader(find_path(options.checkpoint), phase=options.phase)
    answered = reader.answer(
        image,
        options.question,
        choices=options.choice,
        kind=options.kind,
        modality=options.modality,
        organ=options.organ,
        greedy=not options.sample,
        seed=options.seed or 0,
        temperature=1.0 if options.temperature is None else options.temperature,
    )
    if options.json:
        print(json.dumps(answered.as_dict()))
    else:
        print("\n".join(make_printable(line) for line in str(answered).split("\n")))
    if options.out is not None:
        with writing_for("--out", options.out):
            write_whole(options.out, write_png(answered.draw()))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stepcot answer",
        description="Ask a trained policy about a radiograph. For research; not a medical device.",
        epilog="Exit code 0: answered, even if the reply is not well formed; 2: wrong input.",
    )
    parser.add_argument("image", metavar="IMAGE", help="a PNG, JPEG or DICOM file; or gs://")
    parser.add_argument("question", metavar="QUESTION", help="in the words of the training records")
    parser.add_argument(
        "--checkpoint", required=True, metavar="WORKDIR", help="of a run of the job sft or grpo; or gs://, hf://"
    )
    parser.add_argument(
        "--choice", action="append", default=[], metavar="TEXT", help="an option to choose from; twice or more"
    )
    kinds = ("open", "closed", "single", "multi")
    parser.add_argument("--kind", choices=kinds, help="of the question; default: guessed from question and choices")
    shown = "{} that the training records name, such as {}; the prompt then names it"
    parser.add_argument("--modality", default="", metavar="TEXT", help=shown.format("of the picture,", "CT"))
    parser.add_argument("--organ", default="", metavar="TEXT", help=shown.format("in the picture,", "abdomen"))
    picture = "write the picture with its boxes to this file"
    parser.add_argument("--out", type=local_path, metavar="FILE.png", help=picture)
    parser.add_argument("--sample", action="store_true", help="draw the reply; default: the likeliest token each time")
    parser.add_argument("--seed", type=int, help="of --sample, default 0")
    parser.add_argument("--temperature", type=float, help="of --sample, default 1")
    parser.add_argument(
        "--phase", choices=("sft", "grpo", "dpo"), help="phase whose best weights answer; default: the last"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_tool(main)
