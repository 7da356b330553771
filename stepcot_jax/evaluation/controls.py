"""Controls of a model's right answers: without the picture, with another patient's, and the most frequent answer."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from stepcot_jax.evaluation.replies import ReplyScore
from stepcot_jax.evaluation.statistics import (
    MIN_PATIENTS,
    Weights,
    bootstrap,
    count_patients,
    divide,
    name_patients,
)
from stepcot_jax.evaluation.unread import MISSING
from stepcot_jax.host.ranges import Interval
from stepcot_jax.pages.sheets import Column, Entry, Kind, Table, columns, show_entry
from stepcot_jax.reasoning.endings import Unsaid
from stepcot_jax.record import KINDS, Record

OWN, WITHOUT, ANOTHER = "own picture", "without the picture", "another patient's picture"
MAJORITY = "most frequent answer"
ALL = "all"
A, LESS, READ = "A", "less", "less, both read"
"""Figures of a row: right answers; those with the own picture less the row's, of all questions and of those read."""
OUTCOMES = ("read", "unread", "refused", "no reply")

_SAID = {OWN: "With its picture the model has {} % right", WITHOUT: "without the picture {} %"}
_SAID |= {ANOTHER: "with another patient's picture {} %", MAJORITY: "the most frequent answer has {} %"}
_AGAINST_MAJORITY = {
    "-": "The most frequent answer beats the model.",
    "0": "The model is not shown to beat the most frequent answer.",
}
_NOT_SHOWN = "The picture is not shown to matter."
_VERDICTS = {
    **dict.fromkeys(("++", "?+"), "The picture is shown to matter."),
    **dict.fromkeys(("+0", "+-", "+?"), "A picture is shown to matter, but not that it is the patient's own."),
    "0+": "Another patient's picture misleads the model, but the own picture is not shown to help it.",
    **dict.fromkeys(("-+", "-0", "--", "-?"), "The model is right more often without the picture."),
    "??": f"No conclusion: fewer than {MIN_PATIENTS} patients, or no reply that can be read.",
}  # by the signs of the differences to the answers without the picture, and to those with another patient's
_READ = "Both read: of the questions whose replies can be read with both; the verdict rests on these."
_NOTES = (
    "Right answers: share of the questions with a reply in every column, each counted once; unread and refused replies "
    "count as wrong. Open questions: exact.",
    "Intervals are 95 %, from resampling patients, differences in the same resamples; a group of fewer than "
    f"{MIN_PATIENTS} patients has none.",
)
_SHOWN = (
    "Without the picture: none is sent; a run of this package sees one grey level, the same for all questions. Another "
    "patient's picture: of the same modality and organ where there is one."
)


@dataclasses.dataclass(frozen=True)
class Controls:
    """Figures of rows of replies to the same questions."""

    rows: tuple[str, ...]  # that of the own picture first
    groups: Mapping[str, npt.NDArray[np.bool_]]  # which questions [question] are of each
    scored: npt.NDArray[np.bool_]  # which questions [question] are scored in every row; figures are of these
    patients: npt.NDArray[np.str_]  # [question]
    figures: Mapping[tuple[str, str, str], Interval]  # by figure, group and row, with intervals by patient
    outcomes: Mapping[tuple[str, str], Mapping[str, int]]  # numbers of `OUTCOMES`, by group and row of replies

    def show(self, figure: str, row: str) -> str:
        """Return a figure of all questions as text, with its interval."""
        return show_entry(self.figures[figure, ALL, row], Column("", "percent" if figure == A else "points"))


def compare_controls(records: Sequence[Record], scores: Mapping[str, Sequence[ReplyScore]], **how: int) -> Controls:
    """Compare the scores of each row, that of the own picture first, with intervals from resampling patients."""
    answers = {name: np.array([score.a_score for score in of_row]) for name, of_row in scores.items()}
    outcomes = {name: np.array(list(map(_find_outcome, of_row))) for name, of_row in scores.items()}
    scored = ~np.isnan(np.stack([*answers.values()])).any(axis=0)
    patients, groups = np.array([record.patient for record in records]), _group_questions(records)
    columns_of = dict[tuple[str, str, str], tuple[npt.NDArray, npt.NDArray[np.bool_]]]()  # values, and which count
    for group, members in groups.items():
        for name in answers:
            columns_of[A, group, name] = answers[name], members & scored
            if name != OWN:
                less, are_read = answers[OWN] - answers[name], (outcomes[OWN] == "read") & (outcomes[name] == "read")
                columns_of[LESS, group, name] = less, members & scored
                columns_of[READ, group, name] = less, members & scored & are_read
    names, member = np.unique(name_patients(patients), return_inverse=True)
    numbers = np.stack([np.bincount(member, who, len(names)) for _, who in columns_of.values()], axis=1)
    sums = [np.bincount(member, np.where(who, values, 0.0), len(names)) for values, who in columns_of.values()]
    totals = np.stack(sums, axis=1)  # [patient, figure]

    def compute(weights: Weights) -> dict[tuple[str, str, str], npt.NDArray]:
        return dict(zip(columns_of, divide(weights @ totals, weights @ numbers).T, strict=True))

    figures = bootstrap(compute, names, **how)
    few = {key for key, (_, who) in columns_of.items() if count_patients(patients[who]) < MIN_PATIENTS}
    counts = {
        (group, name): {outcome: int((of_row[members] == outcome).sum()) for outcome in OUTCOMES}
        for group, members in groups.items()
        for name, of_row in outcomes.items()
        if name != MAJORITY
    }
    figures = {key: Interval(figure.value) if key in few else figure for key, figure in figures.items()}
    return Controls(tuple(scores), groups, scored, patients, figures, counts)


def _group_questions(records: Sequence[Record]) -> dict[str, npt.NDArray[np.bool_]]:
    """Return the questions of all, and by kind, modality and organ where there are several."""
    groups = {ALL: np.ones(len(records), bool)}
    for field in ("kind", "modality", "organ"):
        of_field = np.array([getattr(record, field) or "not stated" for record in records])
        names = sorted(set(of_field.tolist()), key=lambda name: (KINDS.index(name) if name in KINDS else 0, name))
        groups |= {f"{field}: {name}": of_field == name for name in names if len(names) > 1}
    return groups


def _find_outcome(score: ReplyScore) -> str:
    if MISSING in score.problems:
        return "no reply"
    is_refused = score.unread_answer in (Unsaid.REFUSED, Unsaid.FILTERED)
    return "refused" if is_refused else "unread" if score.unread_answer else "read"


def conclude(controls: Controls) -> list[str]:
    """Return in a paragraph what the controls allow to say, then a sentence for each row with unread replies."""
    told = [
        _SAID[row].format(controls.show(A, row))
        + (f" (difference {controls.show(LESS, row)} points)" if row != OWN else "")
        for row in controls.rows
    ]
    signs = "".join(_find_sign(controls.figures.get((READ, ALL, row))) for row in (WITHOUT, ANOTHER))
    verdict = _VERDICTS.get(signs, _NOT_SHOWN) if len(controls.rows) > 2 else ""
    first = _AGAINST_MAJORITY.get(_find_sign(controls.figures[LESS, ALL, MAJORITY]), "")
    lines = [" ".join(filter(None, (first, verdict, f"{', '.join(told[:-1])}, and {told[-1]}.")))]
    for (group, row), counts in controls.outcomes.items():
        if group == ALL and counts["refused"] + counts["unread"]:
            apart = f"{counts['refused']} refused and {counts['unread']} unread count as wrong"
            less = "" if row == OWN else controls.show(READ, row).rstrip("-")
            both = less and f"; of questions with both replies read the difference is {less} points"
            lines.append(f"{row.capitalize()}: {apart}{both}.")
    if len(controls.rows) > 2 and ANOTHER not in controls.rows:
        lines.append("No question was asked with another patient's picture: there is none, or only copies of its own.")
    return lines


def _find_sign(less: Interval | None) -> str:
    if less is None or math.isnan(less.low):
        return "?"
    return "+" if less.low > 0 else "-" if less.high < 0 else "0"


def tabulate_controls(controls: Controls, notes: Sequence[str]) -> list[Table]:
    """Return the tables of right answers, of differences, and of outcomes of replies, by group of questions."""
    others = [row for row in controls.rows if row != OWN]
    outcomes: list[tuple[Entry, ...]] = [(*key, *of_row.values()) for key, of_row in controls.outcomes.items()]
    are_read = not any(unread or refused for *_, unread, refused, _ in outcomes)
    on_read = {f"{row}, both read": (READ, row) for row in others if row != MAJORITY and not are_read}

    def tabulate(name: str, title: str, kind: Kind, keys: Mapping[str, tuple[str, str]], *notes: str) -> Table:
        heads = (Column("group"), *columns("number", "questions", "patients"), *columns(kind, *keys))
        rows = list[tuple[Entry, ...]]()
        for group, members in controls.groups.items():
            who = members & controls.scored
            figures = [controls.figures[figure, group, row] for figure, row in keys.values()]
            rows.append((group, int(who.sum()), count_patients(controls.patients[who]), *figures))
        return Table(name, title, heads, tuple(rows), notes)

    of_rows, less = {row: (A, row) for row in controls.rows}, {row: (LESS, row) for row in others} | on_read
    differences, title = "Differences: own picture less the others", "Outcomes of the replies"
    notes = [*_NOTES, *[_SHOWN] * (len(others) > 1), *notes]
    heads = (*columns("text", "group", "replies"), *columns("number", *OUTCOMES))
    shown = tuple(row for row in outcomes if row[0] == ALL or any(row[3:]))
    return [
        tabulate("controls", "Right answers", "percent", of_rows, *notes),
        tabulate("controls_differences", differences, "points", less, *[_READ] * bool(on_read)),
        Table("controls_replies", title, heads, shown),
    ]
