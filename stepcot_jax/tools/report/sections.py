"""Sections of the page: calibration, consistency, corrections, operating points and settings."""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from markupsafe import Markup

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation import consistency
from stepcot_jax.evaluation.calibration import Reliability, step_reliability
from stepcot_jax.evaluation.chains import BY_ANSWER, step_cases, step_statistics
from stepcot_jax.evaluation.consistency import read_pairs
from stepcot_jax.evaluation.statistics import count_once
from stepcot_jax.host.own_folder import load
from stepcot_jax.pages import sheets, shell
from stepcot_jax.pages.figures import Line, draw_lines, draw_reliability
from stepcot_jax.pages.sheets import Table, columns, heads
from stepcot_jax.pages.shell import Section, make_environment, tabulate
from stepcot_jax.reading.finished import Entry, FinishedRun, Report, tabulate_points
from stepcot_jax.run.settings import Settings
from stepcot_jax.run.stored import PAIRS_FILE, STATISTICS_FILE

_TEMPLATES = make_environment(pathlib.Path(__file__).parent)


def render(name: str, **values: Any) -> Markup:
    """Render one of this folder's templates."""
    return shell.render(_TEMPLATES, name, **values)


_VALIDATED = "Mean accuracy of the steps on validation"
_MEASURES = {
    "mean_accuracy_own_and_given": f"{_VALIDATED}, mean of own answers and true ones given",
    "mean_accuracy": _VALIDATED,
}
"""Titles of the scores that keep the best weights. A run logs one of them, and "mean_accuracy" at the end."""


def write_curves(entries: Sequence[Entry]) -> Section:
    """Draw by epoch the validation score, the loss, and the parts of a student's loss."""
    ends = ("/total", *(f"/{measure}" for measure in _MEASURES))
    keys = [key for entry in entries for key in entry if key.endswith(ends)]
    names = dict.fromkeys(key.partition("/")[0] for key in keys)
    measure = next((name for name in _MEASURES if any(key.endswith(f"/{name}") for key in keys)), "mean_accuracy")
    scores = find_lines(entries, "val", {name: f"{name}/{measure}" for name in names})
    totals = {name: f"{name}/total" for name in names}
    if any("teacher/plain" in entry for entry in entries):  # the teacher's total has the plain network's loss in it
        totals |= {"teacher": "teacher/hard_label", "plain": "teacher/plain"}
    losses = find_lines(entries, "train", totals)
    charts = [
        (_MEASURES[measure], "accuracy", scores),
        ("Training loss, mean of the epoch's logged updates", "loss", losses),
    ]
    parts = find_lines(entries, "train", _name_parts(entries))
    if len(parts) > 1:
        charts.append(("Parts of the student's loss, before their weights", "loss", parts))
    return make_curves(
        draw_lines(lines, title=title, x_label="epoch", y_label=y_label) for title, y_label, lines in charts
    )


_NO_PARTS = ("total", "gradient_norm", "alignment_weight")
_PART_WORDS = {"hard_label": "answers", "soft_label": "teacher's answers"}


def _name_parts(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the keys of the parts of the student's loss in a log, by their words."""
    split = ((key, key.partition("/")) for entry in entries if entry["kind"] == "train" for key in entry)
    parts = {key: part for key, (network, _, part) in split if network == "student" and "/" not in part}
    return {_PART_WORDS.get(part, part.replace("_", " ")): key for key, part in parts.items() if part not in _NO_PARTS}


def make_curves(charts: Iterable[Markup]) -> Section:
    """Return the section of learning curves."""
    body = Markup('<div class="charts">{}</div>').format(Markup("").join(charts))
    return Section("curves", "Learning curves", "", body)


def find_lines(entries: Sequence[Entry], kind: str, keys: Mapping[str, str]) -> list[Line]:
    """Return a line for each key that was logged: epochs from 1 and the mean of each epoch."""
    lines: list[Line] = []
    for name, key in keys.items():
        numbers = [(entry["epoch"], entry[key]) for entry in entries if entry["kind"] == kind and key in entry]
        numbers.sort(key=lambda pair: pair[0])
        points = []
        for epoch, group in itertools.groupby(numbers, key=lambda pair: pair[0]):
            values = [float(value) if isinstance(value, int | float) else math.nan for _, value in group]
            points.append((epoch + 1.0, sum(values) / len(values)))
        if points:
            lines.append((name, points))
    return lines


_NUM_RULES_SHOWN = 12
_BROKEN = heads("never together", "#chains")


def write_calibration_section(run: FinishedRun) -> Section:
    """Write, for every network, a reliability diagram for each step and a table of errors and answer sets."""
    lead = (
        "Accuracy against confidence, after temperature scaling with one temperature for each step, fitted on "
        f"validation. Answer sets aim to hold the true answer in {run.calibration.describe_coverage()}."
    )
    calibrated = step_reliability(run.split.predictions, run.chain, calibration=run.calibration)
    models = [_write_model(run, model, steps) for model, steps in calibrated.items()]
    return Section("confidence", "Calibration", lead, Markup("").join(models))


_CALIBRATION = (
    *heads("step", "#cases", "%ECE"),
    *columns("number", "Brier", "NLL", "temperature", digits=2),
    *columns("percent", "ECE before"),
    *columns("number", "NLL before", digits=2),
    *columns("percent", "set holds truth"),
    *columns("number", "mean set size", digits=2),
)
_COVERAGE = heads("step", "true answer", "#cases", "%set holds truth")


def fold(title: str, body: Markup) -> Markup:
    """Return a part of a section that a click opens."""
    return Markup("<details><summary>{}</summary>{}</details>").format(title, body)


def _write_model(run: FinishedRun, model: str, calibrated: tuple[Reliability, ...]) -> Markup:
    diagrams, rows, by_answer = [], list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    all_cases = step_cases(run.split.predictions, run.chain, model=model, calibration=run.calibration)
    temperatures = run.calibration.temperatures[model]
    for step, found, cases, temperature in zip(run.chain.steps, calibrated, all_cases, temperatures, strict=True):
        bins = [reliability for reliability in found.bins if reliability.num_cases]
        diagrams.append(
            draw_reliability(
                confidences=[reliability.confidence for reliability in bins],
                accuracies=[reliability.accuracy for reliability in bins],
                counts=[reliability.num_cases for reliability in bins],
                title=step.name,
                model=model,
            )
        )
        own = {name: values[0] for name, values in step_statistics(count_once(len(cases.labels)), cases).items()}
        measured = (own["ece"], own["nll"], own["answer_set_coverage"], own["answer_set_size"])
        rows.append((step.name, found.num_cases, found.ece, found.brier, found.nll, temperature, *measured))
        for label, (option, held) in enumerate(zip(step.options, own[BY_ANSWER], strict=True)):
            number = int((cases.labels == label).sum())
            by_answer += [(step.name, option, number, float(held))] if number else []
    table = Table("calibration", f"Calibration ({model})", _CALIBRATION, tuple(rows))
    title = "How often the answer set holds the truth, by true answer"
    coverage = tabulate(Table("coverage", title, _COVERAGE, tuple(by_answer))).body
    body = Markup('<div class="charts small">{}</div>{}{}')
    return fold(model.capitalize(), body.format(Markup("").join(diagrams), tabulate(table).body, fold(title, coverage)))


@dataclasses.dataclass(frozen=True)
class Plausibility:
    """The rules that make a chain of answers inconsistent."""

    chain: Chain
    rules: consistency.Rules  # pairs of answers that contradict each other
    source: str  # a sentence about the origin of the rules

    @classmethod
    def of_run(cls, run: FinishedRun) -> "Plausibility":
        """Return the given rules, and those learned from training chains."""
        sources = [
            "two answers were never together if no training chain has both, though "
            f"{consistency.MIN_EXPECTED:.0f} would by chance"
        ]
        clear = consistency.find_clear_chest(run.chain)
        if clear is not None:
            sources.insert(0, f"“{run.chain.steps[0].options[clear.label]}” settles every later step")
        rules = consistency.make_rules(run.chain, counts=read_pairs(run.workdir / PAIRS_FILE, run.chain))
        source = f"Rules: {'; '.join(sources)}."
        return cls(run.chain, rules, " ".join([source, *(f"Not applied: {note}." for note in rules.notes)]))

    def broken_rules(self, answers: Int[np.ndarray, "case step"]) -> list[str]:
        """Return the rules that each case's answers break, in words; "" for none."""
        return ["; ".join(broken) for broken in consistency.list_broken(answers, self.rules, self.chain)]

    def write_section(self, run: FinishedRun) -> Section:
        """Write the share of chains that break a rule, of the truth and of every network."""
        answers = {"truth": run.split.predictions.labels}
        answers |= {model: run.answers(model) for model in run.split.predictions.logits}
        counts: list[tuple[sheets.Entry, ...]] = []
        folded = Markup()
        for name, chains in answers.items():
            counts.append((name, consistency.share_inconsistent(chains, self.rules), len(chains)))
            broken = list(consistency.count_broken(chains, self.rules, self.chain).items())
            more = len(broken) - _NUM_RULES_SHOWN
            notes = (f"and {more} rarer ones",) if more > 0 else ()
            title = f"Which answers ({name})"
            table = Table("broken", title, _BROKEN, tuple(broken[:_NUM_RULES_SHOWN]), notes)
            folded += fold(title, tabulate(table).body) if broken else Markup()
        head = heads("chains of", "%never together in training", "#cases")
        table = Table("consistency", "Chains with answers that training never had together", head, tuple(counts))
        return Section("consistency", "Consistency", self.source, tabulate(table).body + folded)


def write_shares(workdir: pathlib.Path, chain: Chain) -> Iterator[Section]:
    """Yield the section of what answers given add for each network that takes them, beside its rivals; or none."""
    measured = load(workdir / STATISTICS_FILE, dict[str, Any]).get("corrections")
    if not measured or not measured["curves"]:
        return
    title = f"Cases with the right {chain.steps[-1].name}, by number of true answers given"
    head = heads("reading", *(f"%{number}" for number in range(chain.num_steps)))
    rows = tuple((name, *curve) for name, curve in measured["curves"].items())
    note = "Each answer is to the question that the reading asks for, if not to a random one; at most 500 test cases."
    body = tabulate(Table("corrections", title, head, rows, (note,))).body
    yield Section("corrections", "Corrections", f"{title}.", body)


def write_operating_section(run: FinishedRun) -> Section:
    """Write the operating points with their figures."""
    lead = (
        "From which probability on is an answer called, against all others of its step? Thresholds: "
        f"{run.operating_points.rule.describe()}. Figures are of the test cases, probabilities as in the calibration "
        "above."
    )
    tables = [tabulate_points(run.operating_points, model) for model in run.split.predictions.logits]
    body = Markup("").join(fold(table.title, tabulate(table).body) for table in tables if table.rows)
    return Section("operating", "Operating points", lead, body)


def write_settings(settings: Settings, report: Report) -> Section:
    """Return the settings of the parts that the run has, by section, and the time that it took."""
    rows, absent = [("run", key, value) for key, value in _describe(settings)], _list_absent(settings)
    for part in (field.name for field in dataclasses.fields(settings)):
        value = getattr(settings, part)
        if dataclasses.is_dataclass(value) and part not in absent:
            rows += [(part, *each) for each in _describe(value)]
    notes = (f"The run took {report.wall_seconds:.0f} s.",) if report.wall_seconds is not None else ()
    table = Table("settings", "Settings", columns("text", "part", "setting", "value"), tuple(rows), notes)
    return Section("settings", "Settings", "", fold("Every setting of the parts of this run", tabulate(table).body))


def _list_absent(settings: Settings) -> set[str]:
    """Return the sections of settings that the job does not read."""
    job, is_policy = settings.trains, settings.trains_policy
    source = settings.vqa.source if is_policy else settings.data.source
    is_read = {
        "phantom": source == "phantom",
        "prompts": not is_policy and settings.reads_prompts,
        "features": settings.image_encoder.is_frozen,
        **{name: name in job.names for name in ("teacher", "student")},
        "baseline": job.name == "baseline",
        "loss": not is_policy and job.name != "own",
        "start": job.name in ("teacher", "distill"),
        **dict.fromkeys(("vqa", "policy"), is_policy),
        **{name: f"{name}.epochs" in job.epochs for name in ("sft", "grpo", "dpo")},
        "rewards": settings.optimising is not None,
        "self_check": is_policy and settings.self_check.enabled,
        "curriculum": is_policy and settings.curriculum.schedule != "none",
    }
    return {name for name, read in is_read.items() if not read}


def _describe(section: Any) -> Iterator[tuple[str, str]]:
    for key, value in vars(section).items():
        if not dataclasses.is_dataclass(value):
            yield key, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
