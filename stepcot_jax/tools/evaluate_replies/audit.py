"""Audit a model: does it look at the picture, does its thinking carry its answer, and what moves the answer?

stepcot evaluate_replies audit WORKDIR [--out=DIR]             a run or export of this package, in one command
stepcot evaluate_replies audit questions RECORDS --out=DIR     any model: questions about variants of pictures,
stepcot evaluate_replies audit thinking DIR REPLIES            questions with another thinking in the text,
stepcot evaluate_replies audit score DIR REPLIES [--thinking-replies=FILE]     and the figures
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from stepcot_jax.host.download import find_path, is_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.tools.options import local_path

_PROGRAM = "stepcot evaluate_replies audit"
_DIALECTS = ("gemex", "gemex_plain", "lvkc", "lvkc_released", "medclm")


def main(arguments: list[str]) -> None:
    """Run one step of an audit by files, or the whole audit of a workdir."""
    commands: dict[str, Callable[[argparse.ArgumentParser], None]] = {
        "questions": _define_questions,
        "thinking": _define_thinking,
        "score": _define_score,
    }
    name = arguments[0] if arguments and arguments[0] in commands else ""
    parser = argparse.ArgumentParser(
        prog=f"{_PROGRAM} {name}".strip(), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands.get(name, _define_workdir)(parser)
    parser.add_argument("--num-resamples", type=int, default=1000, metavar="N", help="of the bootstrap, default 1000")
    options = parser.parse_args(arguments[1:] if name else arguments)
    for option in ("num_resamples", "num_questions"):
        if getattr(options, option, 1) < 1:
            raise BadInput(f"--{option.replace('_', '-')} must be at least 1; got {getattr(options, option)}")
    options.run(options)


def _add_number(parser: argparse.ArgumentParser) -> None:
    most = "most questions or cases to audit, drawn from the split, default 400"
    parser.add_argument("--num-questions", type=int, default=400, metavar="N", help=most)


def _add_dialect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dialect", choices=_DIALECTS, default="gemex", help="form of the replies, default gemex")
    without = "replies need no thinking, and prompts do not ask for one"
    parser.add_argument("--without-thinking", dest="with_thinking", action="store_false", help=without)


def _define_workdir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workdir", metavar="WORKDIR", help="of a run or an export; or gs://, s3://, hf://OWNER/NAME")
    parser.add_argument("--out", type=local_path, metavar="DIR", help="default: audit in WORKDIR, for `stepcot report`")
    data = "in place of the run's test split: a folder of questions for a policy, of radiographs for a chain"
    parser.add_argument("--data", metavar="DIR", help=data)
    parser.add_argument("--phase", choices=("sft", "grpo"), help="of a policy; default: the last")
    network = "network of a chain's run; default: the student, if the run has one"
    parser.add_argument("--model", choices=("teacher", "student"), help=network)
    parser.add_argument("--as-published", action="store_true", help="of a chain: without the joint model")
    _add_number(parser)
    parser.set_defaults(run=_audit_workdir)


def _define_questions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", metavar="RECORDS", help="records.jsonl, or a folder that holds it; or gs://, s3://")
    parser.add_argument("--out", type=local_path, required=True, metavar="DIR", help="folder of the audit")
    parser.add_argument("--split", default="test", help="train, val, test (default) or all")
    _add_dialect(parser)
    _add_number(parser)
    parser.set_defaults(run=_write_questions)


def _define_thinking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=local_path, metavar="DIR", help="folder that `questions` wrote")
    parser.add_argument("replies", metavar="REPLIES", help="replies to its prompts.jsonl")
    _add_dialect(parser)
    parser.set_defaults(run=_write_thinking)


def _define_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=local_path, metavar="DIR", help="folder that `questions` wrote")
    parser.add_argument("replies", metavar="REPLIES", help="JSON lines with id and reply, to its prompts.jsonl")
    parser.add_argument("--thinking-replies", metavar="FILE", help="replies to its thinking_prompts.jsonl")
    _add_dialect(parser)
    parser.add_argument("--missing", choices=("wrong", "stop"), default="stop", help="replies, default stop")
    parser.set_defaults(run=_score)


def _write_questions(options: argparse.Namespace) -> None:
    # Imported here and below, so that --help is fast.
    from stepcot_jax.data.questions.record_files import read_vqa_records
    from stepcot_jax.host.files import make_workdir
    from stepcot_jax.reading.radiographs import read_pixels
    from stepcot_jax.run.scored_replies import choose_split
    from stepcot_jax.tools.evaluate_replies.audit_folder import PROMPTS, write_questions

    collection = read_vqa_records(find_path(options.records, "RECORDS"))
    chosen = choose_split(collection.records, options.split, where=str(collection.path))
    make_workdir(options.out)
    written = write_questions(
        options.out,
        chosen,
        lambda record: read_pixels(collection.root / record.image),
        most=options.num_questions,
        dialect=options.dialect,
        with_thinking=options.with_thinking,
    )
    print(f'{options.out / PROMPTS}: {len(written)} questions; answer with lines of {{"id": .., "reply": ..}}')


def _write_thinking(options: argparse.Namespace) -> None:
    from stepcot_jax.tools.evaluate_replies.audit_folder import THINKING_PROMPTS, read_folder, write_thinking

    replies = read_folder(options.folder).read_replies(find_path(options.replies, "REPLIES"))
    written = write_thinking(options.folder, replies, dialect=options.dialect)
    print(f"{options.folder / THINKING_PROMPTS}: {len(written)} questions with a thinking as text in the question")


def _score(options: argparse.Namespace) -> None:
    from stepcot_jax.evaluation.replies import ScoringSettings
    from stepcot_jax.tools.evaluate_replies.audit_folder import score_folder

    thinking = options.thinking_replies and find_path(options.thinking_replies, "--thinking-replies")
    scoring = ScoringSettings(dialect=options.dialect, with_thinking=options.with_thinking, missing=options.missing)
    replies = find_path(options.replies, "REPLIES")
    print(score_folder(options.folder, replies, thinking, scoring, num_resamples=options.num_resamples), end="")


def _audit_workdir(options: argparse.Namespace) -> None:
    from absl import logging

    from stepcot_jax.host.files import make_workdir
    from stepcot_jax.host.machine import use_compilation_cache
    from stepcot_jax.run.stored import read_stored

    if options.out is None and is_address(options.workdir):
        raise BadInput(f"{options.workdir} is an address: --out=DIR is required (a folder of this machine)")
    out: Path = options.out or Path(options.workdir, "audit")
    options.workdir = find_path(options.workdir, "WORKDIR")
    use_compilation_cache()
    logging.set_verbosity(logging.ERROR)  # Orbax warns on every restore without an optimizer
    is_policy = read_stored(options.workdir).trains_policy
    for name in ("model", "as_published") if is_policy else ("phase",):
        if getattr(options, name):
            kind = "a policy" if is_policy else "a chain"
            raise BadInput(f"--{name.replace('_', '-')} does not apply to {options.workdir}, which is of {kind}")
    make_workdir(out)
    if is_policy:
        from stepcot_jax.tools.evaluate_replies.audit_policy import audit_policy

        print(audit_policy(options, out), end="")
    else:
        from stepcot_jax.tools.evaluate_replies.audit_chain import audit_chain

        print(audit_chain(options, out), end="")
