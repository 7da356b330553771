"""From files of records and replies to a folder of results."""

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from stepcot_jax.annotate.llm.client import Endpoint
from stepcot_jax.annotate.llm.judge import Exchange, Judge, judge_answers, judge_stages, label_steps, make_exchange
from stepcot_jax.annotate.output import LEDGER_FOLDER
from stepcot_jax.data.images.image_decoding import MAX_PIXELS, decode_picture, most_bytes
from stepcot_jax.data.questions.record_files import VqaCollection, read_vqa_records
from stepcot_jax.data.questions.reply_files import ReplyFile, as_text, name_models, read_replies
from stepcot_jax.data.records.data_json import ImageLocator
from stepcot_jax.evaluation.box_forms import BoxForm, find_better_form
from stepcot_jax.evaluation.interventions import PERTURBED_KINDS
from stepcot_jax.evaluation.replies import (
    BASELINE,
    CHECKED_STAGES,
    HEADED_FIGURES,
    JUDGED,
    Key,
    OpenScore,
    ReplyScore,
    Results,
    ScoringSettings,
    encode,
    read,
    score_all,
    summarise,
    to_json,
)
from stepcot_jax.evaluation.reply_page import ShownTable, write_page
from stepcot_jax.evaluation.stage_quality import LABEL_VALUES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, make_workdir, read_file, write_whole, writing_whole
from stepcot_jax.pages.pictures import write_picture
from stepcot_jax.pages.sheets import Entry, Interval, Kind, Table, columns, write_table
from stepcot_jax.reasoning.dialects import DIALECTS, FREE
from stepcot_jax.record import STAGE_NAMES, Record
from stepcot_jax.rewards.answers import Judged
from stepcot_jax.run.scored_baseline import score_baseline
from stepcot_jax.tools.evaluate_replies.robustness import (
    describe_rounds,
    name_round,
    read_source,
    score_rounds,
    tabulate_rounds,
)

# Tables of the figures of replies: for files, for the page and for a terminal.


TABLE_NAMES = ("table", "differences", "stages", "rated_stages", "perturbed")
"""Names of all tables that an evaluation may write."""

AUTO = "auto"
"""The dialect is chosen for each file."""

_NUM_TESTED = 1000  # replies that are tested for another form of boxes

_STAGES = (
    *((name, ("stage", name)) for name in STAGE_NAMES),
    *((f"{name}, steps", ("step_quality", name)) for name in ("description", "reasoning", "together")),
)
_RATED = tuple((name, ("rated", name)) for name in STAGE_NAMES)

_PAIRED = ", in the same resamples of patients; replies that either was not scored on take no part."
_TEST = "p: exact McNemar test of all answers, which takes the questions of a patient as independent."
_CHECKED = (
    "Stages are checked against the records' facts, or labelled by the judge: descriptions are worth 1, 0.5 or 0, "
    "reasoning 1 or 0. Stages of replies that do not count are worth 0. This is our definition, after MiCEval."
)


def make_tables(results: Results) -> list[Table]:
    """Make the table of all models, and those of differences and of stages where there are any."""
    title = f"{results.num_records} questions of {results.num_patients} patients, dialect {results.settings.dialect}"
    tables = [_with_unread(_tabulate("table", title, results.figures, HEADED_FIGURES, results.notes), results)]
    if results.differences:
        first = next(name for name in results.figures if name not in results.differences)
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
    """Add the number of unread replies of each model, and their three most frequent reasons."""

    def describe(name: str) -> tuple[Entry, Entry]:
        reasons = results.unread.get(name)
        if reasons is None:
            return None, None
        return reasons.total(), "; ".join(f"{text} ({count})" for text, count in reasons.most_common(3)) or "-"

    heads = (*table.columns, *columns("number", "unread"), *columns("text", "because"))
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


def to_text(table: Table) -> str:
    """Format a table for a terminal: a line for each column of the table, a column for each row."""
    lines = list(zip([column.heading for column in table.columns], *table.show(), strict=True))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([table.title, "", *text, "", *(f"- {note}" for note in table.notes)]) + "\n"


# Ask a language model to judge open answers and stages, as GEMeX-RMCoT and MEDSAGE do.


_Score = TypeVar("_Score")


def judge_open_answers(
    records: Sequence[Record], replies: Mapping[str, str], settings: ScoringSettings, judge: Judge
) -> dict[str, Judged]:
    """Rate the open answers that could be read, from 1 to 10; return the scores by record id."""
    open_records = [record for record in records if record.kind == "open"]
    return _ask(judge_answers, _exchange(open_records, replies, settings), judge)


def judge_all_stages(
    records: Sequence[Record],
    replies: Mapping[str, str],
    scores: Sequence[ReplyScore],
    settings: ScoringSettings,
    judge: Judge,
) -> list[ReplyScore]:
    """Return the scores with the judge's stage scores from 1 to 5, and its labels where a record has no facts."""
    exchanges = [exchange for exchange in _exchange(records, replies, settings) if exchange.stages]
    asked = {exchange.id for exchange in exchanges}
    rated = _ask(judge_stages, exchanges, judge)
    unknown = {record.id for record in records if not record.facts}
    labels = _ask(label_steps, [exchange for exchange in exchanges if exchange.id in unknown], judge)
    values = {
        record: {name: LABEL_VALUES[label] for name, label in stages.items()} for record, stages in labels.items()
    }

    def complete(score: ReplyScore) -> ReplyScore:
        is_skipped = score.text is None and settings.missing == "skip"
        is_worthless = score.id in unknown - asked and settings.dialect in CHECKED_STAGES and not is_skipped
        nothing = dict.fromkeys(STAGE_NAMES, 0.0) if is_worthless else None
        changes = {"rated_stages": rated.get(score.id), "stages": values.get(score.id, nothing)}
        ordered = {name: tuple(stages[stage] for stage in STAGE_NAMES) for name, stages in changes.items() if stages}
        return dataclasses.replace(score, **ordered)  # type: ignore[arg-type]

    return [complete(score) for score in scores]


def _exchange(records: Sequence[Record], replies: Mapping[str, str], settings: ScoringSettings) -> Iterator[Exchange]:
    """Yield the replies whose answer can be read under `settings`."""
    for record in records:
        reply = read(replies.get(record.id, ""), settings)
        if reply.answer is None or (settings.reading == "strict" and not reply.is_well_formed):
            continue
        yield make_exchange(record, reply)


def _ask(
    ask: Callable[[Sequence[Exchange], Judge], list[_Score | None]], exchanges: Iterable[Exchange], judge: Judge
) -> dict[str, _Score]:
    asked = list(exchanges)
    pairs = zip(asked, ask(asked, judge) if asked else [], strict=True)
    return {exchange.id: score for exchange, score in pairs if score is not None}


def score_files(options: argparse.Namespace, collection: VqaCollection, chosen: Sequence[Record]) -> tuple[str, str]:
    """Score the files of the command line, write all results; return the table as text, and why to doubt it or ""."""
    settings = _read_settings(options)
    _refuse_small_boxes(chosen, collection.path)
    files = _read_files(options, collection, chosen)
    make_workdir(options.out)
    judge = _make_judge(options)
    of_files = {file.name: _choose_dialect(file, settings) for file in files}
    scores = {file.name: _score(file, chosen, of_files[file.name], judge, options) for file in files}
    dialects = [used.dialect for used in of_files.values()]
    baseline, remark = score_baseline(collection.records, chosen, replace(settings, dialect=DIALECTS[0], boxes=None))
    remarks = [remark, *(_describe_missing(file, chosen) for file in files)]
    for file in files:
        remarks += _describe_reading(file, chosen, scores[file.name], of_files[file.name], options)
    if judge is not None and judge.unusable:
        counts = "; ".join(f"{number} {reason}" for reason, number in judge.unusable.most_common())
        remarks.append(f"Replies of the judge without a score: {counts}.")
    results = summarise(
        chosen,
        scores,
        replace(settings, dialect=", ".join(dict.fromkeys(dialects))),
        baseline=baseline,
        num_resamples=options.num_resamples,
        seed=options.seed,
        notes=[note for note in remarks if note],
    )
    tables = make_tables(results)
    document = _describe(results, collection, files, options)
    for name, used in of_files.items():
        document["models"][name]["dialect"] = used.dialect
    if options.perturbed:
        perturbed = _score_perturbed(options, collection, chosen, results, of_files[files[0].name])
        tables.append(perturbed)
        document["perturbed"] = {
            "std": options.perturbation_std,
            "files": [_identify(path) for path in options.perturbed],
            "figures": describe_rounds(perturbed),
        }
    for name in TABLE_NAMES:  # of an earlier evaluation, which may have had others
        for path in (options.out / f"{name}.{ending}" for ending in ("csv", "md", "tex")):
            path.unlink(missing_ok=True)
    names = [name for table in tables for name in write_table(options.out, table)]
    write_whole(options.out / "metrics.json", msgspec.json.format(encode(document)) + b"\n")
    _write_scores(options.out / "scores.jsonl", scores)
    size, unread = write_page(
        options.out,
        chosen,
        scores,
        [ShownTable.of(table) for table in tables],
        title=f"Replies to {collection.path.parent.name or collection.path.name}",
        writer="stepcot evaluate_replies",
        read_picture=None if options.without_pictures else _picture_reader(collection.root),
        num_shown=options.num_shown,
    )
    lines = [f"{unread} images could not be read; the page shows boxes without them"] if unread else []
    lines.append(f"in {options.out}: metrics.json, scores.jsonl, index.html ({size / 1e6:.1f} MB), {', '.join(names)}")
    printed = [to_text(table) for table in tables if table.name in ("table", "stages", "perturbed")]
    doubts = [
        f"{file.name}: {number} of {len(file.replies)} replies have neither an answer nor a box that can be read, as "
        f"dialect {of_files[file.name].dialect}"
        for file in files
        if 2 * (number := results.unread[file.name].total()) > len(file.replies)
    ]
    return "\n".join([*printed, *lines]) + "\n", "; ".join(doubts)


def _refuse_small_boxes(records: Sequence[Record], path: Path) -> None:
    for record in records:
        for box in record.references:
            if min(box.size) < 1:
                raise BadInput(
                    f"{path}, record {record.id[:80]!r}, references: {list(box.corners)} is less than a pixel wide or "
                    "high; expected corners in pixels of the picture, not shares of its sides"
                )


def _choose_dialect(file: ReplyFile, settings: ScoringSettings) -> ScoringSettings:
    """Return the settings with the first of the papers' dialects that half of a file's replies follow, else "free"."""
    if settings.dialect != AUTO:
        return settings
    for dialect in DIALECTS:
        of_dialect = replace(settings, dialect=dialect)
        num_followed = sum(read(text, of_dialect).is_well_formed for text in file.replies.values())
        if 2 * num_followed >= len(file.replies):
            return of_dialect
    return replace(settings, dialect=FREE)


def _describe_reading(
    file: ReplyFile,
    records: Sequence[Record],
    scores: Sequence[ReplyScore],
    settings: ScoringSettings,
    options: argparse.Namespace,
) -> Iterator[str]:
    """Yield notes on how a file's replies were read: dialect, swapped corners, and boxes that fit another form."""
    if options.dialect == AUTO:
        yield f"{file.name}: read as dialect {settings.dialect} (--dialect=auto)."
    if num_turned := sum(score.num_turned for score in scores):
        yield f"{file.name}: {num_turned} boxes have swapped corners, which were sorted."
    located = [record for record in records if record.references and record.id in file.replies][:_NUM_TESTED]
    replies = [read(file.replies[record.id], settings) for record in located]
    if note := find_better_form(replies, located, settings.boxes or BoxForm()):
        yield f"{file.name}: {note}."


def _read_settings(options: argparse.Namespace) -> ScoringSettings:
    for name, least in (("num_resamples", 1), ("num_shown", 1), ("seed", 0)):
        if getattr(options, name) < least:
            raise BadInput(f"--{name.replace('_', '-')} must be at least {least}; got {getattr(options, name)}")
    if bool(options.perturbed) != bool(options.perturbed_records):
        raise BadInput("--perturbed and --perturbed-records are required together (the folder that `perturb` wrote)")
    open_score: OpenScore = options.open_score or ("relative" if options.judge else "exact")
    if open_score in JUDGED and not options.judge:
        raise BadInput(f"--open-score={open_score} needs the scores of a judge (--judge MODEL)")
    if open_score not in JUDGED and options.judge and not options.judge_stages:
        raise BadInput(f"--judge is not used with --open-score={open_score}; expected relative or within_two")
    return ScoringSettings(
        dialect=options.dialect,
        boxes=BoxForm(options.box_space, options.box_order),
        reading=options.reading,
        with_thinking=options.with_thinking,
        open_score=open_score,
        unequal_counts=options.unequal_counts,
        missing=options.missing,
    )


def _read_files(options: argparse.Namespace, collection: VqaCollection, chosen: Sequence[Record]) -> list[ReplyFile]:
    names = name_models(options.replies)
    if BASELINE in names:
        raise BadInput(f"{options.replies[names.index(BASELINE)]}: a row of the tables has this name; rename the file")
    known, ids = {record.id for record in collection.records}, {record.id: None for record in chosen}
    return [
        read_replies(
            path,
            name=name,
            chosen=ids.keys(),
            known=known,
            missing=options.missing,
            set_aside=collection.set_aside_ids,
            most_unknown=collection.num_unnamed,
        )
        for path, name in zip(options.replies, names, strict=True)
    ]


def _make_judge(options: argparse.Namespace) -> Judge | None:
    if not options.judge:
        given = [name for name in ("base_url", "key_variable", "max_tokens") if getattr(options, name) is not None]
        if given or options.judge_stages:
            flag = f"--{given[0].replace('_', '-')}" if given else "--judge-stages"
            raise BadInput(f"{flag} is accepted only with --judge MODEL")
        return None
    address = {name: getattr(options, name) for name in ("base_url", "key_variable")}
    endpoint = Endpoint(options.judge, **{name: value for name, value in address.items() if value is not None})
    return Judge(endpoint, options.out / LEDGER_FOLDER, cap=options.max_tokens, concurrency=options.concurrency)


def _score(
    file: ReplyFile,
    records: Sequence[Record],
    settings: ScoringSettings,
    judge: Judge | None,
    options: argparse.Namespace,
) -> list[ReplyScore]:
    """Score one model's replies, with the judge if there is one."""
    if judge is None:
        return score_all(records, file.replies, settings)
    is_used = settings.open_score in JUDGED
    judged = judge_open_answers(records, file.replies, settings, judge) if is_used else {}
    scores = score_all(records, file.replies, settings, judged=judged)
    return judge_all_stages(records, file.replies, scores, settings, judge) if options.judge_stages else scores


def _describe_missing(file: ReplyFile, chosen: Sequence[Record]) -> str:
    absent = len(chosen) - len(file.replies)
    parts = [f"{absent} of {len(chosen)} records have no reply"] if absent else []
    parts += [f"{file.num_unused} replies are to records of other splits and were not used"] if file.num_unused else []
    counts = {
        "are to records that were set aside": file.num_set_aside,
        "have the id of no record that can be read": file.num_unknown,
    }
    parts += [f"{count} replies {what} and were not used" for what, count in counts.items() if count]
    return f"{file.name}: {'; '.join(parts)}." if parts else ""


def _score_perturbed(
    options: argparse.Namespace,
    collection: VqaCollection,
    chosen: Sequence[Record],
    results: Results,
    settings: ScoringSettings,
) -> Table:
    model = next(name for name in results.figures if name != BASELINE)
    source = read_source(options.perturbed_records)
    if source != digest_file(collection.path)[1]:
        raise BadInput(f"{options.perturbed_records}: not made of {collection.path} as it is now; run `perturb` again")
    rounds = []
    for number, path in enumerate(options.perturbed, start=1):
        records = read_vqa_records(name_round(options.perturbed_records, number)).records
        ids = {record.id: None for record in records}
        if set(ids) != {record.id for record in chosen if record.kind in PERTURBED_KINDS}:
            raise BadInput(
                f"{name_round(options.perturbed_records, number)}: other records than the closed and single-choice "
                f"ones of split {options.split}; write them with `perturb` from the same RECORDS and --split"
            )
        file = read_replies(path, name=path.stem, chosen=ids.keys(), known=ids.keys(), missing=options.missing)
        rounds.append((records, file.replies))
    how: dict[str, Any] = {"num_resamples": options.num_resamples, "seed": options.seed}
    figures = score_rounds(rounds, settings, **how)
    return tabulate_rounds(figures, results.figures[model], model=model, std=options.perturbation_std)


def _describe(
    results: Results, collection: VqaCollection, files: Sequence[ReplyFile], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the content of metrics.json."""
    document = to_json(results)
    for file in files:
        document["models"][file.name] |= {"file": _identify(file.path), "num_unused": file.num_unused}
        document["models"][file.name] |= {"num_set_aside": file.num_set_aside, "num_unknown": file.num_unknown}
    document["records"] = {**_identify(collection.path), "split": options.split}
    return document


def _identify(path: Path) -> dict[str, str]:
    return {"path": as_text(path), "sha256": digest_file(path)[1]}


def _write_scores(path: Path, models: Mapping[str, Sequence[ReplyScore]]) -> None:
    """Write a line for each reply of each model: its scores, answer and boxes, and the problems of its form."""
    with writing_whole(path) as file:
        for name, scores in models.items():
            for score in scores:
                line = {
                    "model": name,
                    "id": score.id,
                    **{key: getattr(score, key) for key in ("a_score", "v_score", "grounding", "format")},
                    "answer": score.answer,
                    "boxes": [{"label": region.label, "box": region.corners} for region in score.boxes],
                    "problems": score.problems,
                }
                for key in ("stages", "rated_stages"):
                    if not np.isnan(getattr(score, key)).all():
                        line[key] = dict(zip(STAGE_NAMES, getattr(score, key), strict=True))
                if score.judged is not None:
                    line["judged"] = score.judged
                file.write(encode(line))


def _picture_reader(root: Path) -> Callable[[str], str | None]:
    """Return a function from image paths, relative to `root`, to data URIs; None where the image cannot be read."""
    locator = ImageLocator(root, require_images=True)

    def read(path: str) -> str | None:
        try:
            content = read_file(Path(locator.locate(path)), max_bytes=most_bytes(MAX_PIXELS))
            picture = decode_picture(content, name=path, max_pixels=MAX_PIXELS)
        except (BadInput, OSError):
            return None
        return write_picture(np.asarray(picture.convert("RGB")))

    return read
