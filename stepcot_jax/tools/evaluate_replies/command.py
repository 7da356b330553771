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
from typing import Any

from stepcot_jax.host.download import find_path, is_address
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import make_workdir
from stepcot_jax.tools.options import (
    DIALECTS,
    add,
    add_asker,
    add_box_size,
    add_layout,
    add_reading,
    check_numbers,
    local_path,
    prepare_reading,
    read_split,
)

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

    check_numbers(options, "rounds")
    collection, chosen = read_split(options, options.records, "RECORDS")
    make_workdir(options.out)
    written = write_rounds(options, chosen, collection)
    print(f"in {options.out}: {', '.join(path.name for path in written)}")


def reports(options: argparse.Namespace) -> None:
    """Write reports and score them."""
    from stepcot_jax.data.sources.layouts import read_source
    from stepcot_jax.tools.evaluate_replies.report_generation import report_replies, report_sheet, score_written

    answers, source = find_path(options.answers, "ANSWERS"), find_path(options.records, "RECORDS")
    if answers.suffix.lower() == ".csv":
        data = read_source(source, layout=options.layout, on_bad_record=options.on_bad_record, require_images=False)
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


def _add_common(parser: argparse.ArgumentParser, *, also: tuple[str, ...] = ()) -> None:
    add(parser, "RECORDS", "folder or file with questions in any layout, such as records.jsonl; or gs://")
    add_reading(parser)
    _add_dialect(parser, also, without="replies of gemex need no <think> part, and prompts do not ask for one")


def _add_dialect(parser: argparse.ArgumentParser, also: tuple[str, ...] = (), *, without: str) -> None:
    default = (*also, "gemex")[0]
    add(parser, "--dialect", f"form of the replies, default {default}", default, choices=(*also, *DIALECTS))
    add(parser, "--without-thinking", without, dest="with_thinking", action="store_false")


def _define_score(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, also=("auto", "free"))
    add(parser, "REPLIES", "JSON lines with id, reply and optionally finish_reason; or gs://", nargs="+")
    add(parser, "--out DIR", "folder of the results", type=local_path, required=True)
    add(parser, "--reading", "default strict", "strict", choices=("strict", "parts"))
    space = "coordinates of boxes: pixels, unit, 1000, WxH, qwen or qwen:MIN:MAX; default the dialect's own"
    add(parser, "--box-space SPACE", space, "")
    order = ("xyxy", "xywh", "yxyx")
    add(parser, "--box-order", "default the dialect's own", "", choices=order)
    add(parser, "--missing", "replies, default wrong", "wrong", choices=("wrong", "stop", "skip"))
    scores = ("relative", "within_two", "exact", "token_f1")
    add(parser, "--open-score", "of open questions, default exact, and relative with --judge", choices=scores)
    unequal = "V-score with another number of boxes, default penalise"
    add(parser, "--unequal-counts", unequal, "penalise", choices=("penalise", "zero", "matched"))
    rule = "count by rules of public suites too: medevalkit, lmms_eval, vlmevalkit or all"
    add(parser, "--rule NAME[,NAME]", rule, [], type=lambda names: names.split(","))
    add(parser, "--num-resamples N", "of the bootstrap, default 1000", 1000)
    add(parser, "--seed", "of the bootstrap, default 0", 0)
    add(parser, "--num-shown N", "on the page, default 1000", 1000)
    add(parser, "--without-pictures", "leave pictures out of the page")
    perturbed = parser.add_argument_group("perturbed questions", "Replies of the first model to each round's records.")
    add(perturbed, "--perturbed R", "one file for each round", [], nargs="+")
    add(perturbed, "--perturbed-records DIR", "folder that `perturb` wrote")
    stds = ("population", "sample", "from_original")
    add(perturbed, "--perturbation-std", "default population", "population", choices=stds)
    judge = parser.add_argument_group("judge of open answers", "Any OpenAI-compatible endpoint (extra: annotate).")
    add(judge, "--judge MODEL", "name at the endpoint")
    add(judge, "--base-url URL", "default https://api.openai.com/v1")
    add(judge, "--key-variable NAME", "environment variable of the key, default OPENAI_API_KEY")
    add(judge, "--max-tokens N", "spending cap of all ledgers in DIR together")
    add(judge, "--concurrency N", "requests at once, default 4", 4)
    add(judge, "--judge-stages", "also let it rate the stages of each reply")


def _define_prompts(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    add(parser, "--out FILE", "JSON lines", type=local_path, required=True)


def _define_perturb(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    add(parser, "--out DIR", "folder", type=local_path, required=True)
    add(parser, "--rounds N", "default 3", 3)
    add(parser, "--seed", "of the draws, default 0", 0)
    add(parser, "--negated-answer", 'whether "isn\'t" turns the answer, default flip', "flip", choices=("flip", "keep"))


def _define_reports(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    answers = "a .csv of `stepcot predict` to images of a data root (RECORDS), or JSON lines of replies to records"
    add(parser, "ANSWERS", answers)
    add(parser, "--out DIR", "folder of the results", type=local_path, required=True)
    add(parser, "--num-resamples N", "of the bootstrap, default 1000", 1000)
    add(parser, "--seed", "of the bootstrap, default 0", 0)


def _define_controls(parser: argparse.ArgumentParser) -> None:
    add(parser, "--controls", argparse.SUPPRESS, required=True)
    add(parser, "RECORDS", "folder or file of questions in any layout; or gs://")
    replies = "JSON lines of a model that is not asked: it is compared with the most frequent answer alone"
    add(parser, "REPLIES", replies, nargs="?")
    add(parser, "--out DIR", "results; a rerun resumes", type=local_path, required=True)
    add_reading(parser)
    add_asker(parser)


# Audits: does the model look, and does its thinking carry its answer?


def _define_workdir(parser: argparse.ArgumentParser) -> None:
    add(parser, "WORKDIR", "of a policy's run or export; or gs://, hf://OWNER/NAME")
    add(parser, "--out DIR", "default: audit in WORKDIR, for `stepcot report`", type=local_path)
    add(parser, "--data DIR", "folder or file of questions in any layout, in place of the run's; their test split")
    add_layout(parser)
    add_box_size(parser)
    add(parser, "--phase", "default: the last", choices=("sft", "grpo", "dpo"))
    _add_number(parser)


def _define_questions(parser: argparse.ArgumentParser) -> None:
    add(parser, "RECORDS", "folder or file of questions in any layout; or gs://")
    add_layout(parser)
    add_box_size(parser)
    add(parser, "--out DIR", "folder of the audit", type=local_path, required=True)
    parser.add_argument("--split", default="test", help="of questions: train, val, test (default) or all")
    _add_dialect(parser, without="replies need no thinking, and prompts do not ask for one")
    _add_number(parser)


def _define_audit_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=local_path, metavar="DIR", help="folder that `audit questions` wrote")
    add(parser, "REPLIES", "JSON lines with id and reply, to its prompts.jsonl")
    add(parser, "--thinking-replies FILE", "replies to its thinking_prompts.jsonl")
    _add_dialect(parser, without="replies need no thinking, and prompts do not ask for one")


def _add_number(parser: argparse.ArgumentParser) -> None:
    add(parser, "--num-questions N", "most questions to audit, drawn from the split, default 400", 400)


def _write_questions(options: argparse.Namespace) -> None:
    check_numbers(options, "num_questions")
    from stepcot_jax.data.sources.layouts import read_vqa_source
    from stepcot_jax.reading.audit_folder import write_variants
    from stepcot_jax.reading.radiographs import read_pixels
    from stepcot_jax.reading.scored_file import choose_split
    from stepcot_jax.tools.evaluate_replies.scoring import write_prompts

    size = options.box_size and tuple(options.box_size)
    collection = read_vqa_source(find_path(options.records, "RECORDS"), layout=options.layout, box_size=size)
    most, out = options.num_questions, options.out
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
    check_numbers(options, "num_questions")
    from stepcot_jax.data.sources.layout_table import AUTO
    from stepcot_jax.reading.audit_folder import REPLIES, find_thinking
    from stepcot_jax.run.stored import read_stored
    from stepcot_jax.tools.evaluate_replies.audit_runs import audit_policy, write_results

    if (options.layout != AUTO or options.box_size) and options.data is None:
        raise BadInput("--layout and --box-size require --data")
    if options.out is None and is_address(options.workdir):
        raise BadInput(f"{options.workdir} is an address: --out=DIR is required (a folder of this machine)")
    out = options.out or Path(options.workdir, "audit")
    options.workdir = find_path(options.workdir, "WORKDIR")
    prepare_reading()
    if not read_stored(options.workdir).trains_policy:
        raise BadInput(f"{options.workdir}: a run of a chain, which has no audit; expected one of a policy")
    make_workdir(out)
    scoring, who = audit_policy(options, out)
    print(write_results(out, out / REPLIES, find_thinking(out), scoring, who)[0], end="")


_SCORE = (
    "Score replies to grounded questions: metrics.json, tables, scores.jsonl and index.html.",
    f"{_PROGRAM} prompts --help and {_PROGRAM} perturb --help: prompts for a model to answer; "
    f"{_PROGRAM} reports --help: FINDINGS and IMPRESSION from answers; "
    f"{_PROGRAM} audit --help: does the model look, and does its thinking carry its answer?; "
    f"{_PROGRAM} --controls --help: the same model without the picture, and the most frequent answer",
)
_CONTROLS = (
    "Compare a model's right answers with its own without the picture and with another patient's "
    "picture, and with the most frequent answer, by kind, modality and organ: controls.html and tables.",
    "Exit code 0: asked, with refusals and unreadable pictures counted; 2: wrong input, or most replies "
    "cannot be read; 3: stopped or requests were given up, and the same command resumes.",
)
_PERTURB = "Write perturbed closed and single-choice questions, and their prompts."
_REPORTS = "Write FINDINGS and IMPRESSION from answers of a chain or replies; score them by BLEU-4, ROUGE-L."
_OF_AUDIT = _AUDIT, f"see also {_PROGRAM} audit questions --help and {_PROGRAM} audit score --help"
_COMMANDS: dict[str, tuple[Any, Any, str, str | None]] = {
    "": (_define_score, score, *_SCORE),
    "prompts": (_define_prompts, prompts, "Write the prompts of a split.", None),
    "perturb": (_define_perturb, perturb, _PERTURB, None),
    "reports": (_define_reports, reports, _REPORTS, None),
    "--controls": (_define_controls, controls, *_CONTROLS),
    "audit": (_define_workdir, _audit_workdir, *_OF_AUDIT),
    "audit questions": (_define_questions, _write_questions, *_OF_AUDIT),
    "audit score": (_define_audit_score, _score_audit, *_OF_AUDIT),
}
"""By name: what defines the options, what runs, and the texts before and below them in --help."""


def main(arguments: list[str] | None = None) -> None:
    """Run the subcommand of the command line, or score replies."""
    given = sys.argv[1:] if arguments is None else arguments
    name = next((words for words in (" ".join(given[:2]), *given[:1]) if words in _COMMANDS), "")
    name = "--controls" if not name and "--controls" in given else name
    define, run, description, epilog = _COMMANDS[name]
    parser = argparse.ArgumentParser(prog=f"{_PROGRAM} {name}".strip(), description=description, epilog=epilog)
    define(parser)
    if name in ("", "--controls"):  # whose replies may come after options
        run(parser.parse_intermixed_args(given))
    else:
        run(parser.parse_args(given[len(name.split()) :]))


if __name__ == "__main__":
    run_tool(main)
