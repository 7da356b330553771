"""Audit a model: does it look at the picture, does its thinking carry its answer, and what moves the answer?

WORKDIR is a run or export of this package, audited in one command. Any other model answers files: `audit questions`
writes variants of questions, `audit score` scores the replies and writes the questions of the thinking, which are
scored with --thinking-replies.
"""

import argparse
from pathlib import Path

from stepcot_jax.host.download import find_path, is_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.tools.options import local_path

_PROGRAM = "stepcot evaluate_replies audit"
_DIALECTS = ("gemex", "gemex_plain", "lvkc", "lvkc_released", "medclm")
PROMPTS, THINKING_PROMPTS = "prompts.jsonl", "thinking_prompts.jsonl"
_AS_TEXT = "the thinking as text in the question"


def main(arguments: list[str]) -> None:
    """Write or score the files of an audit, or audit a workdir."""
    commands = {"questions": (_define_questions, _write_questions), "score": (_define_score, _score)}
    name = arguments[0] if arguments and arguments[0] in commands else ""
    define, run = commands.get(name, (_define_workdir, _audit_workdir))
    also = f"see also {_PROGRAM} questions --help and {_PROGRAM} score --help"
    parser = argparse.ArgumentParser(prog=f"{_PROGRAM} {name}".strip(), description=__doc__, epilog=also)
    define(parser)
    options = parser.parse_args(arguments[1:] if name else arguments)
    if getattr(options, "num_questions", 1) < 1:
        raise BadInput(f"--num-questions must be at least 1; got {options.num_questions}")
    run(options)


def _define_workdir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workdir", metavar="WORKDIR", help="of a run or an export; or gs://, s3://, hf://OWNER/NAME")
    parser.add_argument("--out", type=local_path, metavar="DIR", help="default: audit in WORKDIR, for `stepcot report`")
    data = "in place of the run's test split: a folder of questions for a policy, of radiographs for a chain"
    parser.add_argument("--data", metavar="DIR", help=data)
    parser.add_argument("--phase", choices=("sft", "grpo", "dpo"), help="of a policy; default: the last")
    parser.add_argument("--model", choices=("teacher", "student"), help="of a chain; default: the student, if there")
    parser.add_argument("--as-published", action="store_true", help="of a chain: without the joint model")
    _add_number(parser)


def _define_questions(parser: argparse.ArgumentParser) -> None:
    records = "questions (records.jsonl or its folder), or a folder of radiographs whose steps become questions"
    parser.add_argument("records", metavar="RECORDS", help=records)
    parser.add_argument("--out", type=local_path, required=True, metavar="DIR", help="folder of the audit")
    parser.add_argument("--split", default="test", help="of questions: train, val, test (default) or all")
    _add_dialect(parser)
    _add_number(parser)


def _define_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=local_path, metavar="DIR", help="folder that `audit questions` wrote")
    parser.add_argument("replies", metavar="REPLIES", help="JSON lines with id and reply, to its prompts.jsonl")
    parser.add_argument("--thinking-replies", metavar="FILE", help="replies to its thinking_prompts.jsonl")
    _add_dialect(parser)


def _add_number(parser: argparse.ArgumentParser) -> None:
    most = "most questions or cases to audit, drawn from the split, default 400"
    parser.add_argument("--num-questions", type=int, default=400, metavar="N", help=most)


def _add_dialect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dialect", choices=_DIALECTS, default="gemex", help="form of the replies, default gemex")
    without = "replies need no thinking, and prompts do not ask for one"
    parser.add_argument("--without-thinking", dest="with_thinking", action="store_false", help=without)


def _write_questions(options: argparse.Namespace) -> None:
    # Imported here and below, so that --help is fast.
    from stepcot_jax.data.images.image_decoding import MAX_PIXELS
    from stepcot_jax.data.questions.record_files import holds_records, read_vqa_records
    from stepcot_jax.host.files import make_workdir
    from stepcot_jax.reading.cases import open_data
    from stepcot_jax.reading.radiographs import read_pixels
    from stepcot_jax.run.audit_folder import write_variants
    from stepcot_jax.run.scored_replies import choose_split
    from stepcot_jax.tools.evaluate_replies.audit_runs import ask_cases
    from stepcot_jax.tools.evaluate_replies.robustness import write_prompts

    path, most, out = find_path(options.records, "RECORDS"), options.num_questions, options.out
    make_workdir(out)
    if holds_records(path):
        collection = read_vqa_records(path)
        chosen = choose_split(collection.records, options.split, where=str(collection.path))
        written = write_variants(out, chosen, lambda record: read_pixels(collection.root / record.image), most=most)
    else:
        written = ask_cases(out, open_data(path, max_pixels=MAX_PIXELS), most=most)
    write_prompts(out / PROMPTS, written, root=out, dialect=options.dialect, with_thinking=options.with_thinking)
    print(f'{out / PROMPTS}: {len(written)} questions; answer with lines of {{"id": .., "reply": ..}}')


def _score(options: argparse.Namespace) -> None:
    from stepcot_jax.data.questions.reply_files import read_replies
    from stepcot_jax.data.questions.variants import vary_thinking
    from stepcot_jax.evaluation.replies import ScoringSettings
    from stepcot_jax.reasoning.thinking import tell
    from stepcot_jax.run.audit_folder import read_own, write_thinking
    from stepcot_jax.tools.evaluate_replies.audit_runs import write_results
    from stepcot_jax.tools.evaluate_replies.robustness import write_prompts

    folder, replies = options.folder, find_path(options.replies, "REPLIES")
    thinking = options.thinking_replies and find_path(options.thinking_replies, "--thinking-replies")
    scoring = ScoringSettings(options.dialect, with_thinking=options.with_thinking, missing="stop")
    print(write_results(folder, replies, thinking, scoring, who=replies.stem), end="")
    if thinking is None:
        records, questions = read_own(folder)
        texts = read_replies(replies, name="", chosen=dict.fromkeys(questions), known=records).replies
        varied = vary_thinking(list(questions.values()), texts, options.dialect)
        asked = write_thinking(folder, [tell(*pair) for pair in varied], _AS_TEXT, texts)
        write_prompts(folder / THINKING_PROMPTS, asked, root=folder, dialect=options.dialect, with_thinking=False)
        print(f"{folder / THINKING_PROMPTS}: {len(asked)} questions; score with --thinking-replies")


def _audit_workdir(options: argparse.Namespace) -> None:
    from absl import logging

    from stepcot_jax.host.files import make_workdir
    from stepcot_jax.host.machine import use_compilation_cache
    from stepcot_jax.run.stored import read_stored
    from stepcot_jax.tools.evaluate_replies.audit_runs import audit_chain, audit_policy

    if options.out is None and is_address(options.workdir):
        raise BadInput(f"{options.workdir} is an address: --out=DIR is required (a folder of this machine)")
    out = options.out or Path(options.workdir, "audit")
    options.workdir = find_path(options.workdir, "WORKDIR")
    use_compilation_cache()
    logging.set_verbosity(logging.ERROR)  # Orbax warns on every restore without an optimizer
    is_policy = read_stored(options.workdir).trains_policy
    for name in ("model", "as_published") if is_policy else ("phase",):
        if getattr(options, name):
            kind = "a policy" if is_policy else "a chain"
            raise BadInput(f"--{name.replace('_', '-')} does not apply to {options.workdir}, a run of {kind}")
    make_workdir(out)
    print((audit_policy if is_policy else audit_chain)(options, out), end="")
