"""Ask a trained policy about a radiograph: its reply, the answer in it, and its boxes drawn.

With --questions ask a run, a Qwen2.5-VL without training or an endpoint a file of questions.
For research; not a medical device.
"""

import argparse
import json
import shlex
import sys
from typing import TYPE_CHECKING

from stepcot_jax.host.errors import BadInput, RunStopped, run_tool
from stepcot_jax.host.files import make_workdir, write_whole, writing_for
from stepcot_jax.host.machine import use_compilation_cache
from stepcot_jax.host.text import make_printable
from stepcot_jax.tools.options import (
    DIALECTS,
    add_model,
    add_reading,
    check_numbers,
    local_path,
    read_endpoint,
    read_split,
)

if TYPE_CHECKING:
    from stepcot_jax.annotate.llm.client import Endpoint
    from stepcot_jax.reading.question_files import Asker

_RUN = "of a run of the job sft or grpo; or gs://, hf://"
_PHASE = "phase whose best weights answer; default: the last"


def main(arguments: list[str] | None = None) -> None:
    """Answer the question, or the file of questions, of the command line."""
    given = sys.argv[1:] if arguments is None else arguments
    if any(word.partition("=")[0] == "--questions" for word in given):
        answer_file(_parse_file(given))
    else:
        answer_one(_parse(given))


def answer_one(options: argparse.Namespace) -> None:
    """Answer a question about a picture."""
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


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stepcot answer",
        description="Ask a trained policy about a radiograph. For research; not a medical device.",
        epilog="Exit code 0: answered, even if the reply is not well formed; 2: wrong input. "
        "stepcot answer --questions=FOLDER --help: ask any model a file of questions.",
    )
    parser.add_argument("image", metavar="IMAGE", help="a PNG, JPEG or DICOM file; or gs://")
    parser.add_argument("question", metavar="QUESTION", help="in the words of the training records")
    parser.add_argument("--checkpoint", required=True, metavar="WORKDIR", help=_RUN)
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
    parser.add_argument("--phase", choices=("sft", "grpo", "dpo"), help=_PHASE)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


# A file of questions.


def answer_file(options: argparse.Namespace) -> None:
    """Ask the questions of a file that have no reply yet."""
    endpoint = _check(options)
    from absl import logging

    from stepcot_jax.host.terminal import Terminal, name_command
    from stepcot_jax.reading.question_files import REQUEST, Question, ask_file, describe
    from stepcot_jax.reasoning.dialects import write_question
    from stepcot_jax.run.audit_folder import draw_places

    logging.set_verbosity(logging.ERROR)
    collection, records = read_split(options, options.questions, "--questions")
    asker, dialect, with_thinking = _open(options, endpoint)
    drawn = draw_places(len(records), options.num_questions or len(records))
    texts = {place: write_question(records[place], dialect, with_thinking=with_thinking) for place in drawn}
    questions = [Question(records[place], collection.root, text) for place, text in texts.items()]
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


def _check(options: argparse.Namespace) -> "Endpoint | None":
    if sum(map(bool, (options.checkpoint, options.local, options.endpoint or options.model))) != 1:
        raise BadInput("one of --checkpoint RUN, --local FOLDER, and --endpoint URL with --model NAME is required")
    check_numbers(options, "num_questions")
    check_numbers(options, "image_size", least=32)
    for name, kind in (("phase", "checkpoint"), ("seed", "endpoint")):
        if getattr(options, name) is not None and not getattr(options, kind):
            raise BadInput(f"--{name} requires --{kind}")
    if options.checkpoint and (options.image_size or options.max_answer_tokens):
        raise BadInput("--image-size and --max-answer-tokens have no effect with --checkpoint; those of the run apply")
    if options.out.suffix != ".jsonl":
        raise BadInput(f"--out: {options.out} must end in .jsonl")
    return read_endpoint(options)


def _open(options: argparse.Namespace, endpoint: "Endpoint | None") -> "tuple[Asker, str, bool]":
    """Return the model, the dialect to ask it in, and whether to ask for reasoning."""
    with_thinking = not options.without_thinking
    from stepcot_jax.host.download import find_path
    from stepcot_jax.reading.askers import endpoint_asker, local_asker, run_asker
    from stepcot_jax.reading.chat_models import LONGEST_REPLY
    from stepcot_jax.reading.policy_reader import load_reader

    at_once = {} if options.concurrency is None else {"num_at_once": options.concurrency}
    dialect, side = options.dialect or DIALECTS[0], options.image_size or 1024
    if endpoint is not None:
        how = {"folder": options.out.with_suffix(".ledger"), "cap": options.max_tokens}
        return endpoint_asker(endpoint, **how, longest_side=side, **at_once), dialect, with_thinking
    use_compilation_cache()
    if options.local:
        longest = options.max_answer_tokens or LONGEST_REPLY
        return local_asker(options.local, longest=longest, longest_side=side, **at_once), dialect, with_thinking
    reader = load_reader(find_path(options.checkpoint), phase=options.phase)
    run, dialect = reader.trained.run, options.dialect or reader.trained.run.dialect
    if dialect not in DIALECTS:
        raise BadInput(f"--dialect is required: the run writes {dialect}, which stepcot constrain asks for")
    return run_asker(reader, **at_once), dialect, run.with_thinking and with_thinking


def _parse_file(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stepcot answer",
        description="Ask a model a file of questions; `stepcot evaluate_replies` scores its replies.",
        epilog="Exit code 0: asked, with refusals and unreadable pictures counted; 2: wrong input, or no question was "
        "answered; 3: stopped, and the same command resumes.",
    )
    questions = "folder or file of questions in any layout; or gs://"
    parser.add_argument("--questions", required=True, metavar="FOLDER", help=questions)
    out = "JSON lines, which the same command resumes"
    parser.add_argument("--out", type=local_path, required=True, metavar="REPLIES.jsonl", help=out)
    add_reading(parser)
    drawn = "draw N questions, default all; a rerun with more asks only the others"
    parser.add_argument("--num-questions", type=int, metavar="N", help=drawn)
    parser.add_argument("--dialect", choices=DIALECTS, help="form to ask for; default: the run's own, else gemex")
    without = "do not ask for reasoning before the answer"
    parser.add_argument("--without-thinking", action="store_true", help=without)
    side = "longer side of the pictures that a large model is shown, in pixels, default 1024"
    parser.add_argument("--image-size", type=int, metavar="N", help=side)
    parser.add_argument("--checkpoint", metavar="RUN", help=_RUN)
    parser.add_argument("--phase", choices=("sft", "grpo", "dpo"), help=_PHASE)
    parser.add_argument("--seed", type=int, help="of an endpoint's decoding, default 0")
    add_model(parser, units="questions", at_once="32 with --checkpoint, 8 with --local, 4 with --endpoint")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_tool(main)
