"""Replies by the counting rules of public suites, beside a person's reading and ours: tables and a page."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import fold
from stepcot_jax.data.questions.reply_files import ReplyFile
from stepcot_jax.evaluation.field_rules.made_replies import write_made
from stepcot_jax.evaluation.field_rules.rule_table import FieldRule
from stepcot_jax.evaluation.field_rules.verdicts import Verdict, ask
from stepcot_jax.evaluation.replies import ReplyScore, ScoringSettings, encode, score_text
from stepcot_jax.evaluation.statistics import bootstrap_means, mean_defined
from stepcot_jax.evaluation.unread import MISSING
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole, writing_whole
from stepcot_jax.pages.sheets import Entry, Table, columns, heads, to_markdown, write_table
from stepcot_jax.pages.shell import SHARED, Section, percent, read_part, render, tabulate, write_report
from stepcot_jax.reasoning.dialects import FREE
from stepcot_jax.record import KINDS, YES_NO, Record
from stepcot_jax.tools.evaluate_replies.scored_replies import ReplyScores

OURS, PERSON = "stepcot_jax", "person"

_MOST_MADE = 300  # questions for which replies are made
_LONGEST = 600  # characters of a reply on the page
_NOTES = (
    "unread: not right either. by chance: what random guesses add in the suite on average. common: on the questions "
    "that every rule with a verdict judges. Intervals are 95 %, from resampling patients.",
)
_NOTES_MADE = (
    f"Share that counts as right. Made from at most {_MOST_MADE} questions, evenly spaced; none of kind multi.",
    f"{OURS}: in dialect free. The first option pays where it is right.",
)

Row = list[Verdict | None]  # [record]; None: no rule for the question
Column = npt.NDArray[np.float64]  # [record]; NaN: no rule for the question


def write_rules(
    folder: Path, files: Sequence[ReplyFile], scored: ReplyScores, rules: Sequence[FieldRule], *, num_shown: int
) -> str:
    """Write the tables, rules.jsonl and rules.html; return the first table as text, after the range of each model."""
    records = scored.records
    models = {file.name: _judge(file, scored, rules) for file in files}
    accuracy, ranges = _tabulate_accuracy(models, scored, rules)
    tables = [accuracy, _tabulate_agreement(models, scored), _tabulate_made(records, rules, scored.results.settings)]
    names = [name for table in tables for name in write_table(folder, table)]
    with writing_whole(folder / "rules.jsonl") as lines:
        for model, rows in models.items():
            for place, record in enumerate(records):
                verdicts = {name: (verdict := row[place]) and verdict._asdict() for name, row in rows.items()}
                lines.write(encode({"model": model, "id": record.id, "verdicts": verdicts}))
    sections = [*map(tabulate, tables), _show_differences(files, models, records, num_shown)]
    page = write_report(title="Rules of the field", about=ranges, sections=sections, writer="stepcot evaluate_replies")
    write_whole(folder / "rules.html", page.encode())
    return "\n".join([*ranges, "", to_markdown(accuracy), f"in {folder}: rules.html, rules.jsonl, {', '.join(names)}"])


def _judge(file: ReplyFile, scored: ReplyScores, rules: Sequence[FieldRule]) -> dict[str, Row]:
    missing = None if scored.results.settings.missing == "skip" else Verdict(False, MISSING)
    rows = {PERSON: [_read_person(file, record) for record in scored.records]} if file.people else {}
    rows[OURS] = [_as_verdict(score) for score in scored.scores[file.name]]
    for rule in rules:
        judged = [(rule.judge(ask(record), file.replies.get(record.id, "")), record.id) for record in scored.records]
        rows[rule.name] = [missing if verdict and name not in file.replies else verdict for verdict, name in judged]
    return rows


def _read_person(file: ReplyFile, record: Record) -> Verdict | None:
    """Return the verdict on what a person reads, of which null is no answer."""
    if record.id not in file.people:
        return None
    read = file.people[record.id]
    if read is None:
        return Verdict(None, "no answer")
    if record.is_answered_in_words and read.strip():
        return Verdict(fold(read) in map(fold, record.accepted_texts), "read by eye", read)
    if record.options:
        answers, known = tuple(sorted(set(read.upper()) - set(", "))), tuple(record.letters)
    else:
        answers, known = (read.strip(" .").capitalize(),), () if record.is_answered_in_words else YES_NO
    if not 1 <= len(answers) <= (len(known) if record.kind == "multi" else 1) or not set(answers) <= set(known):
        found = f"{file.path}, id {record.id[:80]!r}, person: {read[:80]!r} is not an answer"
        raise BadInput(f"{found}; expected {record.kind} of {', '.join(known) or 'any text'}, or null for none")
    true = (record.answer,) if isinstance(record.answer, str) else record.answer
    return Verdict(answers == true, "read by eye", ", ".join(answers))


def _as_verdict(score: ReplyScore) -> Verdict | None:
    if math.isnan(score.a_score):
        return None
    read = score.answer if score.answer is None or isinstance(score.answer, str) else ", ".join(score.answer)
    right = None if score.unread_answer else score.a_score == 1
    return Verdict(right, score.unread_answer or "; ".join(score.problems) or "read", read)


def _column(row: Row, value: Callable[[Verdict], float | bool]) -> Column:
    return np.array([math.nan if verdict is None else value(verdict) for verdict in row], np.float64)


def _right(row: Row) -> Column:
    return _column(row, lambda verdict: verdict.right is True)


def _unread(row: Row) -> Column:
    return _column(row, lambda verdict: verdict.right is None)


def _average(figures: dict[str, Column], scored: ReplyScores) -> dict[str, Entry]:
    """Return the mean of each column with its interval by patient; None of one without numbers."""
    patients, results = np.array([record.patient for record in scored.records]), scored.results
    averaged = bootstrap_means(figures, patients, num_resamples=results.num_resamples, seed=results.seed)
    return {name: None if math.isnan(figure.value) else figure for name, figure in averaged.items()}


def _tabulate_accuracy(
    models: dict[str, dict[str, Row]], scored: ReplyScores, rules: Sequence[FieldRule]
) -> tuple[Table, list[str]]:
    """Return the table, and a line for each model on the range of its accuracies."""
    kinds, rows, ranges = np.array([record.kind for record in scored.records]), list[tuple[Entry, ...]](), list[str]()
    asked, open_score = [kind for kind in KINDS if kind in kinds], scored.results.settings.open_score
    dialects = ", ".join(dict.fromkeys(scored.dialects[model] for model in models))
    full = "" if open_score == "exact" else f"; open answers are right with a full score ({open_score})"
    for model, of_model in models.items():
        judging = {name: _right(row) for name, row in of_model.items() if name != PERSON and any(row)}
        is_common = ~np.isnan(np.array(list(judging.values()))).any(axis=0)
        common = {name: float(mean_defined(np.where(is_common, right, np.nan))) for name, right in judging.items()}
        for name, row in of_model.items():
            right = _right(row)
            parts: dict[str, Column] = {"all": right, "common": np.where(is_common, right, np.nan)}
            parts |= {kind: np.where(kinds == kind, right, np.nan) for kind in asked}
            parts |= {"unread": _unread(row), "by chance": _column(row, lambda verdict: verdict.chance)}
            figures = _average(parts, scored)
            rows.append((model, name, int((~np.isnan(right)).sum()), *figures.values()))
        low, high = min(common, key=common.__getitem__), max(common, key=common.__getitem__)
        if is_common.any():
            span = f"{percent(common[low])} % ({low}) to {percent(common[high])} % ({high}) right by the rule alone"
            span = f"{percent(common[low])} % right by every rule" if common[low] == common[high] else span
            ranges.append(f"{model}: {span}, on the {is_common.sum()} questions that they all judge.")
    head = heads(
        "replies", "rule", "#questions", "%all", "%common", *(f"%{kind}" for kind in asked), "%unread", "%by chance"
    )
    notes = [*_NOTES, f"{OURS}: dialect {dialects}{full}.", *(f"{rule.name}: {rule.suite}." for rule in rules)]
    return Table("rules", "Right answers by rule", head, tuple(rows), tuple(notes)), ranges


def _tabulate_agreement(models: dict[str, dict[str, Row]], scored: ReplyScores) -> Table:
    rows = list[tuple[Entry, ...]]()
    for model, of_model in models.items():
        for (first, one), (second, other) in itertools.combinations(of_model.items(), 2):
            ones, others = _right(one), _right(other)
            both = ~np.isnan(ones + others)
            same = np.where(both, ones == others, np.nan)
            read = np.where(_unread(one) + _unread(other) == 0, same, np.nan)
            shares = _average({"same": same, "read": read}, scored)
            rows.append((model, first, second, int(both.sum()), shares["same"], int((read >= 0).sum()), shares["read"]))
    head = heads("replies", "rule", "other", "#questions", "%same", "#both read", "%same where both read")
    notes = ("same: both right or both not right, on the questions that both judge.",)
    return Table("rules_agreement", "Agreement of the rules", head, tuple(rows), notes)


def _tabulate_made(records: Sequence[Record], rules: Sequence[FieldRule], settings: ScoringSettings) -> Table:
    """Return how often each rule, and ours in dialect free, pays for replies that are made from the questions."""
    settings = dataclasses.replace(settings, dialect=FREE, with_thinking=False, boxes=None, open_score="exact")
    asked = [record for record in records if record.kind != "multi"]
    places = np.unique(np.linspace(0, len(asked) - 1, min(len(asked), _MOST_MADE)).round().astype(int))
    made = dict[tuple[str, str], dict[str, Row]]()
    for record in (asked[place] for place in places):
        for key, text in write_made(record, asked).items():
            of_key = made.setdefault(key, {})
            if text is None:
                continue
            of_key.setdefault(OURS, []).append(_as_verdict(score_text(text, record, settings)))
            for rule in rules:
                of_key.setdefault(rule.name, []).append(rule.judge(ask(record), text))
    made = {key: of_key for key, of_key in made.items() if of_key}
    guessing = [
        rule.name for rule in rules if any(v and v.chance for of_key in made.values() for v in of_key[rule.name])
    ]
    rows = list[tuple[Entry, ...]]()
    for key, of_key in made.items():
        paid = [float(mean_defined(_right(row))) for row in of_key.values()]
        chances = [float(mean_defined(_column(of_key[name], lambda verdict: verdict.chance))) for name in guessing]
        rows.append((*key, len(of_key[OURS]), *paid, *chances))
    shares = OURS, *(rule.name for rule in rules), *(f"{name} by chance" for name in guessing)
    head = (*heads("reply", "form", "#questions"), *columns("percent", *shares))
    return Table("rules_made", "What each rule pays for made replies", head, tuple(rows), _NOTES_MADE)


def _show_differences(
    files: Sequence[ReplyFile], models: dict[str, dict[str, Row]], records: Sequence[Record], num_shown: int
) -> Section:
    """Return the section of the replies on which the rules differ, with each rule's reason."""
    rows = []
    for (place, record), file in itertools.product(enumerate(records), files):
        verdicts = {name: row[place] for name, row in models[file.name].items()}
        if len({verdict.right is True for verdict in verdicts.values() if verdict is not None}) > 1:
            text = file.replies.get(record.id, "")
            cut = f"{text[:_LONGEST]} … ({len(text)} characters)" if len(text) > _LONGEST else text
            rows.append((file.name, record, cut, verdicts))
    total, names = len(files) * len(records), list(dict.fromkeys(itertools.chain(*models.values())))
    body = render(SHARED, "rules.html.j2", rows=rows[:num_shown], number=len(rows), total=total, names=names)
    return Section("differences", "Where the rules differ", "", body, script=read_part("rules.js"))
