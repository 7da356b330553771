"""Write reports from a chain's answers or from replies, and score them beside a constant normal report."""

import argparse
import collections
import json
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from stepcot_jax.data.delimited import read_columns
from stepcot_jax.data.questions.record_files import VqaCollection
from stepcot_jax.data.questions.reply_files import read_replies
from stepcot_jax.data.questions.written_reports import (
    NORMAL_REPORT,
    WrittenReport,
    write_chain_report,
    write_reply_report,
)
from stepcot_jax.data.records.records import Collection
from stepcot_jax.evaluation.report_scores import BLEU, ROUGE, score_reports
from stepcot_jax.evaluation.statistics import as_plain
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, write_whole
from stepcot_jax.pages.sheets import Table, heads
from stepcot_jax.record import Record
from stepcot_jax.tools.evaluate_replies.scored_replies import to_text

NORMAL = "constant normal report"


class Scored(NamedTuple):
    """A report that was written about an image, and the radiologist's."""

    image: str
    patient: str
    written: WrittenReport
    reference: str


def report_replies(
    collection: VqaCollection, chosen: Sequence[Record], path: pathlib.Path, *, dialect: str
) -> list[Scored]:
    """Return a report for each image of some records from the replies about it."""
    known = {record.id for record in collection.records}
    replies = read_replies(path, name="", chosen={record.id for record in chosen}, known=known).replies
    of_image: dict[str, list[Record]] = collections.defaultdict(list)
    for record in chosen:
        of_image[record.image].append(record)
    return [
        Scored(image, asked[0].patient, write_reply_report(asked, replies, dialect), asked[0].report)
        for image, asked in of_image.items()
    ]


def report_sheet(data: Collection, path: pathlib.Path) -> list[Scored]:
    """Return a report for each row of a sheet of answers, with columns "image" and those of steps."""
    cases, scored = {case.image: case for case in data.cases}, []
    for row, (image, *answers), problem in read_columns(path, ("image", *(step.name for step in data.chain.steps))):
        if not any(answers) and not problem:
            continue  # an image that could not be read
        parts = pathlib.PurePath(image).parts  # of a path that may begin elsewhere
        case = next(filter(None, (cases.get("/".join(parts[start:])) for start in range(len(parts)))), None)
        try:
            if problem or case is None:
                raise BadInput(problem or f"image: {image[:80]!r} is no image of {data.root}")
            labels = [step.read_answer(answer) for step, answer in zip(data.chain.steps, answers, strict=True)]
        except BadInput as error:
            raise BadInput(f"{path}: row {row.number}: {error}") from None
        scored.append(Scored(case.image, case.patient, write_chain_report(data.chain, labels), case.report))
    return scored


def score_written(scored: Sequence[Scored], options: argparse.Namespace, *, source: pathlib.Path) -> str:
    """Write the reports and their scores into a folder, and return the table as text."""
    with_reference = [each for each in scored if each.reference.strip()]
    if not with_reference:
        raise BadInput(f"{source}: none of {len(scored)} images has a report; expected radiologists' reports")
    references, patients = [each.reference for each in with_reference], [each.patient for each in with_reference]
    texts = {"written": [str(each.written) for each in with_reference], NORMAL: [str(NORMAL_REPORT)] * len(references)}
    how = {"num_resamples": options.num_resamples, "seed": options.seed}
    figures = {name: score_reports(reports, references, patients, **how) for name, reports in texts.items()}
    notes = [
        f"{len(references)} reports of {len(set(patients))} patients; {len(scored) - len(references)} images without "
        "one do not count. 95 % intervals by patient.",
        "Words in lower case without punctuation; BLEU-4 of all reports together, not smoothed; ROUGE-L as mean F1.",
    ]
    rows = [(name, of_name[BLEU], of_name[ROUGE]) for name, of_name in figures.items()]
    head = heads("reports", f"%{BLEU}", f"%{ROUGE}")
    table = Table("reports", "Reports against the radiologists'", head, tuple(rows), tuple(notes))
    make_workdir(options.out)
    lines = [{"image": each.image, "report": str(each.written), "reference": each.reference} for each in with_reference]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_whole(options.out / "reports.jsonl", text.encode("utf-8", "backslashreplace"))
    write_whole(options.out / "reports.json", json.dumps(as_plain(figures), indent=2).encode())
    return to_text(table)
