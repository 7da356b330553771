"""Scores of any model's replies to questions: `score_replies`, its tables, its folder of results, and judges."""

import collections
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from stepcot_jax import __version__
from stepcot_jax.annotate.llm.judge import Exchange, Judge, judge_answers, judge_stages, label_steps, make_exchange
from stepcot_jax.box import UnequalCounts
from stepcot_jax.data.images.image_decoding import MAX_PIXELS, decode_picture, most_bytes
from stepcot_jax.data.images.image_files import read_picture
from stepcot_jax.data.questions.record_files import VqaCollection
from stepcot_jax.data.questions.reply_files import ReplyFile, read_replies
from stepcot_jax.evaluation.box_forms import BoxForm, find_better_form, keep_smallest
from stepcot_jax.evaluation.replies import (
    BASELINE,
    CHECKED_STAGES,
    JUDGED,
    OpenScore,
    Reading,
    ReplyScore,
    Results,
    ScoringSettings,
    choose_dialect,
    encode,
    read,
    read_ended,
    summarise,
    to_json,
)
from stepcot_jax.evaluation.reply_page import MOST_SHOWN, judge, make_tables, write_replies
from stepcot_jax.evaluation.scored_baseline import score_baseline
from stepcot_jax.evaluation.stage_claims import LABEL_VALUES
from stepcot_jax.evaluation.unread import describe_unread, find_doubts
from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, write_whole, writing_whole
from stepcot_jax.pages.pictures import write_picture
from stepcot_jax.pages.sheets import Table, write_table
from stepcot_jax.pages.shell import tabulate, write_report
from stepcot_jax.reading.scored_file import as_seen, choose_split, score_file
from stepcot_jax.reasoning.dialects import AUTO, DIALECTS
from stepcot_jax.reasoning.plain_replies import PLAIN
from stepcot_jax.reasoning.replies import Judged, Missing
from stepcot_jax.record import STAGE_NAMES, Record

TABLE_NAMES = ("table", "differences", "stages", "rated_stages", "perturbed", "rules", "rules_agreement", "rules_made")
"""Names of all tables that an evaluation may write."""

_NUM_TESTED = 1000  # replies that are tested for another form of boxes
_MOST_TESTED = 2_000_000  # characters of these
_NUM_REASONS = 5


def to_text(table: Table, *, by_row: bool = False) -> str:
    """Format a table for a terminal: a line for each column of the table and a column for each row, or `by_row`."""
    rows = [[column.heading for column in table.columns], *table.show()]
    lines = rows if by_row else list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([table.title, "", *text, "", *(f"- {note}" for note in table.notes)]) + "\n"


# Ask a language model to judge open answers and stages, as GEMeX-RMCoT and MEDSAGE do.


_Score = TypeVar("_Score")


def judge_all_stages(
    records: Sequence[Record], file: ReplyFile, scores: Sequence[ReplyScore], settings: ScoringSettings, judge: Judge
) -> list[ReplyScore]:
    """Return the scores with the judge's stage scores from 1 to 5, and its labels where a record has no facts."""
    exchanges = [exchange for exchange in _exchange(records, file, settings) if exchange.stages]
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


def _exchange(records: Sequence[Record], file: ReplyFile, settings: ScoringSettings) -> Iterator[Exchange]:
    """Yield the replies whose answer can be read under `settings`."""
    for record in records:
        finish = file.finishes.get(record.id, "")
        reply = read_ended(file.replies.get(record.id, ""), record, settings, finish=finish)
        if reply.answer is None or (settings.reading == "strict" and not reply.counts):
            continue
        yield make_exchange(record, reply)


def _ask(
    ask: Callable[[Sequence[Exchange], Judge], list[_Score | None]], exchanges: Iterable[Exchange], judge: Judge
) -> dict[str, _Score]:
    asked = list(exchanges)
    pairs = zip(asked, ask(asked, judge) if asked else [], strict=True)
    return {exchange.id: score for exchange, score in pairs if score is not None}


# Score models, and write what was found.


@dataclasses.dataclass(frozen=True)
class ReplyScores:
    """Scores of the replies of one or several models to the same questions.

    Attributes:
      results: figures by model with 95 % intervals by patient, the baseline's among them, and counts.
      scores: by model a `ReplyScore` for each record; a figure of NaN is unscored.
      records: the questions that were scored, in that order.
      root: folder of their images.
      dialects: by model, the dialect that its replies were read in.
      doubt: says of which models most answers, or boxes, cannot be read; "" if of none.
    """

    results: Results
    scores: Mapping[str, Sequence[ReplyScore]]
    records: Sequence[Record]
    root: Path
    dialects: Mapping[str, str]
    doubt: str

    @property
    def dialect(self) -> str:
        """The dialects that the replies were read in."""
        return self.results.settings.dialect

    @property
    def figures(self) -> dict[str, Any]:
        """Every figure with its interval, as in metrics.json: by model, figure and kind of question."""
        return {name: model["figures"] for name, model in to_json(self.results)["models"].items()}

    def table(self) -> str:
        """Return unread answers and boxes, and the tables: A by kind, V, well formed, with intervals by patient."""
        tables = [to_text(table) for table in make_tables(self.results) if table.name in _PRINTED]
        return "\n".join([*describe_unread(self.results.unread), "", *tables])

    def write(
        self,
        folder: str | os.PathLike[str],
        *,
        title: str = "Replies",
        document: Mapping[str, Any] | None = None,
        further: Sequence[Table] = (),
        with_pictures: bool = True,
        num_shown: int = MOST_SHOWN,
    ) -> str:
        """Write metrics.json, scores.jsonl, index.html and the tables; return them as lines of text.

        Args:
          folder: made if it is missing.
          title: of the page.
          document: content of metrics.json; None for the figures alone.
          further: tables besides those of the figures.
          with_pictures: whether the page shows the images.
          num_shown: most replies on the page.

        Raises:
          BadInput: the folder cannot be written.
        """
        folder = Path(folder)
        make_workdir(folder)
        tables = [*make_tables(self.results), *further]
        for name in TABLE_NAMES:  # of an earlier evaluation, which may have had others
            for path in (folder / f"{name}.{ending}" for ending in ("csv", "md", "tex", "html", "jsonl")):
                path.unlink(missing_ok=True)
        names = [name for table in tables for name in write_table(folder, table)]
        content = to_json(self.results) if document is None else document
        content = {"stepcot_jax": __version__, **content}
        write_whole(folder / "metrics.json", msgspec.json.format(encode(content)) + b"\n")
        _write_scores(folder / "scores.jsonl", self.scores)
        replies, unread = write_replies(
            self.records,
            self.scores,
            read_picture=functools.partial(_read_picture, self.root) if with_pictures else None,
            num_shown=num_shown,
        )
        sections = [*judge(self.results, self.results.differences.get(BASELINE, {})), *map(tabulate, tables), replies]
        about = describe_unread(self.results.unread)
        page = write_report(title=title, about=about, sections=sections, writer="stepcot evaluate_replies").encode()
        write_whole(folder / "index.html", page)
        lines = (
            [f"{unread} images could not be read below {self.root}; the page shows boxes without them"]
            if unread
            else []
        )
        lines.append(
            f"in {folder}: metrics.json, scores.jsonl, index.html ({len(page) / 1e6:.1f} MB), {', '.join(names)}"
        )
        return "\n".join(lines) + "\n"


_PRINTED = ("table", "stages", "perturbed")


def score_replies(
    records: Sequence[Record],
    replies: str | os.PathLike[str] | Mapping[str, str],
    *,
    dialect: str = AUTO,
    split: str = "test",
    reading: Reading = "strict",
    with_thinking: bool = True,
    missing: Missing = "wrong",
    open_score: OpenScore = "exact",
    unequal_counts: UnequalCounts = "penalise",
    num_resamples: int = 1000,
    seed: int = 0,
) -> ReplyScores:
    """Score a model's replies to questions: answers (A), boxes (V) and form, with intervals by patient.

    Args:
      records: questions, such as `load_records(folder)`; those of split "train" make the baseline.
      replies: JSON lines with `id`, `reply` and optionally `finish_reason`, or the texts by record id.
      dialect: how replies are written, of `DIALECTS`; "auto" for the first in which half of them are well formed, else
        "free".
      split: records to score: "train", "val", "test" or "all".
      reading: "strict" gives nothing for a reply that is not well formed, "parts" what can be read of it.
      with_thinking: whether a reply needs a thinking part.
      missing: a record without a reply counts as "wrong", is left out ("skip"), or raises ("stop").
      open_score: "exact" or "token_f1".
      unequal_counts: V of a reply with another number of boxes than the record: "penalise", "zero" or "matched".
      num_resamples: of the bootstrap by patient.
      seed: of the bootstrap.

    Raises:
      BadInput: no record is of the split, or a reply is of no record, or none can be used.
    """
    if open_score in JUDGED:
        raise BadInput(f"open_score: {open_score!r} needs a judge; use stepcot evaluate_replies --judge")
    chosen = choose_split(records, split, where="records")
    ids, known = {record.id: None for record in chosen}, {record.id for record in records}
    if isinstance(replies, Mapping):
        if strangers := sorted(replies.keys() - known):
            raise BadInput(f"replies: {strangers[0][:80]!r} is not the id of a record")
        texts = {name: replies[name] for name in ids if name in replies}
        file = ReplyFile("replies", Path("replies"), texts, num_unused=len(replies) - len(texts))
    else:
        path = find_path(replies, "replies")
        file = read_replies(path, name=path.stem, chosen=ids.keys(), known=known, missing=missing)
    settings = ScoringSettings(
        dialect=dialect,
        reading=reading,
        with_thinking=with_thinking,
        open_score=open_score,
        unequal_counts=unequal_counts,
        missing=missing,
    )
    root = getattr(records, "root", Path())
    return score_files([file], chosen, records, settings, root=root, num_resamples=num_resamples, seed=seed)


def score_files(
    files: Sequence[ReplyFile],
    chosen: Sequence[Record],
    records: Sequence[Record],
    settings: ScoringSettings,
    *,
    root: Path,
    num_resamples: int,
    seed: int,
    judge: Judge | None = None,
    rates_stages: bool = False,
) -> ReplyScores:
    """Score models on the chosen records, beside a baseline made of the training ones, with a judge if there is one."""
    _refuse_small_boxes(chosen)
    of_files = {file.name: settle(settings, file) for file in files}
    scores = {file.name: _score(file, chosen, of_files[file.name], judge, rates_stages) for file in files}
    of_baseline = PLAIN if settings.dialect == PLAIN else DIALECTS[0]
    baseline, remark = score_baseline(records, chosen, dataclasses.replace(settings, dialect=of_baseline, boxes=None))
    notes = [note for note in (remark, *(describe_missing(file, chosen) for file in files)) if note]
    for file in files:
        if settings.dialect == AUTO:
            notes.append(f"{file.name}: read as dialect {of_files[file.name].dialect} (--dialect=auto).")
        notes += _describe_boxes(file, as_seen(chosen, file), scores[file.name], of_files[file.name])
    if judge is not None and judge.unusable:
        counts = "; ".join(f"{number} {reason}" for reason, number in judge.unusable.most_common())
        notes.append(f"Replies of the judge without a score: {counts}.")
    dialects = {name: of_file.dialect for name, of_file in of_files.items()}
    settings = dataclasses.replace(settings, dialect=", ".join(dict.fromkeys(dialects.values())))
    how: dict[str, Any] = {"num_resamples": num_resamples, "seed": seed, "notes": notes}
    results = summarise(chosen, scores, settings, baseline=baseline, **how)
    return ReplyScores(results, scores, chosen, root, dialects, find_doubts(results.unread, dialects))


def read_own_replies(
    path: Path, name: str, chosen: Sequence[Record], collection: VqaCollection, *, missing: Missing = "wrong"
) -> ReplyFile:
    """Read a model's replies to the chosen records of a collection, some of which may have been set aside."""
    known, ids = {record.id for record in collection.records}, dict.fromkeys(record.id for record in chosen)
    aside: dict[str, Any] = {"set_aside": collection.set_aside_ids, "most_unknown": collection.num_unnamed}
    return read_replies(path, name=name, chosen=ids, known=known, missing=missing, **aside)


def settle(settings: ScoringSettings, file: ReplyFile) -> ScoringSettings:
    """Return the settings with the dialect of a file's replies in place of "auto"."""
    if settings.dialect != AUTO:
        return settings
    ended = [text for name, text in file.replies.items() if file.finishes.get(name, "stop") == "stop"]
    return dataclasses.replace(settings, dialect=choose_dialect(ended or file.replies.values(), settings))


def _refuse_small_boxes(records: Sequence[Record]) -> None:
    for record in records:
        for box in record.references:
            if min(box.size) < 1:
                raise BadInput(
                    f"record {record.id[:80]!r}, references: {list(box.corners)} is less than a pixel wide or high; "
                    "expected corners in pixels of the picture, not shares of its sides"
                )


def _describe_boxes(
    file: ReplyFile, records: Sequence[Record], scores: Sequence[ReplyScore], settings: ScoringSettings
) -> Iterator[str]:
    if num_turned := sum(score.num_turned for score in scores):
        yield f"{file.name}: {num_turned} boxes have swapped corners, which were sorted."
    located = [record for record in records if record.references and record.id in file.replies][:_NUM_TESTED]
    located = keep_smallest(located, lambda record: len(file.replies[record.id]), most=_MOST_TESTED)
    replies = [read(file.replies[record.id], settings, record, in_any_space=True) for record in located]
    if note := find_better_form(replies, located, settings.boxes or BoxForm()):
        yield f"{file.name}: {note}."


def _score(
    file: ReplyFile, records: Sequence[Record], settings: ScoringSettings, judge: Judge | None, rates_stages: bool
) -> list[ReplyScore]:
    if judge is None:
        return score_file(records, file, settings)
    judged: dict[str, Judged] = {}
    if settings.open_score in JUDGED:  # open answers that could be read, from 1 to 10
        open_records = [record for record in records if record.kind == "open"]
        judged = _ask(judge_answers, _exchange(open_records, file, settings), judge)
    scores = score_file(records, file, settings, judged=judged)
    return judge_all_stages(records, file, scores, settings, judge) if rates_stages else scores


def describe_missing(file: ReplyFile, chosen: Sequence[Record]) -> str:
    """Return how many records have no reply and why, and which replies were not used; "" for none."""
    absent, failures = len(chosen) - len(file.replies), collections.Counter(file.failures)
    why = ", ".join(f"{reason} {number}" for reason, number in failures.most_common(_NUM_REASONS))
    failed = f" ({failures.total()} failed: {why})" if failures else ""
    parts = [f"{absent} of {len(chosen)} records have no reply{failed}"] if absent else []
    parts += [f"{file.num_unused} replies are to records of other splits and were not used"] if file.num_unused else []
    counts = {
        "are to records that were set aside": file.num_set_aside,
        "have the id of no record that can be read": file.num_unknown,
    }
    parts += [f"{count} replies {what} and were not used" for what, count in counts.items() if count]
    return f"{file.name}: {'; '.join(parts)}." if parts else ""


_WRITTEN = (
    *("id", "a_score", "v_score", "grounding", "format"),
    *("answer", "boxes", "problems", "unread_answer", "unread_boxes"),
)


def _write_scores(path: Path, models: Mapping[str, Sequence[ReplyScore]]) -> None:
    with writing_whole(path) as file:
        for name, scores in models.items():
            for score in scores:
                line = {"model": name} | {key: getattr(score, key) for key in _WRITTEN}
                line["boxes"] = [{"label": region.label, "box": region.corners} for region in score.boxes]
                for key in ("stages", "rated_stages"):
                    if not np.isnan(getattr(score, key)).all():
                        line[key] = dict(zip(STAGE_NAMES, getattr(score, key), strict=True))
                if score.judged is not None:
                    line["judged"] = score.judged
                file.write(encode(line))


def _read_picture(root: Path, path: str) -> str | None:
    """Return an image as data URI, by its path relative to `root`; None where it cannot be read."""
    try:
        content = read_picture(root, path, max_bytes=most_bytes(MAX_PIXELS))
        picture = decode_picture(content, name=path, max_pixels=MAX_PIXELS)
    except BadInput:
        return None
    return write_picture(np.asarray(picture.convert("RGB")))
