"""The page's sections of a policy's run: figures of each phase, curves by epoch, and replies to look through."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.data.questions.reply_files import read_replies
from stepcot_jax.evaluation.replies import BASELINE, Key, ReplyScore, ScoringSettings, score_all, summarise
from stepcot_jax.evaluation.reply_page import judge, make_tables, write_replies
from stepcot_jax.evaluation.unread import count_unread, describe_unread
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.own_folder import load
from stepcot_jax.host.ranges import Interval
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.pages.figures import draw_lines
from stepcot_jax.pages.pictures import write_picture
from stepcot_jax.pages.shell import Section, tabulate
from stepcot_jax.reading.finished import Entry, Report, read_metrics
from stepcot_jax.record import Record
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.settings import Settings, read_settings
from stepcot_jax.run.stored import STATISTICS_FILE, TEST_RECORDS, check_sealed
from stepcot_jax.run.task import REPORT
from stepcot_jax.tools.report.sections import find_lines, make_curves
from stepcot_jax.training.log import METRICS_FILE

_PHASES = ("sft", "grpo", "dpo")
_UNCHARTED = ("kind", "step", "epoch", "cases_per_second")
_MOST_LINES = 6
_EXPECTED = "expected the workdir of a finished run of the job sft or grpo"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedPolicy:
    """The results of a finished run of a policy, read from its workdir."""

    workdir: pathlib.Path
    settings: Settings
    entries: Sequence[Entry]
    report: Report
    records: Sequence[Record]  # of the test split; boxes are in pixels of the picture that the policy sees
    scoring: ScoringSettings
    scores: Mapping[str, Sequence[ReplyScore]]  # by phase, of the test split's replies
    baseline: Mapping[Key, Interval]  # of the majority answer
    baseline_less_first: Mapping[Key, Interval]  # its figures less those of the first phase


def read_policy_run(workdir: pathlib.Path) -> FinishedPolicy:
    """Load a workdir that `stepcot_jax.main` wrote for a policy, and score its replies.

    Open questions are scored by exact text, so that no judge is asked.
    """
    settings = read_settings(workdir / "settings.json")
    check_sealed(workdir)
    report = load(workdir / REPORT, Report)
    records = read_vqa_records(workdir / TEST_RECORDS).records
    ids, vqa = {record.id: None for record in records}.keys(), settings.vqa
    scoring = ScoringSettings(dialect=vqa.dialect, with_thinking=vqa.with_thinking)
    scores = {}
    for phase in _PHASES:
        path = workdir / "replies" / f"{phase}_test.jsonl"
        if path.exists():
            file = read_replies(path, name=phase, chosen=ids, known=ids, missing="stop")
            scores[phase] = score_all(records, file.replies, scoring)
    if not scores:
        raise BadInput(f"{workdir / 'replies'}: no replies to the test split; {_EXPECTED}")
    with_intervals = settings.evaluation.num_resamples > 0
    baseline, less_first = _read_baseline(workdir / STATISTICS_FILE, with_intervals=with_intervals)
    return FinishedPolicy(
        workdir=workdir,
        settings=settings,
        entries=read_metrics(workdir / METRICS_FILE),
        report=report,
        records=records,
        scoring=scoring,
        scores=scores,
        baseline=baseline,
        baseline_less_first=less_first,
    )


class _Model(msgspec.Struct):
    figures: dict[str, dict[str, dict[str, float | None]]] = {}  # None where undefined
    less_first: dict[str, dict[str, dict[str, float | None]]] = {}


class _Statistics(msgspec.Struct):
    models: dict[str, _Model] = {}


def _read_baseline(path: pathlib.Path, *, with_intervals: bool) -> tuple[dict[Key, Interval], dict[Key, Interval]]:
    """Return the baseline's figures, and these less those of the first phase."""
    models = load(path, _Statistics).models if path.exists() else {}
    parts = ("value", "low", "high", "undefined") if with_intervals else ("value", "undefined")

    def read(nested: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> dict[Key, Interval]:
        intervals = {}
        for name, groups in nested.items():
            for group, figure in groups.items():
                known = {part: figure.get(part) for part in parts}
                numbers = {part: math.nan if number is None else number for part, number in known.items()}
                intervals[name, group] = Interval(**numbers)
        return intervals

    model = models.get(BASELINE, _Model())
    return read(model.figures), read(model.less_first)


def list_reply_sections(
    run: FinishedPolicy, *, num_cases: int, with_data: bool, terminal: Terminal, num_resamples: int = 1000
) -> Iterator[Section]:
    """Yield the sections of a policy's page."""
    terminal.say(f"bootstrap: {num_resamples} resamples of the test patients")
    results = summarise(run.records, run.scores, run.scoring, num_resamples=num_resamples)
    if run.baseline:
        results = dataclasses.replace(results, figures={BASELINE: run.baseline, **results.figures})
    yield from judge(results, run.baseline_less_first)
    yield from map(tabulate, make_tables(results))
    yield write_charts(run.entries)
    section, _ = write_replies(
        run.records if with_data else (),
        {phase: scores if with_data else () for phase, scores in run.scores.items()},
        read_picture=_picture_reader(run, terminal) if with_data else None,
        num_shown=num_cases,
    )
    yield section


def describe_replies(run: FinishedPolicy) -> list[str]:
    """Return what the policy was trained on, which weights it kept, and the run's notes."""
    vqa = run.settings.vqa
    source = {"phantom": "drawn phantoms", "given": "records that a caller passed to sc.fit"}.get(vqa.source, vqa.root)
    lines = [f"A policy trained on {source}, replies in the dialect {vqa.dialect}; figures are of the test split."]
    lines += describe_unread({phase: count_unread(scores) for phase, scores in run.scores.items()})
    if best := run.report.best:
        updates = ", ".join(f"{name.upper()} at update {entry.step}" for name, entry in best.items())
        lines.append(f"Best weights on validation: {updates}.")
    return [*lines, *run.report.notes]


def write_charts(entries: Sequence[Entry]) -> Section:
    """Draw every number that the run logged, means by epoch: validation, rewards, losses, and one chart for others."""
    validated, trained = (_list_names(entries, kind) for kind in ("val", "train"))
    rewards, losses = ([name for name in trained if part in name] for part in ("reward", "loss"))
    others = [name for name in trained if name not in (*rewards, *losses)]
    groups = [("Validation", "val", validated), ("Rewards in training", "train", rewards), ("Loss", "train", losses)]
    groups += [(name.replace("_", " ").replace("/", ", "), "train", [name]) for name in others]
    charts = []
    for title, kind, names in groups:
        for number, some in enumerate(
            names[start : start + _MOST_LINES] for start in range(0, len(names), _MOST_LINES)
        ):
            lines = find_lines(entries, kind, {name: name for name in some})
            label = title if not number else f"{title}, continued ({number})"
            charts.append(draw_lines(lines, title=label, x_label="epoch", y_label=""))
    return make_curves(charts)


def _list_names(entries: Sequence[Entry], kind: str) -> list[str]:
    """Return the names of the finite numbers of one kind of entry, in the order of their first appearance."""
    names: dict[str, None] = {}
    for entry in entries:
        if entry["kind"] == kind:
            numbers = (key for key, value in entry.items() if isinstance(value, int | float) and key not in _UNCHARTED)
            names |= dict.fromkeys(numbers)
    return list(names)


def _picture_reader(run: FinishedPolicy, terminal: Terminal) -> Callable[[str], str | None]:
    """Return a function from image paths of test records to data URIs of the pictures that the policy saw.

    It returns None for a run of `sc.fit`, whose pictures only its caller has.
    """
    if run.settings.vqa.source == "given":
        return lambda _: None
    watch = functools.partial(terminal.watch, description="loading the test pictures")
    data = load_vqa_dataset(run.settings, splits=("test",), progress=watch)
    indices = {record.image: int(index) for record, index in zip(data.records, data.image_of, strict=True)}

    def read(path: str) -> str | None:
        return write_picture(data.load_images([indices[path]])[0]) if path in indices else None

    return read
