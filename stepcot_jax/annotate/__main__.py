"""Make chains from radiology reports, compare annotators, and review the records.

python -m stepcot_jax.annotate REPORTS --out DIR [--annotator=rules|llm --model NAME --base-url URL]
python -m stepcot_jax.annotate agree A B ... [--out DIR]
python -m stepcot_jax.annotate review-out A [B ...] --out FORM.csv
python -m stepcot_jax.annotate review-in FORM.csv A [B ...] --reviewer NAME --out DIR
"""

import argparse
import dataclasses
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from stepcot_jax.annotate.llm.endpoint import DEFAULT_BASE_URL, DEFAULT_KEY_VARIABLE, Endpoint
from stepcot_jax.host.errors import BadInput, run_tool

if TYPE_CHECKING:
    from stepcot_jax.annotate.alignment import Aligned

_VOTER_FIELDS = ("base-url", "key-variable")


def annotate(options: argparse.Namespace) -> None:
    """Annotate a source of reports."""
    # Imported here, as below, to keep --help and the other subcommands fast.
    from stepcot_jax.annotate.alignment import read_annotator
    from stepcot_jax.annotate.output import as_markdown
    from stepcot_jax.annotate.pipeline import Plan, annotate_source
    from stepcot_jax.chain import DEFAULT_CHAIN
    from stepcot_jax.host.terminal import Terminal

    if options.annotator == "llm" and not options.model:
        raise BadInput("--model is required with --annotator=llm (the name of a model)")
    if options.annotator == "rules" and options.model:
        raise BadInput(f"--model={options.model!r} requires --annotator=llm")
    chain = read_annotator(options.chain).chain if options.chain else DEFAULT_CHAIN
    annotator = None
    if options.annotator == "llm":
        annotator = _make_endpoint(options, options.model, options.base_url, options.key_variable)
    plan = Plan(
        annotator=annotator,
        voters=tuple(_read_voter(options, voter) for voter in options.voter),
        asks_trust=options.trust,
        chain=chain,
        cap=options.max_tokens,
        concurrency=options.concurrency,
        num_repairs=options.repairs,
        on_failure=options.on_failure,
        images=options.images,
        overwrite=options.overwrite,
    )
    result = annotate_source(options.reports, options.out, plan, Terminal())
    print(as_markdown(result.funnel()), end="")
    print(f"{len(result.cases)} records in {options.out}")


def agree(options: argparse.Namespace, aligned: "Aligned") -> None:
    """Compare annotators."""
    from stepcot_jax.annotate.agreement import as_markdown, compare, write_agreement

    comparison = compare(aligned)
    print(as_markdown(comparison), end="")
    for name, num_missing in zip(aligned.names, aligned.num_missing, strict=True):
        if num_missing:
            print(f"{name} lacks {num_missing} records that another has; these are not compared")
    if options.out is not None:
        write_agreement(options.out, aligned, comparison)
        print(f"side by side: {options.out / 'disagreements.html'}")


def write_form(options: argparse.Namespace, aligned: "Aligned") -> None:
    """Write a form for a reviewer."""
    from stepcot_jax.annotate.review import write_review

    num_cases = write_review(options.out, aligned, every=options.all)
    print(f"{num_cases} cases to review in {options.out}")


def read_form(options: argparse.Namespace, aligned: "Aligned") -> None:
    """Apply a reviewer's corrections."""
    from stepcot_jax.annotate.review import apply_review

    cases, answers, corrected = apply_review(
        options.form, aligned, every=options.all, reviewer=options.reviewer, folder=options.out
    )
    print(f"{cases} cases reviewed, {answers} answers corrected in {corrected} of them")
    print(f"{len(aligned.collections[0].cases)} records in {options.out}")


def main(arguments: list[str] | None = None) -> None:
    """Run a command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    commands = {"agree": agree, "review-out": write_form, "review-in": read_form}
    # `annotate REPORTS` has no subcommand name; pass a file called "agree" as "./agree".
    if arguments and arguments[0] in commands:
        options = _comparison_parser(arguments[0]).parse_args(arguments[1:])
        from stepcot_jax.annotate.alignment import align

        commands[arguments[0]](options, align(options.annotators, names=options.names))
    else:
        annotate(_annotate_parser().parse_args(arguments))


def _annotate_parser() -> argparse.ArgumentParser:
    prog = "python -m stepcot_jax.annotate"
    also = "Also: agree A B ..., review-out A [B ...], review-in FORM A [B ...]; each has a --help."
    parser = argparse.ArgumentParser(prog=prog, description="Make chains from reports.", epilog=also)
    path = pathlib.Path
    parser.add_argument("reports", type=path, metavar="REPORTS", help="IU X-Ray, published layout, .csv or .jsonl")
    parser.add_argument("--out", type=path, required=True, metavar="DIR", help="folder of the result and the ledgers")
    parser.add_argument("--annotator", choices=("rules", "llm"), default="rules", help="default rules (offline)")
    parser.add_argument("--chain", type=path, metavar="DATA", help="folder whose data.json has the chain to answer")
    parser.add_argument("--images", choices=("link", "none"), default="link", help="whether to link images into DIR")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier result in DIR")
    model = parser.add_argument_group("language models", "Any OpenAI-compatible endpoint (extra: annotate).")
    model.add_argument("--model", metavar="NAME", help="name at the endpoint")
    model.add_argument("--base-url", default=DEFAULT_BASE_URL, metavar="URL", help=f"default {DEFAULT_BASE_URL}")
    model.add_argument("--key-variable", default=DEFAULT_KEY_VARIABLE, metavar="NAME", help="environment variable")
    model.add_argument("--max-tokens", type=int, metavar="N", help="spending cap of all ledgers in DIR together")
    model.add_argument("--max-answer-tokens", type=int, default=2048, metavar="N", help="of one answer, default 2048")
    model.add_argument("--concurrency", type=int, default=4, metavar="N", help="reports at once, default 4")
    model.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="of a request, default 120")
    model.add_argument("--attempts", type=int, default=8, metavar="N", help="until a request is given up, default 8")
    model.add_argument("--repairs", type=int, default=2, metavar="N", help="of an unreadable answer, default 2")
    model.add_argument("--temperature", type=float, default=0.0, help="default 0")
    model.add_argument("--seed", type=int, default=0, help="default 0")
    omit = "decoding setting that an endpoint refuses; may be repeated"
    model.add_argument("--omit", choices=("temperature", "seed"), action="append", default=[], help=omit)
    model.add_argument("--trust", action="store_true", help="keep only chains that the annotator trusts when asked")
    voter = f"further model that must vote 'correct'; NAME[,{'=...,'.join(_VOTER_FIELDS)}=...]; may be repeated"
    model.add_argument("--voter", action="append", default=[], metavar="NAME", help=voter)
    failure = "for reports whose request was given up, default stop"
    model.add_argument("--on-failure", choices=("stop", "set-aside"), default="stop", help=failure)
    return parser


def _comparison_parser(command: str) -> argparse.ArgumentParser:
    description, metavar, written = {
        "agree": (
            "Compare annotators on the same reports, step by step.",
            "DIR",
            "agreement.json, .md and disagreements.html",
        ),
        "review-out": (
            "Write a form (CSV) in which a reviewer confirms or corrects the first annotator.",
            "FORM.csv",
            "a new file",
        ),
        "review-in": ("Apply a filled form; the records say who changed what.", "DIR", "a folder without data.json"),
    }[command]
    path, is_review = pathlib.Path, command != "agree"
    parser = argparse.ArgumentParser(prog=f"python -m stepcot_jax.annotate {command}", description=description)
    if command == "review-in":
        parser.add_argument("form", type=path, metavar="FORM.csv")
        parser.add_argument("--reviewer", required=True, metavar="NAME", help="kept in the records")
    parser.add_argument("annotators", type=path, nargs="+", metavar="A", help="folder with data.json, or such a file")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="of the annotators; default the folders' names")
    if is_review:
        parser.add_argument("--all", action="store_true", help="all cases, not only disagreements")
    parser.add_argument("--out", type=path, required=is_review, metavar=metavar, help=written)
    return parser


def _make_endpoint(options: argparse.Namespace, model: str, base_url: str, key_variable: str) -> Endpoint:
    omitted: dict[str, Any] = dict.fromkeys(options.omit)
    return Endpoint(
        model,
        base_url,
        key_variable,
        **{"temperature": options.temperature, "seed": options.seed, **omitted},
        max_answer_tokens=options.max_answer_tokens,
        timeout=options.timeout,
        num_attempts=options.attempts,
    )


def _read_voter(options: argparse.Namespace, text: str) -> Endpoint:
    model, *changes = text.split(",")
    fields = dict(change.partition("=")[::2] for change in changes)
    unknown = [each for each in changes if "=" not in each or each.partition("=")[0] not in _VOTER_FIELDS]
    if unknown:
        expected = f"expected NAME[,{'=...][,'.join(_VOTER_FIELDS)}=...]"
        raise BadInput(f"--voter {model[:80]!r}: {unknown[0][:80]!r} is not a setting; {expected}")
    base_url = fields.get("base-url", options.base_url)
    try:
        voter = _make_endpoint(options, model, base_url, fields.get("key-variable", ""))
        inherits = "key-variable" not in fields and voter.origin == Endpoint("-", options.base_url).origin
    except BadInput as error:
        raise BadInput(f"--voter {model[:80]!r}: {error}") from None
    # The annotator's key goes to voters of the same origin only, unless key-variable= names it.
    return dataclasses.replace(voter, key_variable=options.key_variable) if inherits else voter


if __name__ == "__main__":
    run_tool(main)
