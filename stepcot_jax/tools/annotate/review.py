"""Compare annotators and review records: the commands `agree`, `review-out` and `review-in`."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.tools.annotate.parsers import comparison_parser

if TYPE_CHECKING:
    from stepcot_jax.annotate.agreement import Aligned


def run_comparison(command: str, arguments: Sequence[str]) -> None:
    """Run one of `COMPARISONS` on chains or on reasoning records, whichever the inputs hold."""
    options = comparison_parser(command).parse_args(arguments)
    options.annotators = [find_path(annotator, "A") for annotator in options.annotators]
    if _handle_records(options, command):
        return
    from stepcot_jax.annotate.agreement import align

    COMPARISONS[command](options, align(options.annotators, names=options.names))


def _agree(options: argparse.Namespace, aligned: "Aligned") -> None:
    from stepcot_jax.annotate.agreement import as_markdown, compare, write_agreement

    comparison = compare(aligned)
    print(as_markdown(comparison), end="")
    for name, num_missing in zip(aligned.names, aligned.num_missing, strict=True):
        if num_missing:
            print(f"{name} lacks {num_missing} records that another has; these are not compared")
    if options.out is not None:
        write_agreement(options.out, aligned, comparison)
        print(f"side by side: {options.out / 'disagreements.html'}")


def _write_form(options: argparse.Namespace, aligned: "Aligned") -> None:
    from stepcot_jax.annotate.review import write_review

    num_cases = write_review(options.out, aligned, every=options.all)
    print(f"{num_cases} cases to review in {options.out}")


def _read_form(options: argparse.Namespace, aligned: "Aligned") -> None:
    from stepcot_jax.annotate.review import apply_review

    form = find_path(options.form, "FORM.csv")
    cases, answers, corrected = apply_review(
        form, aligned, every=options.all, reviewer=options.reviewer, folder=options.out
    )
    print(f"{cases} cases reviewed, {answers} answers corrected in {corrected} of them")
    print(f"{len(aligned.collections[0].cases)} records in {options.out}")


def _handle_records(options: argparse.Namespace, command: str) -> bool:
    """Compare or review reasoning records, if these are given; return whether they are."""
    from stepcot_jax.annotate.review import apply_record_review, write_record_review
    from stepcot_jax.data.questions.record_files import holds_records

    source, *others = options.annotators
    if not holds_records(source):
        return False
    if command == "agree":
        _agree_on_records(options)
        return True
    if others or options.all or options.names:
        raise BadInput(f"{source} holds reasoning records; expected one folder, without --all and --names")
    chosen = {"sample": options.sample, "seed": options.seed}
    if command == "review-out":
        number = write_record_review(options.out, source, **chosen)
        print(f"{number} records to review in {options.out}")
        return True
    form = find_path(options.form, "FORM.csv")
    reviewed, rejected, written = apply_record_review(
        form, source, **chosen, reviewer=options.reviewer, folder=options.out
    )
    print(f"{reviewed} records reviewed, {rejected} rejected")
    print(f"{written} records in {options.out}")
    return True


def _agree_on_records(options: argparse.Namespace) -> None:
    from stepcot_jax.annotate.agreement import compare_records, show_agreement, show_figure, write_record_agreement

    if len(options.annotators) != 2:
        raise BadInput(f"agree on reasoning records requires two annotators; got {len(options.annotators)}")
    rows, num_items, kappa = compare_records(*options.annotators)
    print(show_agreement(rows), end="")
    print(f"kept or set aside, {num_items} items: Cohen's kappa {show_figure(kappa)}")
    if options.out is not None:
        names = options.names or [path.resolve().name for path in options.annotators]
        write_record_agreement(options.out, names, rows, kappa)


COMPARISONS = {"agree": _agree, "review-out": _write_form, "review-in": _read_form}
"""Commands by name."""
