"""Review forms: a CSV to fill in any spreadsheet, and the corrected records made from it.

A form has one row per step and case. The reviewer writes "ok" or the right answer under `review`, and a reason for each
change under `comment`. All other cells must come back unchanged, except for white space. "ok" leaves an uncertain
answer uncertain; the same answer written out makes it certain.
"""

import dataclasses
import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from stepcot_jax.annotate.agreement import find_disagreements, show_answer
from stepcot_jax.annotate.alignment import Aligned, Unit
from stepcot_jax.annotate.annotation import CannotAnnotate
from stepcot_jax.annotate.annotation_checks import check_consistency
from stepcot_jax.annotate.output import bring_images
from stepcot_jax.annotate.spreadsheets import encode_rows, is_same_cell, read_rows
from stepcot_jax.chain import NOT_ANNOTATED, Step
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.records import write_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, write_whole
from stepcot_jax.record import Record

CONFIRMED = "ok"

_TO_FILL = ["review", "comment"]
_REVIEW = re.compile(r"review (\d{1,6}) by")
_NUM_SHOWN = 60


@dataclasses.dataclass(frozen=True)
class _Verdict:
    """The right label of one answer, whether it stays uncertain, and the comment."""

    label: int
    is_uncertain: bool
    comment: str


def write_review(path: Path, aligned: Aligned, *, every: bool) -> int:
    """Write a form to review the first annotator's answers, with those of the others; return the number of cases.

    It has the disagreements, or with `every` and for one annotator all cases.
    """
    if path.exists():
        raise BadInput(f"{path} exists; a filled form must not be overwritten")
    units = _choose(aligned, every=every)
    rows = ([*row, "", ""] for unit in _fixed_rows(aligned, units) for row in unit)
    make_workdir(path.parent)
    write_whole(path, encode_rows([_name_columns(aligned), *rows]))
    return len(units)


def apply_review(form: Path, aligned: Aligned, *, every: bool, reviewer: str, folder: Path) -> tuple[int, int, int]:
    """Write the first annotator's records with the corrections of a filled form into a folder without records.

    `aligned` and `every` are as when the form was written; the reviewer's name is kept in the records.

    Returns:
      The numbers of cases reviewed, of answers changed, and of cases with a change.
    """
    if not reviewer.strip() or not reviewer.isprintable() or len(reviewer) > 200:
        raise BadInput(f"--reviewer: {reviewer[:_NUM_SHOWN]!r} is not a name on one line")
    if (folder / data_json.FILE_NAME).exists():
        raise BadInput(f"{folder / data_json.FILE_NAME} exists; choose another folder")
    units = _choose(aligned, every=every)
    verdicts = _read_form(form, aligned, units)
    first = aligned.collections[0]
    by_image = {image: said for unit, said in zip(units, verdicts, strict=True) for image in unit.image_paths}
    cases = [
        _correct(case, by_image[case.image], first.chain.steps, reviewer) if case.image in by_image else case
        for case in first.cases
    ]
    make_workdir(folder)
    bring_images(cases, source=first.root, folder=folder)
    write_records(folder, chain=first.chain, cases=cases)
    changed = [
        sum(_differs(verdict, unit.cases[0], place) for place, verdict in enumerate(said))
        for unit, said in zip(units, verdicts, strict=True)
    ]
    return len(units), sum(changed), sum(map(bool, changed))


def _choose(aligned: Aligned, *, every: bool) -> Sequence[Unit]:
    units = aligned.units if every or len(aligned.names) == 1 else find_disagreements(aligned)
    if not units:
        raise BadInput(f"{', '.join(aligned.names)} do not disagree; pass --all to review all cases")
    return units


def _name_columns(aligned: Aligned) -> list[str]:
    answers = [f"answer of {name}" for name in aligned.names]
    return ["case", "image", "step", "question", "options", "report", "reasoning", *answers, *_TO_FILL]


def _fixed_rows(aligned: Aligned, units: Sequence[Unit]) -> Iterator[list[list[str]]]:
    """Yield the rows of each case, without the cells to fill."""
    for number, unit in enumerate(units, start=1):
        yield [
            [
                str(number),
                unit.image_paths[0],
                f"Step {place + 1}",
                step.question,
                "; ".join(step.lettered_options),
                unit.cases[0].report if place == 0 else "",  # shown once per case
                unit.cases[0].reasoning[place],
                *(show_answer(step, case, place) for case in unit.cases),
            ]
            for place, step in enumerate(aligned.chain.steps)
        ]


def _read_form(path: Path, aligned: Aligned, units: Sequence[Unit]) -> list[list[_Verdict]]:
    """Return the verdicts of each case and step; a case that was not corrected may contradict itself."""
    names, rows = _name_columns(aligned), read_rows(path)
    header = next(rows, [])
    if len(header) != len(names) or not all(map(is_same_cell, header, names)):
        shown = [name[:_NUM_SHOWN] for name in header][:20]
        raise BadInput(f"{path}, line 1: the columns {shown} are not those of the form: {names}")
    verdicts: list[list[_Verdict]] = []
    for unit, fixed in zip(units, _fixed_rows(aligned, units), strict=True):
        verdicts.append([])
        before = unit.cases[0]
        case = f"{path}, case {len(verdicts)} ({unit.image_paths[0][:_NUM_SHOWN]})"
        for place, (step, expected) in enumerate(zip(aligned.chain.steps, fixed, strict=True)):
            row, where = next(rows, None), f"{case}, {expected[2]}"
            if row is None:
                raise BadInput(f"{where}: the row is missing; expected all rows of the form in order")
            if len(row) != len(header):
                raise BadInput(f"{where}: {len(row)} cells; expected {len(header)}")
            for name, found, cell in zip(names, row, expected, strict=False):
                if not is_same_cell(found, cell):
                    raise BadInput(f"{where}, column {name!r} was altered; restore it")
            verdicts[-1].append(_read_verdict(row[-2], row[-1], step=step, case=before, place=place, where=where))
        labels = tuple(verdict.label for verdict in verdicts[-1])
        try:
            if labels != before.stated:
                check_consistency(labels, chain=aligned.chain)
        except CannotAnnotate as error:
            raise BadInput(f"{case}: {error.detail}; expected consistent answers") from None
    if next(rows, None) is not None:
        raise BadInput(f"{path} has rows after the last case; remove them")
    return verdicts


def _read_verdict(review: str, comment: str, *, step: Step, case: Record, place: int, where: str) -> _Verdict:
    review, comment, current = review.strip(), " ".join(comment.split()), case.stated[place]
    if review.casefold() == CONFIRMED:
        return _Verdict(current, current != case.answers[place], comment)
    try:
        label = step.read_answer(review)
    except BadInput:
        label = NOT_ANNOTATED
    if label == NOT_ANNOTATED:
        accepted = ", ".join([repr(CONFIRMED), *step.lettered_options])
        if not review:
            raise BadInput(f"{where}, column 'review' is required (one of {accepted})")
        raise BadInput(f"{where}, column 'review': {review[:_NUM_SHOWN]!r} is not one of {accepted}")
    if label != current and not comment:
        raise BadInput(f"{where}, column 'comment' is required (why the answer changes)")
    return _Verdict(label, False, comment)


def _differs(verdict: _Verdict, case: Record, place: int) -> bool:
    """Whether a verdict changes the answer of a case at a step, or makes it certain."""
    return (verdict.label, verdict.is_uncertain) != (case.stated[place], case.stated[place] != case.answers[place])


def _correct(case: Record, verdicts: Sequence[_Verdict], steps: Sequence[Step], reviewer: str) -> Record:
    """Return the reviewed case, with every change in its provenance."""
    said: Mapping[str, str] = dict(case.provenance)
    numbers = [int(match[1]) for name in said if (match := _REVIEW.fullmatch(name))]
    review = f"review {max(numbers, default=0) + 1}"
    added = {f"{review} by": reviewer, f"{review} date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    reasoning = list(case.reasoning)
    for place, (step, now, verdict) in enumerate(zip(steps, case.stated, verdicts, strict=True)):
        name, doubt = f"{review} step {place + 1}", "" if now == case.answers[place] else " (uncertain)"
        if verdict.label != now:
            change = f"{step.written(now)}{doubt} -> {step.written(verdict.label)}"
            added |= {name: change, f"{name} was": reasoning[place]}
            reasoning[place] = verdict.comment
            continue
        if _differs(verdict, case, place):
            added[name] = f"{step.written(now)}{doubt} -> {step.written(now)}"
        if verdict.comment:
            added[f"{name} comment"] = verdict.comment
    reviewed = msgspec.structs.replace(
        case, reasoning=tuple(reasoning), provenance=dict(sorted({**said, **added}.items()))
    )
    stated, doubts = zip(*((verdict.label, verdict.is_uncertain) for verdict in verdicts), strict=True)
    return reviewed.with_stated(stated, doubts)
