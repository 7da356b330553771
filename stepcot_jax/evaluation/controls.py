"""Controls of a model's right answers: without the picture, with another patient's, and the most frequent answer."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from stepcot_jax.evaluation.replies import ReplyScore
from stepcot_jax.evaluation.statistics import MIN_PATIENTS, Weights, bootstrap, count_patients, weighted_mean
from stepcot_jax.evaluation.unread import MISSING
from stepcot_jax.host.ranges import Interval
from stepcot_jax.pages.sheets import Column, Entry, Kind, Row, Table, columns, show_entry
from stepcot_jax.reasoning.endings import Unsaid
from stepcot_jax.record import KINDS, Record

OWN, WITHOUT, ANOTHER = "own picture", "without the picture", "another patient's picture"
MAJORITY = "most frequent answer"
ALL = "all"
A, LESS, READ = "A", "less", "less, both read"
"""Figures of a row: right answers; those with the own picture less the row's, of all questions and of those read."""

Figures = Mapping[tuple[str, str, str], Interval]  # by figure, group of questions, and row
Scores = Mapping[str, Sequence[ReplyScore]]  # by row, that of the own picture first

_SAID = {OWN: "With its picture the model has {} % right", WITHOUT: "without the picture {} %"}
_SAID |= {ANOTHER: "with another patient's picture {} %", MAJORITY: "the most frequent answer has {} %"}
_MATTERS = "The picture is shown to matter."
_FOR_ANY = "A picture is shown to matter, but not that it is the patient's own."
_VERDICTS = {
    **dict.fromkeys(("++", "?+"), _MATTERS),
    **dict.fromkeys(("+0", "+-", "+?"), _FOR_ANY),
    "0+": "Another patient's picture misleads the model, but the own picture is not shown to help it.",
    **dict.fromkeys(("-+", "-0", "--", "-?"), "The model is right more often without the picture."),
    "??": f"No conclusion: fewer than {MIN_PATIENTS} patients, or no reply that can be read.",
}  # by the signs of the differences to the answers without the picture, and to those with another patient's
_AGAINST_MAJORITY = {
    "-": "The most frequent answer beats the model.",
    "0": "The model is not shown to beat the most frequent answer.",
}
OUTCOMES = ("read", "unread", "refused", "no reply")
_BOTH = "both read"
_READ = "Both read: of the questions whose replies can be read with both; the sentence on the picture rests on these."
_NOTES = (
    "Without the picture: none is sent; a run of this package sees one grey level, the same for all questions. Another "
    "patient's picture: of the same modality and organ where there is one.",
    "A: right answers, of the questions with a reply in every column; unread and refused replies count as wrong. Open "
    "questions: exact.",
    "Intervals are 95 %, from resampling patients, differences in the same resamples; a group of fewer than "
    f"{MIN_PATIENTS} patients has none.",
)


def group_questions(records: Sequence[Record]) -> dict[str, npt.NDArray[np.bool_]]:
    """Return the questions [question] of all, and by kind, modality and organ where there are several."""
    groups = {ALL: np.ones(len(records), bool)}
    for field in ("kind", "modality", "organ"):
        of_field = np.array([getattr(record, field) or "not stated" for record in records])
        names = sorted(set(of_field.tolist()), key=lambda name: (KINDS.index(name) if name in KINDS else 0, name))
        groups |= {f"{field}: {name}": of_field == name for name in names if len(names) > 1}
    return groups


def find_scored(scores: Scores) -> npt.NDArray[np.bool_]:
    """Return the questions [question] that are scored in every row."""
    return np.all([[not math.isnan(score.a_score) for score in of_row] for of_row in scores.values()], axis=0)


def compare_controls(records: Sequence[Record], scores: Scores, **how: int) -> Figures:
    """Return right answers and differences, over the questions scored in every row, with intervals by patient."""
    answers = {name: np.array([score.a_score for score in of_row]) for name, of_row in scores.items()}
    read = {name: np.array([not score.unread_answer for score in of_row]) for name, of_row in scores.items()}
    patients, scored, own = np.array([record.patient for record in records]), find_scored(scores), next(iter(scores))
    columns_of = dict[tuple[str, str, str], tuple[npt.NDArray, npt.NDArray[np.bool_]]]()  # values and who counts
    for group, members in group_questions(records).items():
        for name in answers:
            columns_of[A, group, name] = answers[name], members & scored
            if name != own:
                less = answers[own] - answers[name]
                columns_of[LESS, group, name] = less, members & scored
                columns_of[READ, group, name] = less, members & scored & read[own] & read[name]
    values, counted = (np.stack(column, axis=1) for column in zip(*columns_of.values(), strict=True))

    def compute(weights: Weights) -> dict[tuple[str, str, str], npt.NDArray]:
        return dict(zip(columns_of, weighted_mean(weights, values=values, counted=counted).T, strict=True))

    figures = bootstrap(compute, patients, **how)
    few = {key for key, (_, who) in columns_of.items() if count_patients(patients[who]) < MIN_PATIENTS}
    return {key: Interval(figure.value) if key in few else figure for key, figure in figures.items()}


def count_outcomes(records: Sequence[Record], scores: Scores) -> dict[tuple[str, str], dict[str, int]]:
    """Count replies that are read, unread, refused or missing, by group and row of replies."""
    outcomes = {name: np.array(list(map(_find_outcome, of_row))) for name, of_row in scores.items() if name != MAJORITY}
    return {
        (group, name): {outcome: int((of_row[members] == outcome).sum()) for outcome in OUTCOMES}
        for group, members in group_questions(records).items()
        for name, of_row in outcomes.items()
    }


def _find_outcome(score: ReplyScore) -> str:
    if MISSING in score.problems:
        return "no reply"
    is_refused = score.unread_answer in (Unsaid.REFUSED, Unsaid.FILTERED)
    return "refused" if is_refused else "unread" if score.unread_answer else "read"


def conclude(records: Sequence[Record], scores: Scores, figures: Figures) -> list[str]:
    """Return in a paragraph what the controls allow to say, then a sentence for each row with unread replies."""

    def show(figure: str, name: str) -> str:
        return show_entry(figures[figure, ALL, name], Column("", "percent" if figure == A else "points"))

    told = [
        _SAID[name].format(show(A, name)) + (f" (difference {show(LESS, name)} points)" if name != OWN else "")
        for name in scores
    ]
    signs = "".join(_find_sign(figures.get((READ, ALL, name))) for name in (WITHOUT, ANOTHER))
    verdict = _VERDICTS.get(signs, "The picture is not shown to matter.") if len(scores) > 2 else ""
    first = _AGAINST_MAJORITY.get(_find_sign(figures[LESS, ALL, MAJORITY]), "")
    lines = [" ".join(filter(None, (first, verdict, f"{', '.join(told[:-1])}, and {told[-1]}.")))]
    for (group, name), counts in count_outcomes(records, scores).items():
        if group == ALL and counts["refused"] + counts["unread"]:
            apart = f"{counts['refused']} refusals and {counts['unread']} unread replies count as wrong"
            both = f"; where both are read the difference is {show(READ, name)} points" if name != OWN else ""
            lines.append(f"{name.capitalize()}: {apart}{both}.")
    return lines


def _find_sign(less: Interval | None) -> str:
    if less is None or math.isnan(less.low):
        return "?"
    return "+" if less.low > 0 else "-" if less.high < 0 else "0"


def tabulate_controls(records: Sequence[Record], scores: Scores, figures: Figures, notes: Sequence[str]) -> list[Table]:
    """Return the tables of right answers, of differences, and of outcomes of replies, by group of questions."""
    groups, scored, others = group_questions(records), find_scored(scores), [name for name in scores if name != OWN]
    patients, counts = np.array([record.patient for record in records]), count_outcomes(records, scores)
    are_read = not any(of_row["refused"] + of_row["unread"] for of_row in counts.values())
    differences = {name: (LESS, name) for name in others}
    on_read = {f"{name}, {_BOTH}": (READ, name) for name in others if name != MAJORITY and not are_read}

    def tabulate(name: str, title: str, kind: Kind, keys: Mapping[str, tuple[str, str]], *notes: str) -> Table:
        heads = (Column("group"), *columns("number", "questions", "patients"), *columns(kind, *keys))
        rows = list[Row]()
        for group, members in groups.items():
            who = members & scored
            numbers: Row = {"group": group, "questions": int(who.sum()), "patients": count_patients(patients[who])}
            rows.append(numbers | {heading: figures[figure, group, row] for heading, (figure, row) in keys.items()})
        return Table.of(name, title, heads, rows, notes)

    heads = (*columns("text", "group", "replies"), *columns("number", *OUTCOMES))
    rows: list[tuple[Entry, ...]] = [(*key, *of_row.values()) for key, of_row in counts.items()]
    rows = [row for row in rows if row[0] == ALL or any(row[3:])]
    less, title = "Differences: own picture less the others", "Replies, and the groups in which some are not read"
    return [
        tabulate("controls", "Right answers", "percent", {name: (A, name) for name in scores}, *notes, *_NOTES),
        tabulate("controls_differences", less, "points", differences | on_read, *[_READ] * bool(on_read)),
        Table("controls_replies", title, heads, tuple(rows)),
    ]
