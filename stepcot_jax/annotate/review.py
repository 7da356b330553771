"""Review forms: a CSV to fill in any spreadsheet with "ok", the right answer or "reject" and comments, and its result.

"ok" leaves an uncertain answer uncertain; the same answer written out makes it certain. Other cells must not change.
"""

import collections
import dataclasses
import datetime
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from stepcot_jax import __version__
from stepcot_jax.annotate.agreement import Aligned, Unit, find_disagreements, show_answer
from stepcot_jax.annotate.annotation import Aside, CannotAnnotate, Reason
from stepcot_jax.annotate.checks import check_consistency
from stepcot_jax.annotate.output import SET_ASIDE_NAME, bring_images
from stepcot_jax.chain import NOT_ANNOTATED, Step
from stepcot_jax.data.delimited import encode_rows, is_same_cell, read_sheet_rows
from stepcot_jax.data.questions.record_files import FILE_NAME, VqaCollection, read_vqa_records, write_vqa_records
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.records import write_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, write_whole
from stepcot_jax.reasoning.replies import write_answer
from stepcot_jax.record import STAGE_NAMES, Record

CONFIRMED = "ok"
REJECTED = "reject"

_TO_FILL = ["review", "comment"]
_RECORD_COLUMNS = ["number", "id", "image", "kind", "question", "choices", "answer", "boxes", "reasoning", *_TO_FILL]
_REVIEW = re.compile(r"review (\d{1,6}) by")
_NUM_SHOWN = 60


def _write_form(path: Path, columns: Sequence[str], rows: Iterable[list[str]]) -> None:
    if path.exists():
        raise BadInput(f"{path} exists; a filled form must not be overwritten")
    make_workdir(path.parent)
    write_whole(path, encode_rows([columns, *([*row, "", ""] for row in rows)]))


def _read_form(
    path: Path, columns: Sequence[str], fixed: Iterable[tuple[str, list[str]]], unit: str
) -> Iterator[tuple[str, str, str]]:
    """Yield the position of each row, its review and its comment; `fixed` are the positions and original cells."""
    rows = read_sheet_rows(path)
    header = next(rows, [])
    if len(header) != len(columns) or not all(map(is_same_cell, header, columns)):
        shown = [name[:_NUM_SHOWN] for name in header][:20]
        raise BadInput(f"{path}, line 1: the columns {shown} are not those of the form: {list(columns)}")
    for where, cells in fixed:
        row = next(rows, None)
        if row is None:
            raise BadInput(f"{where}: the row is missing; expected all rows of the form in order")
        if len(row) != len(columns):
            raise BadInput(f"{where}: {len(row)} cells; expected {len(columns)}")
        if columns[1] == "id" and not is_same_cell(row[1], cells[1]):
            other = f"row {row[0].strip()[:_NUM_SHOWN]!r} with the id {row[1].strip()[:_NUM_SHOWN]!r}"
            raise BadInput(
                f"{where}: the row is missing, moved or has another id; found {other}; restore all rows in order"
            )
        for name, filled, cell in zip(columns, row, cells, strict=False):
            if not is_same_cell(filled, cell):
                raise BadInput(f"{where}, column {name!r} was altered; restore it")
        yield where, row[-2].strip(), " ".join(row[-1].split())
    if next(rows, None) is not None:
        raise BadInput(f"{path} has rows after the last {unit}; remove them")


def _check_review(reviewer: str, result: Path) -> None:
    if not reviewer.strip() or not reviewer.isprintable() or len(reviewer) > 200:
        raise BadInput(f"--reviewer: {reviewer[:_NUM_SHOWN]!r} is not a name on one line")
    if result.exists():
        raise BadInput(f"{result} exists; choose another folder")


def _name_review(provenance: Mapping[str, str], reviewer: str) -> tuple[str, dict[str, str]]:
    numbers = [int(match[1]) for name in provenance if (match := _REVIEW.fullmatch(name))]
    review = f"review {max(numbers, default=0) + 1}"
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return review, {f"{review} by": reviewer, f"{review} date": today, f"{review} version": __version__}


# Chains.


@dataclasses.dataclass(frozen=True)
class _Verdict:
    """The right label of one answer, whether it stays uncertain, and the comment."""

    label: int
    is_uncertain: bool
    comment: str


def write_review(path: Path, aligned: Aligned, *, every: bool) -> int:
    """Write a form to review the first annotator's answers to disputed (or all) cases; return the number of cases."""
    units = _choose(aligned, every=every)
    _write_form(path, _name_columns(aligned), (row for _, row in _fixed_rows(path, aligned, units)))
    return len(units)


def apply_review(form: Path, aligned: Aligned, *, every: bool, reviewer: str, folder: Path) -> tuple[int, int, int]:
    """Write the records as corrected by a filled form; return the numbers of cases, changed answers, changed cases."""
    _check_review(reviewer, folder / data_json.FILE_NAME)
    units = _choose(aligned, every=every)
    verdicts = _read_verdicts(form, aligned, units)
    first = aligned.collections[0]
    by_image = {image: steps for unit, steps in zip(units, verdicts, strict=True) for image in unit.image_paths}
    cases = [
        _correct(case, by_image[case.image], first.chain.steps, reviewer) if case.image in by_image else case
        for case in first.cases
    ]
    make_workdir(folder)
    bring_images(cases, source=first.root, folder=folder)
    write_records(folder, chain=first.chain, cases=cases)
    changed = [
        sum(_differs(verdict, unit.cases[0], index) for index, verdict in enumerate(steps))
        for unit, steps in zip(units, verdicts, strict=True)
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


def _fixed_rows(path: Path, aligned: Aligned, units: Sequence[Unit]) -> Iterator[tuple[str, list[str]]]:
    """Yield the position in the form and the cells of each row, without those to fill."""
    for number, unit in enumerate(units, start=1):
        for index, step in enumerate(aligned.chain.steps):
            name = f"Step {index + 1}"
            yield (
                f"{path}, case {number} ({unit.image_paths[0][:_NUM_SHOWN]}), {name}",
                [
                    str(number),
                    unit.image_paths[0],
                    name,
                    step.question,
                    "; ".join(step.lettered_options),
                    unit.cases[0].report if index == 0 else "",  # shown once per case
                    unit.cases[0].reasoning[index],
                    *(show_answer(step, case, index) for case in unit.cases),
                ],
            )


def _read_verdicts(path: Path, aligned: Aligned, units: Sequence[Unit]) -> list[list[_Verdict]]:
    """Return the verdicts of each case and step; only corrected cases must be consistent."""
    cells = _read_form(path, _name_columns(aligned), _fixed_rows(path, aligned, units), "case")
    verdicts: list[list[_Verdict]] = []
    for unit in units:
        before, where = unit.cases[0], ""
        verdicts.append([])
        for index, (step, (where, review, comment)) in enumerate(
            zip(aligned.chain.steps, itertools.islice(cells, aligned.chain.num_steps), strict=True)
        ):
            verdicts[-1].append(_read_verdict(review, comment, step=step, case=before, index=index, where=where))
        labels = tuple(verdict.label for verdict in verdicts[-1])
        try:
            if labels != before.stated:
                check_consistency(labels, chain=aligned.chain)
        except CannotAnnotate as error:
            raise BadInput(f"{where.rpartition(',')[0]}: {error.detail}; expected consistent answers") from None
    next(cells, None)  # refuses further rows
    return verdicts


def _read_verdict(review: str, comment: str, *, step: Step, case: Record, index: int, where: str) -> _Verdict:
    current = case.stated[index]
    if review.casefold() == CONFIRMED:
        return _Verdict(current, current != case.answers[index], comment)
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


def _differs(verdict: _Verdict, case: Record, index: int) -> bool:
    """Return whether a verdict changes the answer of a case at a step, or makes it certain."""
    return (verdict.label, verdict.is_uncertain) != (case.stated[index], case.stated[index] != case.answers[index])


def _correct(case: Record, verdicts: Sequence[_Verdict], steps: Sequence[Step], reviewer: str) -> Record:
    """Return the reviewed case, with every change in its provenance."""
    review, added = _name_review(dict(case.provenance), reviewer)
    reasoning = list(case.reasoning)
    for index, (step, now, verdict) in enumerate(zip(steps, case.stated, verdicts, strict=True)):
        name, doubt = f"{review} step {index + 1}", "" if now == case.answers[index] else " (uncertain)"
        if verdict.label != now:
            change = f"{step.written(now)}{doubt} -> {step.written(verdict.label)}"
            added |= {name: change, f"{name} was": reasoning[index]}
            reasoning[index] = verdict.comment
            continue
        if _differs(verdict, case, index):
            added[name] = f"{step.written(now)}{doubt} -> {step.written(now)}"
        if verdict.comment:
            added[f"{name} comment"] = verdict.comment
    reviewed = msgspec.structs.replace(
        case, reasoning=tuple(reasoning), provenance=dict(sorted({**case.provenance, **added}.items()))
    )
    stated, doubts = zip(*((verdict.label, verdict.is_uncertain) for verdict in verdicts), strict=True)
    return reviewed.with_stated(stated, doubts)


# Reasoning records.


def write_record_review(path: Path, source: Path, *, sample: int, seed: int) -> int:
    """Write a form for a sample of each kind of question; return the number of records."""
    chosen = draw_sample(read_vqa_records(source).records, sample=sample, seed=seed)
    _write_form(path, _RECORD_COLUMNS, map(_record_row, range(1, len(chosen) + 1), chosen))
    return len(chosen)


def draw_sample(records: Sequence[Record], *, sample: int, seed: int) -> list[Record]:
    """Return at most `sample` records of each kind, chosen by a hash of seed and id, in the order of the file."""
    if sample < 1:
        raise BadInput(f"--sample: {sample} must be at least 1")
    by_kind = collections.defaultdict(list)
    for record in records:
        by_kind[record.kind].append((hashlib.sha256(f"{seed} {record.id}".encode()).digest(), record.id))
    chosen = {name for drawn in by_kind.values() for _, name in sorted(drawn)[:sample]}
    return [record for record in records if record.id in chosen]


def apply_record_review(
    form: Path, source: Path, *, sample: int, seed: int, reviewer: str, folder: Path
) -> tuple[int, int, int]:
    """Write the records without rejected ones; return the numbers of reviewed, rejected and written records."""
    _check_review(reviewer, folder / FILE_NAME)
    collection = read_vqa_records(source)
    chosen = draw_sample(collection.records, sample=sample, seed=seed)
    verdicts = _read_record_form(form, chosen)
    kept, rejected = _apply_verdicts(collection, verdicts, reviewer)
    if not kept:
        raise BadInput(f"{form}: all {len(collection.records)} records are rejected")
    make_workdir(folder)
    bring_images(kept, source=collection.root, folder=folder)
    write_whole(folder / SET_ASIDE_NAME, msgspec.json.Encoder().encode_lines(rejected))
    write_vqa_records(folder / FILE_NAME, kept)
    return len(chosen), len(rejected), len(kept)


def _apply_verdicts(
    collection: VqaCollection, verdicts: dict[str, tuple[bool, str]], reviewer: str
) -> tuple[list[Record], list[Aside]]:
    kept, rejected = [], []
    for record in collection.records:
        is_right, comment = verdicts.get(record.id, (True, ""))
        if not is_right:
            rejected.append(Aside(record.id, Reason.REJECTED, f"{reviewer}: {comment}"))
            continue
        if record.id in verdicts:
            review, added = _name_review(record.provenance, reviewer)
            added |= {f"{review} comment": comment} if comment else {}
            record = msgspec.structs.replace(record, provenance={**record.provenance, **added})
        kept.append(record)
    return kept, rejected


def _record_row(number: int, record: Record) -> list[str]:
    choices = "; ".join(f"{letter}. {choice}" for letter, choice in zip(record.letters, record.options, strict=True))
    boxes = "; ".join(f"{box.label} {list(box.corners)}" for box in record.references)
    stages = [getattr(record.stages, name) for name in STAGE_NAMES] if record.stages is not None else []
    reasoning = "\n".join(filter(None, [record.thinking, *stages]))
    return [
        str(number), record.id, record.image, record.kind, record.question, choices, write_answer(record), boxes,
        reasoning,
    ]  # fmt: skip


def _read_record_form(path: Path, chosen: Sequence[Record]) -> dict[str, tuple[bool, str]]:
    fixed = (
        (f"{path}, record {number} ({record.id[:_NUM_SHOWN]})", _record_row(number, record))
        for number, record in enumerate(chosen, start=1)
    )
    verdicts = {}
    for record, (where, written, comment) in zip(
        chosen, _read_form(path, _RECORD_COLUMNS, fixed, "record"), strict=True
    ):
        review = written.casefold()
        if review not in (CONFIRMED, REJECTED):
            problem = f" {written[:_NUM_SHOWN]!r} is not" if review else " is required,"
            raise BadInput(f"{where}, column 'review':{problem} one of {CONFIRMED!r}, {REJECTED!r}")
        if review == REJECTED and not comment:
            raise BadInput(f"{where}, column 'comment' is required (why the record is rejected)")
        verdicts[record.id] = (review == CONFIRMED, comment)
    return verdicts
