"""Tables of replies, and the section to look through them with the true and the predicted boxes over the pictures."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stepcot_jax.evaluation.replies import BASELINE, HEADED_FIGURES, Key, ReplyScore, Results
from stepcot_jax.evaluation.statistics import MIN_PATIENTS, is_difference
from stepcot_jax.host.machine import map_in_threads
from stepcot_jax.host.ranges import Interval
from stepcot_jax.pages.sheets import Column, Entry, Kind, Table, columns, show_entry
from stepcot_jax.pages.shell import SHARED, Section, name_unseen, read_part, render
from stepcot_jax.reasoning.endings import Unsaid
from stepcot_jax.record import STAGE_NAMES, Record

MOST_SHOWN = 1000  # Default for the most records on a page, whose pictures are within it

_LONGEST_SHOWN = 4000  # characters of a reply

_STAGES = (
    *((name, ("stage", name)) for name in STAGE_NAMES),
    *((f"{name}, steps", ("step_quality", name)) for name in ("description", "reasoning", "together")),
)
_RATED = tuple((name, ("rated", name)) for name in STAGE_NAMES)

_JUDGED = (("A", ("a_score", "mean"), "num_patients"), ("V", ("v_score", "all"), "num_boxed"))
_FEW = "too few patients for a verdict"
_PAIRED = ", in the same resamples of patients; replies that either was not scored on take no part."
_TEST = "p: exact McNemar test of all answers, which takes the questions of a patient as independent."
_CHECKED = (
    "Stages are checked against the records' facts, or labelled by the judge: descriptions are worth 1, 0.5 or 0, "
    "reasoning 1 or 0. Stages of replies that do not count are worth 0. This is our definition, after MiCEval."
)


def compare(difference: Interval, rival: str, of: str = "points") -> str:
    """Return in words whether a paired difference to a rival is shown."""
    verdict = (
        "not shown to beat" if not is_difference(difference) else "better than" if difference.value > 0 else "below"
    )
    return f"{verdict} {rival} ({show_entry(difference, Column('', 'points'))} {of})"


def judge(results: Results, baseline: Mapping[Key, Interval]) -> list[Section]:
    """Return the first section, if there is a rival: the first row against the baseline, the others against the first.

    `baseline`: its figures less those of the first row.
    """
    first = next(name for name in results.counts if name not in results.differences)
    turned = {
        key: Interval(*(0.0 - end for end in (entry.value, entry.high, entry.low))) for key, entry in baseline.items()
    }
    rows = {first: (BASELINE, turned), **{name: (first, row) for name, row in results.differences.items()}}
    verdicts = {
        name: "; ".join(
            f"{heading} of {_FEW}"
            if getattr(results, patients) < MIN_PATIENTS
            else f"{heading} {compare(row[key], f'the {rival}' if rival == BASELINE else rival)}"
            for heading, key, patients in _JUDGED
            if key in row and not math.isnan(row[key].low)
        )
        for name, (rival, row) in rows.items()
        if name != BASELINE
    }
    if results.num_patients < MIN_PATIENTS:
        verdicts = {name: verdict and _FEW for name, verdict in verdicts.items()}
    items = Markup("").join(Markup("<li><b>{}</b>: {}.</li>").format(*item) for item in verdicts.items() if item[1])
    body = Markup('<ul class="verdicts">{}</ul><p class="note">A: right answers. V: mean IoU of boxes.</p>')
    return [Section("summary", "Verdict", "", body.format(items))] if items else []


def make_tables(results: Results) -> list[Table]:
    """Make the table of all models, and those of differences and of stages where there are any."""
    title = f"{results.num_records} questions of {results.num_patients} patients, dialect {results.settings.dialect}"
    tables = [_with_unread(_tabulate("table", title, results.figures, HEADED_FIGURES, results.notes), results)]
    if results.differences:
        first = next(name for name in results.counts if name not in results.differences)
        tests = {name: [test["all"].exact_p if "all" in test else None] for name, test in results.tests.items()}
        compared = (f"Figures less those of {first}{_PAIRED}", _TEST)
        title = f"Differences to {first}"
        tables.append(_tabulate("differences", title, results.differences, HEADED_FIGURES, compared, "points", tests))
    if results.stages:
        counts = (
            f"{name}: scored {', '.join(f'{number} of {stage}' for stage, number in results.num_stages[name].items())}."
            for name in results.stages
        )
        tables.append(_tabulate("stages", "Quality of the stages", results.stages, _STAGES, (_CHECKED, *counts)))
    if any(key in row for row in results.stages.values() for _, key in _RATED):
        notes = ("Scores of the judge from 1 to 5 (MEDSAGE, Table 2).",)
        tables.append(_tabulate("rated_stages", "Stages as rated", results.stages, _RATED, notes, "number"))
    return tables


def _with_unread(table: Table, results: Results) -> Table:
    """Return the table with unread answers, of which refused, filtered, empty and cut ones apart, and unread boxes."""
    apart = [reason for reason in Unsaid if any(parts["answers"].reasons[reason] for parts in results.unread.values())]
    has_boxes = any("boxes" in parts for parts in results.unread.values())

    def describe(name: str) -> tuple[Entry, ...]:
        if name not in results.unread:
            return (None,) * (len(apart) + 2 + 2 * has_boxes)
        answers, boxes = results.unread[name]["answers"], results.unread[name].get("boxes")
        told = (answers.reasons.total(), *(answers.reasons[reason] for reason in apart), answers.because or None)
        return (*told, *((boxes.reasons.total(), boxes.because or None) if boxes else (None,) * 2 * has_boxes))

    of_answers = (*columns("number", "unread answers", *map(str, apart)), *columns("text", "answers: because"))
    of_boxes = (*columns("number", "unread boxes"), *columns("text", "boxes: because")) if has_boxes else ()
    heads = (*table.columns, *of_answers, *of_boxes)
    rows = tuple((*row, *describe(str(row[0]))) for row in table.rows)
    return dataclasses.replace(table, columns=heads, rows=rows)


def _tabulate(
    name: str,
    title: str,
    rows: Mapping[str, Mapping[Key, Interval]],
    keys: Sequence[tuple[str, Key]],
    notes: Sequence[str],
    kind: Kind = "percent",
    tests: Mapping[str, Sequence[Entry]] | None = None,
) -> Table:
    shown = [(heading, key) for heading, key in keys if any(key in row for row in rows.values())]
    entries = [
        (label, *(row.get(key) for _, key in shown), *(tests or {}).get(label, ())) for label, row in rows.items()
    ]
    heads = (*columns("text", "replies"), *columns(kind, *(heading for heading, _ in shown)))
    return Table(name, title, (*heads, *columns("number", *(["p"] if tests else []))), tuple(entries), tuple(notes))


def write_replies(
    records: Sequence[Record],
    models: Mapping[str, Sequence[ReplyScore]],
    *,
    read_picture: Callable[[str], str | None] | None,
    num_shown: int = MOST_SHOWN,
) -> tuple[Section, int]:
    """Return the section and the number of unread pictures."""
    shown = records[:num_shown]
    positions, pictures = _read_pictures(shown, read_picture)
    data = {
        "records": [_describe_record(record, positions) for record in shown],
        "models": [
            {"name": name_unseen(name), "replies": [_describe_score(score) for score in scores[:num_shown]]}
            for name, scores in models.items()
        ],
        "pictures": pictures,
    }
    body = render(
        SHARED,
        "replies.html.j2",
        left_out=f"The page shows the first {len(shown)} of {len(records)}." if len(shown) < len(records) else "",
        data=data,
        kinds=sorted({record.kind for record in shown}),
        models=list(models),
        has_boxes=any(record.references for record in shown)
        or any(score.boxes for scores in models.values() for score in scores[:num_shown]),
    )
    style, script = read_part("browse.css"), read_part("browse.js")
    section = Section("replies", "Replies", "", body, style=style, script=script)
    return section, sum(picture is None for picture in pictures)


def _read_pictures(
    records: Sequence[Record], read_picture: Callable[[str], str | None] | None
) -> tuple[dict[str, int], list[str | None]]:
    """Return the position of each image path among the pictures, and the pictures as data URIs."""
    if read_picture is None:
        return {}, []
    paths = list(dict.fromkeys(record.image for record in records))
    pictures = [picture for _, picture in map_in_threads(read_picture, paths, num_threads=2, num_ahead=64)]
    return {path: position for position, path in enumerate(paths)}, pictures


def _describe_record(record: Record, positions: Mapping[str, int]) -> dict[str, Any]:
    return {
        "id": _shorten(record.id),
        "kind": record.kind,
        "question": _shorten(record.question),
        "choices": [f"{letter}: {_shorten(text)}" for letter, text in zip(record.letters, record.options, strict=True)],
        "truth": _shorten(_join(record.answer)),
        "size": record.image_size,
        "picture": positions.get(record.image, -1),
        "boxes": [[name_unseen(box.label), *_round(box.corners)] for box in record.references],
    }


def _describe_score(score: ReplyScore) -> dict[str, Any]:
    return {
        "text": None if score.text is None else _shorten(score.text),
        "answer": None if score.answer is None else _shorten(_join(score.answer)),
        "boxes": [[_shorten(region.label), *_round(region.corners)] for region in score.boxes],
        "a": _number(score.a_score),
        "v": _number(score.v_score),
        "passed": _number(score.grounding),
        "formed": _number(score.format),
        "problems": [_shorten(problem) for problem in score.problems],
    }


def _shorten(text: str) -> str:
    """Return the text as the page shows it: cut to a length, unprintable characters named."""
    cut = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} … ({len(text)} characters)"
    return cut if cut.replace("\n", "").isprintable() else name_unseen(cut)


def _join(answer: str | Sequence[str]) -> str:
    return answer if isinstance(answer, str) else ", ".join(answer)


def _round(numbers: Sequence[float]) -> list[float]:
    return [round(number, 2) for number in numbers]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
