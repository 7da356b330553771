"""Ask a trained policy about a radiograph: its reply, the answer in it, and its boxes drawn.

With --questions ask a run, a Qwen2.5-VL without training or an endpoint a file of questions.
For research; not a medical device.
"""

import argparse
import json
import shlex
import sys
from typing import Any

from stepcot_jax.host.errors import BadInput, RunStopped, run_tool
from stepcot_jax.host.files import make_workdir, write_whole, writing_for
from stepcot_jax.host.text import make_printable
from stepcot_jax.tools.options import (
    OF_RUN,
    PHASE,
    add,
    add_asker,
    add_reading,
    check_asker,
    local_path,
    open_asker,
    prepare_reading,
    read_split,
)


def main(arguments: list[str] | None = None) -> None:
    """Answer the question, or the file of questions, of the command line."""
    given = sys.argv[1:] if arguments is None else arguments
    if any(word.partition("=")[0] == "--questions" for word in given):
        _answer_file(_parse_file(given))
    else:
        _answer_one(_parse(given))


def _answer_one(options: argparse.Namespace) -> None:
    if not options.sample and (options.seed is not None or options.temperature is not None):
        raise BadInput("--seed and --temperature have no effect without --sample; add it or leave them out")
    if options.out is not None and not str(options.out).lower().endswith(".png"):
        raise BadInput(f"--out: {options.out} must end in .png")
    from stepcot_jax.data.images.drawn_boxes import write_png
    from stepcot_jax.host.download import find_checkpoint, find_path
    from stepcot_jax.reading.policy_reader import load_reader

    prepare_reading()
    image = find_path(options.image, "IMAGE")
    reader = load_reader(find_checkpoint(options.checkpoint), phase=options.phase)
    about = {name: getattr(options, name) for name in ("kind", "modality", "organ")}
    drawn: dict[str, Any] = {"greedy": not options.sample, "seed": options.seed or 0}
    drawn["temperature"] = 1.0 if options.temperature is None else options.temperature
    answered = reader.answer(image, options.question, choices=options.choice, **about, **drawn)
    if options.json:
        print(json.dumps(answered.as_dict()))
    else:
        print("\n".join(make_printable(line) for line in str(answered).split("\n")))
    if options.out is not None:
        with writing_for("--out", options.out):
            write_whole(options.out, write_png(answered.draw()))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stepcot answer",
        description="Ask a trained policy about a radiograph. For research; not a medical device.",
        epilog="Exit code 0: answered, even if the reply is not well formed; 2: wrong input. "
        "stepcot answer --questions=FOLDER --help: ask any model a file of questions.",
    )
    add(parser, "IMAGE", "a PNG, JPEG or DICOM file; or gs://")
    add(parser, "QUESTION", "in the words of the training records")
    add(parser, "--checkpoint WORKDIR", OF_RUN, required=True)
    add(parser, "--choice TEXT", "an option to choose from; twice or more", [], action="append")
    kinds = ("open", "closed", "single", "multi")
    add(parser, "--kind", "of the question; default: guessed from question and choices", choices=kinds)
    shown = "{} that the training records name, such as {}; the prompt then names it"
    add(parser, "--modality TEXT", shown.format("of the picture,", "CT"), "")
    add(parser, "--organ TEXT", shown.format("in the picture,", "abdomen"), "")
    add(parser, "--out FILE.png", "write the picture with its boxes to this file", type=local_path)
    add(parser, "--sample", "draw the reply; default: the likeliest token each time")
    parser.add_argument("--seed", type=int, help="of --sample, default 0")
    parser.add_argument("--temperature", type=float, help="of --sample, default 1")
    add(parser, "--phase", PHASE, choices=("sft", "grpo", "dpo"))
    add(parser, "--json", "print one JSON object")
    return parser.parse_args(arguments)


# A file of questions.


def _answer_file(options: argparse.Namespace) -> None:
    endpoint = check_asker(options)
    if options.out.suffix != ".jsonl":
        raise BadInput(f"--out: {options.out} must end in .jsonl")
    from stepcot_jax.host.terminal import Terminal, name_command
    from stepcot_jax.reading.question_files import REQUEST, ask_file, describe, draw_records, write_questions

    collection, records = read_split(options, options.questions, "--questions")
    asker, dialect, with_thinking = open_asker(options, endpoint, options.out.with_suffix(".ledger"))
    drawn = draw_records(records, options.num_questions)
    questions = write_questions(drawn, collection.root, dialect, with_thinking=with_thinking)
    make_workdir(options.out.parent)
    with writing_for("--out", options.out):
        counts = ask_file(options.out, questions, asker, terminal=Terminal())
    print(f"{options.out}: {len(questions)} questions to {asker.name}: {describe(counts)}")
    if counts[REQUEST]:
        about = f"requests about {counts[REQUEST]} of {len(questions)} questions were given up"
        raise RunStopped(f"{about}; rerun the command to ask them again")
    words = [options.questions, str(options.out), f"--split={options.split}", f"--dialect={dialect}"]
    words += [] if with_thinking else ["--without-thinking"]
    words += ["--box-size", *map(str, options.box_size)] if options.box_size else []
    words += ["--on-bad-record=skip"] if options.on_bad_record == "skip" else []
    words += [f"--out={options.out.with_name(f'{options.out.stem}_scores')}"]
    print(f"next: {name_command()} evaluate_replies {shlex.join(words)}")


def _parse_file(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stepcot answer",
        description="Ask a model a file of questions; `stepcot evaluate_replies` scores its replies.",
        epilog="Exit code 0: asked, with refusals and unreadable pictures counted; 2: wrong input, or no question was "
        "answered; 3: stopped, and the same command resumes.",
    )
    add(parser, "--questions FOLDER", "folder or file of questions in any layout; or gs://", required=True)
    add(parser, "--out REPLIES.jsonl", "JSON lines, which the same command resumes", type=local_path, required=True)
    add_reading(parser)
    add_asker(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_tool(main)
