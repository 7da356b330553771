"""Score replies that any model of any framework wrote: metrics, tables and a page to look through.

REPLIES are JSON lines with `id` (of a record), `reply` (what the model wrote) and optionally `finish_reason`, as the
endpoint said it ("stop", "length", "content_filter", "refusal"), `image_size` (of the picture that boxes in pixels
refer to) and `person` (the answer that a person reads, null for none, for --rule); `stepcot answer --questions` writes
such files. Further fields are ignored.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepcot_jax.host.download import find_path, is_address
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import make_workdir
from stepcot_jax.tools.options import DIALECTS, add_asker, add_reading, local_path, read_split

if TYPE_CHECKING:
    pass

_PROGRAM = "stepcot evaluate_replies"

_AUDIT = """Audit a model: does it look at the picture, does its thinking carry its answer, and what moves the answer?

WORKDIR is a policy's run or export, audited in one command. Any other model answers files: `audit questions`
writes variants of questions, `audit score` scores the replies and writes the questions of the thinking, which are
scored with --thinking-replies.
"""
PROMPTS, THINKING_PROMPTS = "prompts.jsonl", "thinking_prompts.jsonl"
_AS_TEXT = "the thinking as text in the question"


def score(options: argparse.Namespace) -> None:
    """Score files of replies."""
    from stepcot_jax.tools.evaluate_replies.scoring import score_command

    records = read_split(options, options.records, "RECORDS")
    options.replies = [find_path(file, "REPLIES") for file in options.replies]
    options.perturbed = [find_path(file, "--perturbed") for file in options.perturbed]
    if options.perturbed_records is not None:
        options.perturbed_records = find_path(options.perturbed_records, "--perturbed-records")
    text, doubt = score_command(options, *records)
    print(text, end="", flush=True)
    if doubt:
        raise BadInput(f"{doubt}; the results are in {options.out}")


def prompts(options: argparse.Namespace) -> None:
    """Write the prompts of a split."""
    from stepcot_jax.tools.evaluate_replies.scoring import write_prompts

    collection, chosen = read_split(options, options.records, "RECORDS")
    form = {"dialect": options.dialect, "with_thinking": options.with_thinking}
    make_workdir(options.out.parent)
    write_prompts(options.out, chosen, root=collection.root, **form)
    print(f'{options.out}: {len(chosen)} prompts; answer with lines of {{"id": .., "reply": ..}}')


def perturb(options: argparse.Namespace) -> None:
    """Write perturbed records and their prompts."""
    from stepcot_jax.tools.evaluate_replies.scoring import write_rounds

    if options.rounds < 1:
        raise BadInput(f"--rounds must be at least 1; got {options.rounds}")
    collection, chosen = read_split(options, options.records, "RECORDS")
    make_workdir(options.out)
    written = write_rounds(
        options.out,
        chosen,
        collection,
        num_rounds=options.rounds,
        seed=options.seed,
        negated_answer=options.negated_answer,
        dialect=options.dialect,
        with_thinking=options.with_thinking,
    )
    print(f"in {options.out}: {', '.join(path.name for path in written)}")


def reports(options: argparse.Namespace) -> None:
    """Write reports and score them."""
    from stepcot_jax.data.sources.layouts import read_source
    from stepcot_jax.tools.evaluate_replies.report_generation import report_replies, report_sheet, score_written

    answers, source = find_path(options.answers, "ANSWERS"), find_path(options.records, "RECORDS")
    if answers.suffix.lower() == ".csv":
        data = read_source(source, on_bad_record=options.on_bad_record, require_images=False)
        scored = report_sheet(data, answers)
    else:
        scored = report_replies(*read_split(options, options.records, "RECORDS"), answers, dialect=options.dialect)
    print(score_written(scored, options, source=source), end="")


def controls(options: argparse.Namespace) -> None:
    """Compare a model with itself without the picture, and with the most frequent answer."""
    from stepcot_jax.tools.evaluate_replies.controls import compare_command

    compare_command(options)
    if options.replies:
        from stepcot_jax.host.terminal import name_command

        words = [options.records, f"--split={options.split}", f"--out={options.out / 'audit'}"]
        command = f"{name_command()} evaluate_replies audit questions {shlex.join(words)}"
        print(f"next, to ask the model about other pictures: {command}")


def main(arguments: list[str] | None = None) -> None:
    """Run the subcommand of the command line, or score replies."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["audit"]:
        audit(given[1:])
        return
    commands = {"perturb": _perturb_parser, "prompts": _prompts_parser, "reports": _reports_parser}
    make = commands.get(given[0]) if given else None
    whole = _controls_parser if "--controls" in given else _score_parser
    options = make().parse_args(given[1:]) if make else whole().parse_intermixed_args(given)
    options.run(options)


def _add_common(parser: argparse.ArgumentParser, *, also: tuple[str, ...] = ()) -> None:
    records = "folder or file with questions in any layout, such as records.jsonl; or gs://"
    parser.add_argument("records", metavar="RECORDS", help=records)
    add_reading(parser)
    _add_dialect(parser, also, without="replies of gemex need no <think> part, and prompts do not ask for one")


def _add_dialect(parser: argparse.ArgumentParser, also: tuple[str, ...] = (), *, without: str) -> None:
    default = (*also, "gemex")[0]
    parser.add_argument(
        "--dialect", choices=(*also, *DIALECTS), default=default, help=f"form of the replies, default {default}"
    )
    parser.add_argument("--without-thinking", dest="with_thinking", action="store_false", help=without)


def _score_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Score replies to grounded questions: metrics.json, tables, scores.jsonl and index.html.",
        epilog=f"{_PROGRAM} prompts --help and {_PROGRAM} perturb --help: prompts for a model to answer; "
        f"{_PROGRAM} reports --help: FINDINGS and IMPRESSION from answers; "
        f"{_PROGRAM} audit --help: does the model look, and does its thinking carry its answer?; "
        f"{_PROGRAM} --controls --help: the same model without the picture, and the most frequent answer",
    )
    _add_common(parser, also=("auto", "free"))
    replies = "JSON lines with id, reply and optionally finish_reason; or gs://"
    parser.add_argument("replies", nargs="+", metavar="REPLIES", help=replies)
    out = "folder of the results"
    parser.add_argument("--out", type=local_path, required=True, metavar="DIR", help=out)
    parser.add_argument("--reading", choices=("strict", "parts"), default="strict", help="default strict")
    space = "coordinates of boxes: pixels, unit, 1000, WxH, qwen or qwen:MIN:MAX; default the dialect's own"
    parser.add_argument("--box-space", default="", metavar="SPACE", help=space)
    order = ("xyxy", "xywh", "yxyx")
    parser.add_argument("--box-order", choices=order, default="", help="default the dialect's own")
    parser.add_argument("--missing", choices=("wrong", "stop", "skip"), default="wrong", help="replies, default wrong")
    scores = ("relative", "within_two", "exact", "token_f1")
    open_score = "of open questions, default exact, and relative with --judge"
    parser.add_argument("--open-score", choices=scores, help=open_score)
    unequal = "V-score with another number of boxes, default penalise"
    parser.add_argument("--unequal-counts", choices=("penalise", "zero", "matched"), default="penalise", help=unequal)
    rule = "count by rules of public suites too: medevalkit, lmms_eval, vlmevalkit or all"
    parser.add_argument("--rule", type=lambda names: names.split(","), default=[], metavar="NAME[,NAME]", help=rule)
    parser.add_argument("--num-resamples", type=int, default=1000, metavar="N", help="of the bootstrap, default 1000")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap, default 0")
    parser.add_argument("--num-shown", type=int, default=1000, metavar="N", help="on the page, default 1000")
    parser.add_argument("--without-pictures", action="store_true", help="leave pictures out of the page")
    perturbed = parser.add_argument_group("perturbed questions", "Replies of the first model to each round's records.")
    perturbed.add_argument("--perturbed", nargs="+", default=[], metavar="R", help="one file for each round")
    perturbed.add_argument("--perturbed-records", metavar="DIR", help="folder that `perturb` wrote")
    stds = ("population", "sample", "from_original")
    perturbed.add_argument("--perturbation-std", choices=stds, default="population", help="default population")
    judge = parser.add_argument_group("judge of open answers", "Any OpenAI-compatible endpoint (extra: annotate).")
    judge.add_argument("--judge", metavar="MODEL", help="name at the endpoint")
    judge.add_argument("--base-url", metavar="URL", help="default https://api.openai.com/v1")
    judge.add_argument("--key-variable", metavar="NAME", help="environment variable of the key, default OPENAI_API_KEY")
    judge.add_argument("--max-tokens", type=int, metavar="N", help="spending cap of all ledgers in DIR together")
    judge.add_argument("--concurrency", type=int, default=4, metavar="N", help="requests at once, default 4")
    judge.add_argument("--judge-stages", action="store_true", help="also let it rate the stages of each reply")
    parser.set_defaults(run=score)
    return parser


def _prompts_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"{_PROGRAM} prompts", description="Write the prompts of a split.")
    _add_common(parser)
    parser.add_argument("--out", type=local_path, required=True, metavar="FILE", help="JSON lines")
    parser.set_defaults(run=prompts)
    return parser


def _perturb_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{_PROGRAM} perturb", description="Write perturbed closed and single-choice questions, and their prompts."
    )
    _add_common(parser)
    parser.add_argument("--out", type=local_path, required=True, metavar="DIR", help="folder")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default 3")
    parser.add_argument("--seed", type=int, default=0, help="of the draws, default 0")
    negated = 'whether "isn\'t" turns the answer, default flip'
    parser.add_argument("--negated-answer", choices=("flip", "keep"), default="flip", help=negated)
    parser.set_defaults(run=perturb)
    return parser


def _reports_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{_PROGRAM} reports",
        description="Write FINDINGS and IMPRESSION from answers of a chain or replies; score them by BLEU-4, ROUGE-L.",
    )
    _add_common(parser)
    answers = "a .csv of `stepcot predict` to images of a data root (RECORDS), or JSON lines of replies to records"
    parser.add_argument("answers", metavar="ANSWERS", help=answers)
    parser.add_argument("--out", type=local_path, required=True, metavar="DIR", help="folder of the results")
    parser.add_argument("--num-resamples", type=int, default=1000, metavar="N", help="of the bootstrap, default 1000")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap, default 0")
    parser.set_defaults(run=reports)
    return parser


def _controls_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{_PROGRAM} --controls",
        description="Compare a model's right answers with its own without the picture and with another patient's "
        "picture, and with the most frequent answer, by kind, modality and organ: controls.html and tables.",
        epilog="Exit code 0: asked, with refusals and unreadable pictures counted; 2: wrong input, or most replies "
        "cannot be read; 3: stopped or requests were given up, and the same command resumes.",
    )
    parser.add_argument("--controls", action="store_true", required=True, help=argparse.SUPPRESS)
    parser.add_argument("records", metavar="RECORDS", help="folder or file of questions in any layout; or gs://")
    replies = "JSON lines of a model that is not asked: it is compared with the most frequent answer alone"
    parser.add_argument("replies", nargs="?", metavar="REPLIES", help=replies)
    parser.add_argument("--out", type=local_path, required=True, metavar="DIR", help="results; a rerun resumes")
    add_reading(parser)
    add_asker(parser)
    parser.set_defaults(run=controls)
    return parser


# Audits: does the model look, and does its thinking carry its answer?


def audit(arguments: list[str]) -> None:
    """Write or score the files of an audit, or audit a workdir."""
    commands = {"questions": (_define_questions, _write_questions), "score": (_define_score, _score_audit)}
    name = arguments[0] if arguments and arguments[0] in commands else ""
    define, run = commands.get(name, (_define_workdir, _audit_workdir))
    program = f"{_PROGRAM} audit"
    also = f"see also {program} questions --help and {program} score --help"
    parser = argparse.ArgumentParser(prog=f"{program} {name}".strip(), description=_AUDIT, epilog=also)
    define(parser)
    options = parser.parse_args(arguments[1:] if name else arguments)
    if getattr(options, "num_questions", 1) < 1:
        raise BadInput(f"--num-questions must be at least 1; got {options.num_questions}")
    run(options)


def _define_workdir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workdir", metavar="WORKDIR", help="of a policy's run or export; or gs://, hf://OWNER/NAME")
    parser.add_argument("--out", type=local_path, metavar="DIR", help="default: audit in WORKDIR, for `stepcot report`")
    data = "a folder of questions in place of the run's test questions"
    parser.add_argument("--data", metavar="DIR", help=data)
    parser.add_argument("--phase", choices=("sft", "grpo", "dpo"), help="default: the last")
    _add_number(parser)


def _define_questions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", metavar="RECORDS", help="records.jsonl or its folder")
    parser.add_argument("--out", type=local_path, required=True, metavar="DIR", help="folder of the audit")
    parser.add_argument("--split", default="test", help="of questions: train, val, test (default) or all")
    _add_dialect(parser, without="replies need no thinking, and prompts do not ask for one")
    _add_number(parser)


def _define_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=local_path, metavar="DIR", help="folder that `audit questions` wrote")
    parser.add_argument("replies", metavar="REPLIES", help="JSON lines with id and reply, to its prompts.jsonl")
    parser.add_argument("--thinking-replies", metavar="FILE", help="replies to its thinking_prompts.jsonl")
    _add_dialect(parser, without="replies need no thinking, and prompts do not ask for one")


def _add_number(parser: argparse.ArgumentParser) -> None:
    most = "most questions to audit, drawn from the split, default 400"
    parser.add_argument("--num-questions", type=int, default=400, metavar="N", help=most)


def _write_questions(options: argparse.Namespace) -> None:
    from stepcot_jax.data.sources.layouts import read_vqa_source
    from stepcot_jax.host.files import make_workdir
    from stepcot_jax.reading.audit_folder import write_variants
    from stepcot_jax.reading.radiographs import read_pixels
    from stepcot_jax.reading.scored_file import choose_split
    from stepcot_jax.tools.evaluate_replies.scoring import write_prompts

    collection, most, out = read_vqa_source(find_path(options.records, "RECORDS")), options.num_questions, options.out
    make_workdir(out)
    chosen = choose_split(collection.records, options.split, where=str(collection.path))
    written = write_variants(out, chosen, lambda record: read_pixels(collection.root / record.image), most=most)
    write_prompts(out / PROMPTS, written, root=out, dialect=options.dialect, with_thinking=options.with_thinking)
    print(f'{out / PROMPTS}: {len(written)} questions; answer with lines of {{"id": .., "reply": ..}}')


def _score_audit(options: argparse.Namespace) -> None:
    from stepcot_jax.data.questions.reply_files import read_replies
    from stepcot_jax.data.questions.variants import vary_thinking
    from stepcot_jax.evaluation.replies import ScoringSettings
    from stepcot_jax.reading.audit_folder import read_own, write_thinking
    from stepcot_jax.reasoning.thinking import tell
    from stepcot_jax.tools.evaluate_replies.audit_runs import write_results
    from stepcot_jax.tools.evaluate_replies.scoring import write_prompts

    folder, replies = options.folder, find_path(options.replies, "REPLIES")
    thinking = options.thinking_replies and find_path(options.thinking_replies, "--thinking-replies")
    scoring = ScoringSettings(options.dialect, with_thinking=options.with_thinking, missing="stop")
    text, doubt = write_results(folder, replies, thinking, scoring, replies.stem)
    print(text, end="", flush=True)
    if thinking is None:
        records, questions = read_own(folder)
        texts = read_replies(replies, name="", chosen=dict.fromkeys(questions), known=records).replies
        varied = vary_thinking(list(questions.values()), texts, options.dialect)
        asked = write_thinking(folder, [tell(*pair) for pair in varied], _AS_TEXT, texts)
        write_prompts(folder / THINKING_PROMPTS, asked, root=folder, dialect=options.dialect, with_thinking=False)
        print(f"{folder / THINKING_PROMPTS}: {len(asked)} questions; score with --thinking-replies", flush=True)
    if doubt:
        raise BadInput(f"{doubt}; the results are in {folder}")


def _audit_workdir(options: argparse.Namespace) -> None:
    from absl import logging

    from stepcot_jax.host.files import make_workdir
    from stepcot_jax.host.machine import use_compilation_cache
    from stepcot_jax.reading.audit_folder import REPLIES, find_thinking
    from stepcot_jax.run.stored import read_stored
    from stepcot_jax.tools.evaluate_replies.audit_runs import audit_policy, write_results

    if options.out is None and is_address(options.workdir):
        raise BadInput(f"{options.workdir} is an address: --out=DIR is required (a folder of this machine)")
    out = options.out or Path(options.workdir, "audit")
    options.workdir = find_path(options.workdir, "WORKDIR")
    use_compilation_cache()
    logging.set_verbosity(logging.ERROR)  # Orbax warns on every restore without an optimizer
    if not read_stored(options.workdir).trains_policy:
        raise BadInput(f"{options.workdir}: a run of a chain, which has no audit; expected one of a policy")
    make_workdir(out)
    scoring, who = audit_policy(options, out)
    print(write_results(out, out / REPLIES, find_thinking(out), scoring, who)[0], end="")


if __name__ == "__main__":
    run_tool(main)
