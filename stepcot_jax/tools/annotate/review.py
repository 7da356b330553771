"""Compare annotators and review records: the commands `agree`, `review-out` and `review-in`."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepcot_jax.host.errors import BadInput
from stepcot_jax.tools.annotate.parsers import comparison_parser, find_input

if TYPE_CHECKING:
    from stepcot_jax.annotate.alignment import Aligned


def run_comparison(command: str, arguments: Sequence[str]) -> None:
    """Run one of `COMPARISONS` on chains or on reasoning records, as its inputs are."""
    options = comparison_parser(command).parse_args(arguments)
    options.annotators = [find_input(each, "A") for each in options.annotators]
    if _handle_records(options, command):
        return
    from stepcot_jax.annotate.alignment import align

    COMPARISONS[command](options, align(options.annotators, names=options.names))


def _agree(options: argparse.Namespace, aligned: "Aligned") -> None:
    """Compare annotators."""
    from stepcot_jax.annotate.agreement import as_markdown, compare, write_agreement
    from stepcot_jax.host.outputs import writing_folder

    comparison = compare(aligned)
    print(as_markdown(comparison), end="")
    for name, num_missing in zip(aligned.names, aligned.num_missing, strict=True):
        if num_missing:
            print(f"{name} lacks {num_missing} records that another has; these are not compared")
    if options.out is not None:
        with writing_folder(options.out) as out:
            write_agreement(out.path, aligned, comparison)
        print(f"side by side: {out.show(out.path / 'disagreements.html')}")


def _write_form(options: argparse.Namespace, aligned: "Aligned") -> None:
    """Write a form for a reviewer."""
    from stepcot_jax.annotate.review import write_review
    from stepcot_jax.host.outputs import writing_file

    with writing_file(options.out) as out:
        num_cases = write_review(out.path, aligned, every=options.all)
    print(f"{num_cases} cases to review in {out.name}")


def _read_form(options: argparse.Namespace, aligned: "Aligned") -> None:
    """Apply a reviewer's corrections."""
    from stepcot_jax.annotate.review import apply_review
    from stepcot_jax.host.outputs import resuming_folder

    form = find_input(options.form, "FORM.csv")
    with resuming_folder(options.out) as out:
        cases, answers, corrected = apply_review(
            form, aligned, every=options.all, reviewer=options.reviewer, folder=out.path
        )
    print(f"{cases} cases reviewed, {answers} answers corrected in {corrected} of them")
    print(f"{len(aligned.collections[0].cases)} records in {out.name}")


def _handle_records(options: argparse.Namespace, command: str) -> bool:
    """Compare or review reasoning records, if these are given; return whether they are."""
    from stepcot_jax.annotate.vqa.vqa_review import apply_record_review, write_record_review
    from stepcot_jax.data.questions.record_files import holds_records
    from stepcot_jax.host.outputs import resuming_folder, writing_file

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
        with writing_file(options.out) as out:
            number = write_record_review(out.path, source, **chosen)
        print(f"{number} records to review in {out.name}")
        return True
    form = find_input(options.form, "FORM.csv")
    with resuming_folder(options.out) as out:
        reviewed, rejected, written = apply_record_review(
            form, source, **chosen, reviewer=options.reviewer, folder=out.path
        )
    print(f"{reviewed} records reviewed, {rejected} rejected")
    print(f"{written} records in {out.name}")
    return True


def _agree_on_records(options: argparse.Namespace) -> None:
    from stepcot_jax.annotate.agreement import show_figure
    from stepcot_jax.annotate.vqa.vqa_review import compare_records, show_agreement, write_record_agreement
    from stepcot_jax.host.outputs import writing_folder

    if len(options.annotators) != 2:
        raise BadInput(f"agree on reasoning records requires two annotators; got {len(options.annotators)}")
    rows, num_items, kappa = compare_records(*options.annotators)
    print(show_agreement(rows), end="")
    print(f"kept or set aside, {num_items} items: Cohen's kappa {show_figure(kappa)}")
    if options.out is not None:
        names = options.names or [path.resolve().name for path in options.annotators]
        with writing_folder(options.out) as out:
            write_record_agreement(out.path, names, rows, kappa)


COMPARISONS = {"agree": _agree, "review-out": _write_form, "review-in": _read_form}
"""Commands by name."""
