"""Ask a model about radiographs: one question, with its reply's boxes drawn, or a file of questions.

A file is asked of a trained policy, of a Qwen2.5-VL without training, or of a model behind an endpoint, which alone is
sent pictures. For research; not a medical device.
"""

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    read_named,
)

if TYPE_CHECKING:
    from stepcot_jax.annotate.llm.client import Endpoint
    from stepcot_jax.reading.question_files import Asker, Form
    from stepcot_jax.record import Record

_OF_ONE = ("image", "question", "choice", "kind", "json", "sample")
_OF_FILE = ("layout", "box_size", "split", "on_bad_record", "num_questions", "dialect", "without_thinking")
_OF_MODEL = ("image_size", "local", "endpoint", "model", "max_answer_tokens", "concurrency")


def main(arguments: list[str] | None = None) -> None:
    """Answer the question, or the file of questions, of the command line."""
    options = _parse(arguments)
    from absl import logging

    logging.set_verbosity(logging.ERROR)  # Orbax warns on every restore without an optimizer
    if options.questions is None:
        _answer_one(options)
    else:
        _answer_file(options)


def _refuse(options: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(options, name) not in (None, False, []):
            flag = name.upper() if name in ("image", "question") else f"--{name.replace('_', '-')}"
            raise BadInput(f"{flag} {why}")


# One question about one picture.


def _answer_one(options: argparse.Namespace) -> None:
    if options.image is None or options.question is None:
        raise BadInput("IMAGE and QUESTION are required, or --questions FOLDER with --out REPLIES.jsonl")
    _refuse(options, (*_OF_FILE, *_OF_MODEL), "requires --questions (a folder or file of questions)")
    if options.checkpoint is None:
        raise BadInput("--checkpoint is required (the workdir of a run of the job sft or grpo)")
    if not options.sample and (options.seed is not None or options.temperature is not None):
        raise BadInput("--seed and --temperature have no effect without --sample; add it or leave them out")
    if options.out is not None and not str(options.out).lower().endswith(".png"):
        raise BadInput(f"--out: {options.out} must end in .png")
    from stepcot_jax.data.images.drawn_boxes import write_png
    from stepcot_jax.host.download import find_path
    from stepcot_jax.reading.policy_reader import load_reader

    use_compilation_cache()
    image = find_path(options.image, "IMAGE")
    reader = load_reader(find_path(options.checkpoint), phase=options.phase)
    answered = reader.answer(
        image,
        options.question,
        choices=options.choice,
        kind=options.kind,
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


# A file of questions.


def _answer_file(options: argparse.Namespace) -> None:
    endpoint = _check_file(options)
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.reading.question_files import REQUEST, ask_file, describe

    records, root = _read_questions(options)
    make_workdir(options.out.parent)
    asker = _make_asker(options, endpoint)
    with writing_for("--out", options.out):
        counts = ask_file(options.out, records, asker, root=root, terminal=Terminal())
    print(f"{options.out}: {len(records)} questions to {asker.name}: {describe(counts)}")
    if counts[REQUEST]:
        raise RunStopped(
            f"{counts[REQUEST]} of {len(records)} questions have no reply yet (error in {options.out}); rerun the "
            "command to ask them again"
        )
    print(_name_next(options, asker.form))


def _check_file(options: argparse.Namespace) -> "Endpoint | None":
    _refuse(options, _OF_ONE, "has no effect with --questions")
    if sum(map(bool, (options.checkpoint, options.local, options.endpoint or options.model))) != 1:
        raise BadInput("one of --checkpoint RUN, --local FOLDER, and --endpoint URL with --model NAME is required")
    endpoint = read_endpoint(options)
    if options.out is None or options.out.suffix.lower() != ".jsonl":
        raise BadInput(f"--out: {options.out or 'none'} must be a file that ends in .jsonl")
    if endpoint is None:
        _refuse(options, ("seed",), "has no effect without --sample or --endpoint")
    if options.checkpoint is None:
        _refuse(options, ("phase",), "requires --checkpoint (a run)")
    else:
        fixed = "has no effect with --checkpoint, whose pictures and replies have the size and length of its training"
        _refuse(options, ("image_size", "max_answer_tokens"), fixed)
    check_numbers(options, "num_questions")
    check_numbers(options, "seed", least=0)
    check_numbers(options, "image_size", least=32)
    return endpoint


def _read_questions(options: argparse.Namespace) -> "tuple[list[Record], Path]":
    """Return the questions to ask, and the folder of their pictures."""
    from stepcot_jax.run.audit_folder import draw_places
    from stepcot_jax.run.scored_replies import choose_split

    collection = read_named(options, options.questions, "--questions")
    if collection.set_aside:
        print(f"{collection.path}: {len(collection.set_aside)} bad records set aside, {collection.set_aside[0].reason}")
    records = choose_split(collection.records, options.split or "test", where=str(collection.path))
    if options.num_questions is not None:
        records = [records[place] for place in draw_places(len(records), options.num_questions)]
    return records, collection.root


def _make_asker(options: argparse.Namespace, endpoint: "Endpoint | None") -> "Asker":
    from stepcot_jax.host.download import find_path
    from stepcot_jax.reading.askers import EndpointAsker, LocalAsker, RunAsker
    from stepcot_jax.reading.chat_models import LONGEST_REPLY
    from stepcot_jax.reading.policy_reader import load_reader
    from stepcot_jax.reading.question_files import Form

    at_once: dict[str, int] = {} if options.concurrency is None else {"num_at_once": options.concurrency}
    form = Form(options.dialect or DIALECTS[0], not options.without_thinking)
    shown = {"longest_side": 1024 if options.image_size is None else options.image_size}
    if endpoint is not None:
        folder = options.out.with_suffix(".ledger")
        return EndpointAsker(endpoint, form=form, folder=folder, cap=options.max_tokens, **shown, **at_once)
    use_compilation_cache()
    if options.local:
        longest = options.max_answer_tokens or LONGEST_REPLY
        return LocalAsker(options.local, form=form, longest=longest, **shown, **at_once)
    reader = load_reader(find_path(options.checkpoint), phase=options.phase)
    run = reader.trained.run
    form = Form(options.dialect or run.dialect, run.with_thinking and not options.without_thinking)
    return RunAsker(reader, form=form, **at_once)


def _name_next(options: argparse.Namespace, form: "Form") -> str:
    from stepcot_jax.host.terminal import name_command

    scores = options.out.with_name(f"{options.out.stem}_scores")
    command = f"evaluate_replies {shlex.quote(str(options.questions))} {shlex.quote(str(options.out))}"
    flags = [f"--split={options.split or 'test'}", f"--dialect={form.dialect}", f"--out={shlex.quote(str(scores))}"]
    flags += [] if form.with_thinking else ["--without-thinking"]
    flags += [f"--layout={shlex.quote(options.layout)}"] if options.layout else []
    flags += ["--box-size", *map(str, options.box_size)] if options.box_size else []
    return f"next: {name_command()} {command} {' '.join(flags)}"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stepcot answer",
        usage="%(prog)s IMAGE QUESTION --checkpoint RUN [--out FILE.png] ...\n       %(prog)s --questions FOLDER --out "
        "REPLIES.jsonl (--checkpoint RUN | --local FOLDER | --endpoint URL --model NAME) ...",
        description="Ask about a radiograph, or ask a model a file of questions. For research; not a medical device.",
        epilog="Exit code 0: answered, even if a reply is not well formed or refused; 2: wrong input, or no question "
        "answered; 3: stopped, and the same command resumes.",
    )
    run = "of a run of the job sft or grpo; or gs://, hf://"
    parser.add_argument("--checkpoint", metavar="RUN", help=run)
    phase = "phase whose best weights answer; default: the last"
    parser.add_argument("--phase", choices=("sft", "grpo", "dpo"), help=phase)
    out = "picture with the boxes (.png); of --questions its replies (.jsonl), which the same command resumes"
    parser.add_argument("--out", type=local_path, metavar="FILE", help=out)
    parser.add_argument("--seed", type=int, help="of --sample and of an endpoint, default 0")
    _add_one(parser.add_argument_group("one question"))
    _add_file(parser.add_argument_group("file of questions", "Replies that `stepcot evaluate_replies` scores."))
    at_once = "32 with --checkpoint, 8 with --local, 4 with --endpoint"
    add_model(
        parser, units="questions", at_once=at_once, temperature="of --sample, default 1; of an endpoint, default 0"
    )
    return parser.parse_args(arguments)


def _add_one(group: Any) -> None:
    group.add_argument("image", nargs="?", metavar="IMAGE", help="a PNG, JPEG or DICOM file; or gs://")
    group.add_argument("question", nargs="?", metavar="QUESTION", help="in the words of the training records")
    choice = "an option to choose from; twice or more"
    group.add_argument("--choice", action="append", default=[], metavar="TEXT", help=choice)
    kinds = ("open", "closed", "single", "multi")
    group.add_argument("--kind", choices=kinds, help="of the question; default: guessed from question and choices")
    group.add_argument("--sample", action="store_true", help="draw the reply; default: the likeliest token each time")
    group.add_argument("--json", action="store_true", help="print one JSON object")


def _add_file(group: Any) -> None:
    group.add_argument("--questions", metavar="FOLDER", help="folder or file of questions in any layout; or gs://")
    group.add_argument("--split", choices=("train", "val", "test", "all"), help="default test")
    add_reading(group)
    drawn = "draw N questions; default all. A rerun with more asks only the others"
    group.add_argument("--num-questions", type=int, metavar="N", help=drawn)
    group.add_argument("--dialect", choices=DIALECTS, help="form to ask for; default: the run's own, else gemex")
    without = "do not ask for reasoning before the answer"
    group.add_argument("--without-thinking", action="store_true", help=without)
    side = "longer side of the pictures that a large model is shown, in pixels, default 1024"
    group.add_argument("--image-size", type=int, metavar="N", help=side)


if __name__ == "__main__":
    run_tool(main)
