"""Review forms: a CSV to fill in any spreadsheet, and the corrected records made from it.

A form has one row per step and case. The reviewer writes "ok" or the right answer under `review`, and a reason for each
change under `comment`. All other cells must come back unchanged, except for white space.
"""

import dataclasses
import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from stepcot_jax.annotate.alignment import Aligned, Unit
from stepcot_jax.annotate.annotation import CannotAnnotate
from stepcot_jax.annotate.annotation_checks import check_consistency
from stepcot_jax.annotate.disagreements import find_disagreements, show_answer
from stepcot_jax.annotate.output import bring_images
from stepcot_jax.annotate.spreadsheets import encode_rows, is_same_cell, read_rows
from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.records import write_records
from stepcot_jax.host.errors import BadInput, make_workdir
from stepcot_jax.host.files import write_whole

CONFIRMED = "ok"

_TO_FILL = ("review", "comment")
_REVIEW = re.compile(r"review (\d{1,6}) by")
_NUM_SHOWN = 60


@dataclasses.dataclass(frozen=True)
class ReviewCounts:
    """Cases reviewed, answers changed, and cases with a change."""

    cases: int
    answers: int
    corrected: int


@dataclasses.dataclass(frozen=True)
class _Verdict:
    """The right label of one answer, None if confirmed, and the comment."""

    label: int | None
    comment: str


def write_review(path: Path, aligned: Aligned, *, every: bool) -> int:
    """Write a form to review the first annotator's answers, with those of the others for comparison.

    Args:
      path: a new file.
      aligned: the annotators.
      every: whether to include all cases instead of disagreements; always so for one annotator.

    Returns:
      The number of cases in the form.

    Raises:
      BadInput: the file exists or cannot be written, or there is nothing to review.
    """
    if path.exists():
        raise BadInput(f"{path} exists; a filled form must not be overwritten")
    units = _choose(aligned, every=every)
    rows = ([*row, *("" for _ in _TO_FILL)] for row in _fixed_rows(aligned, units))
    make_workdir(path.parent)
    write_whole(path, encode_rows([[*_fixed_names(aligned), *_TO_FILL], *rows]))
    return len(units)


def apply_review(form: Path, aligned: Aligned, *, every: bool, reviewer: str, folder: Path) -> ReviewCounts:
    """Write the first annotator's records with the corrections of a filled form.

    Args:
      form: the filled form.
      aligned: the annotators, as when the form was written.
      every: as when the form was written.
      reviewer: name of the reviewer, kept in the records.
      folder: receives the records; must have none.

    Raises:
      BadInput: the form is incomplete or altered (names row and column), a corrected case contradicts itself, or the
        folder has records.
    """
    if not reviewer.strip() or not reviewer.isprintable() or len(reviewer) > 200:
        raise BadInput(f"--reviewer: {reviewer[:_NUM_SHOWN]!r} is not a name on one line")
    if (folder / data_json.FILE_NAME).exists():
        raise BadInput(f"{folder / data_json.FILE_NAME} exists; choose another folder")
    units = _choose(aligned, every=every)
    verdicts = _read_form(form, aligned, units)
    num_steps = aligned.chain.num_steps
    by_image: dict[str, Sequence[_Verdict]] = {}
    for place, unit in enumerate(units):
        for image in unit.image_paths:
            by_image[image] = verdicts[place * num_steps : (place + 1) * num_steps]
    first = aligned.collections[0]
    cases = [
        _correct(case, by_image[case.image_path], first.chain.steps, reviewer) if case.image_path in by_image else case
        for case in first.cases
    ]
    _require_consistency(form, units, verdicts, aligned.chain)
    make_workdir(folder)
    bring_images(cases, source=first.root, folder=folder)
    write_records(folder, chain=first.chain, cases=cases)
    changed = [number // num_steps for number, verdict in enumerate(verdicts) if verdict.label is not None]
    return ReviewCounts(len(units), len(changed), len(set(changed)))


def _choose(aligned: Aligned, *, every: bool) -> Sequence[Unit]:
    units = aligned.units if every or len(aligned.names) == 1 else find_disagreements(aligned)
    if not units:
        raise BadInput(f"{', '.join(aligned.names)} do not disagree; pass --all to review all cases")
    return units


def _fixed_names(aligned: Aligned) -> list[str]:
    answers = [f"answer of {name}" for name in aligned.names]
    return ["case", "image", "step", "question", "options", "report", "reasoning", *answers]


def _fixed_rows(aligned: Aligned, units: Sequence[Unit]) -> Iterator[list[str]]:
    for number, unit in enumerate(units, start=1):
        for place, step in enumerate(aligned.chain.steps):
            yield [
                str(number),
                unit.image_paths[0],
                f"Step {place + 1}",
                step.question,
                "; ".join(step.lettered_options),
                unit.cases[0].report if place == 0 else "",  # shown once per case
                unit.cases[0].reasoning[place],
                *(show_answer(step, case.labels[place]) for case in unit.cases),
            ]


def _read_form(path: Path, aligned: Aligned, units: Sequence[Unit]) -> list[_Verdict]:
    names = _fixed_names(aligned)
    rows = read_rows(path)
    header = next(rows, [])
    if len(header) != len(names) + 2 or not all(map(is_same_cell, header, [*names, *_TO_FILL])):
        raise BadInput(
            f"{path}, line 1: the columns {[name[:_NUM_SHOWN] for name in header][:20]} are not those of the form: "
            f"{[*names, *_TO_FILL]}"
        )
    verdicts = []
    steps = aligned.chain.steps
    for number, expected in enumerate(_fixed_rows(aligned, units)):
        row = next(rows, None)
        where = f"{path}, case {expected[0]} ({expected[1][:_NUM_SHOWN]}), {expected[2]}"
        if row is None:
            raise BadInput(f"{where}: the row is missing; expected all rows of the form in order")
        if len(row) != len(header):
            raise BadInput(f"{where}: {len(row)} cells; expected {len(header)}")
        for name, found, cell in zip(names, row, expected, strict=False):
            if not is_same_cell(found, cell):
                raise BadInput(f"{where}, column {name!r} was altered; restore it")
        current = units[number // len(steps)].cases[0].labels[number % len(steps)]
        verdicts.append(_read_verdict(row[-2], row[-1], step=steps[number % len(steps)], current=current, where=where))
    if any(any(cell.strip() for cell in row) for row in rows):
        raise BadInput(f"{path} has rows after the last case; remove them")
    return verdicts


def _read_verdict(review: str, comment: str, *, step: Step, current: int, where: str) -> _Verdict:
    comment = " ".join(comment.split())
    if review.strip().casefold() == CONFIRMED:
        return _Verdict(None, comment)
    try:
        label = step.read_answer(review.strip())
    except BadInput:
        label = NOT_ANNOTATED
    if label == NOT_ANNOTATED:
        accepted = ", ".join([repr(CONFIRMED), *step.lettered_options])
        if not review.strip():
            raise BadInput(f"{where}, column 'review' is required (one of {accepted})")
        raise BadInput(f"{where}, column 'review': {review.strip()[:_NUM_SHOWN]!r} is not one of {accepted}")
    if label == current:
        return _Verdict(None, comment)
    if not comment:
        raise BadInput(f"{where}, column 'comment' is required (why the answer changes)")
    return _Verdict(label, comment)


def _require_consistency(form: Path, units: Sequence[Unit], verdicts: Sequence[_Verdict], chain: Chain) -> None:
    """Refuse cases corrected into a contradiction; uncorrected cases stay as annotated."""
    for place, unit in enumerate(units):
        said = verdicts[place * chain.num_steps : (place + 1) * chain.num_steps]
        if all(verdict.label is None for verdict in said):
            continue
        before = unit.cases[0].labels
        labels = [old if new.label is None else new.label for old, new in zip(before, said, strict=True)]
        try:
            check_consistency(labels, chain=chain)
        except CannotAnnotate as error:
            where = f"{form}, case {place + 1} ({unit.image_paths[0][:_NUM_SHOWN]})"
            raise BadInput(f"{where}: {error.detail}; expected consistent answers") from None


def _correct(case: Case, verdicts: Sequence[_Verdict], steps: Sequence[Step], reviewer: str) -> Case:
    """Return the reviewed case, with every change in its provenance."""
    said: Mapping[str, str] = dict(case.provenance)
    numbers = [int(match[1]) for name in said if (match := _REVIEW.fullmatch(name))]
    review = f"review {max(numbers, default=0) + 1}"
    added = {f"{review} by": reviewer, f"{review} date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    labels, reasoning = list(case.labels), list(case.reasoning)
    for place, (step, verdict) in enumerate(zip(steps, verdicts, strict=True)):
        name = f"{review} step {place + 1}"
        if verdict.label is not None:
            added[name] = f"{step.written(case.labels[place])} -> {step.written(verdict.label)}"
            added[f"{name} was"] = case.reasoning[place]
            labels[place], reasoning[place] = verdict.label, verdict.comment
        elif verdict.comment:
            added[f"{name} comment"] = verdict.comment
    provenance = tuple(sorted({**said, **added}.items()))
    return dataclasses.replace(case, labels=tuple(labels), reasoning=tuple(reasoning), provenance=provenance)
