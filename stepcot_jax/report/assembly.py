"""Assemble the sections of a run's page."""

from collections.abc import Iterator, Mapping

from markupsafe import Markup

from stepcot_jax.evaluation.intervals import ModelIntervals, bootstrap, bootstrap_difference, is_difference
from stepcot_jax.evaluation.predictions import ModelMetrics, evaluate
from stepcot_jax.evaluation.resamples import count_patients
from stepcot_jax.evaluation.summary import MIN_PATIENTS
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.report.case_gathering import Gathered, gather
from stepcot_jax.report.correction_view import write_corrections
from stepcot_jax.report.figures import write_curves
from stepcot_jax.report.finished_run import FinishedRun
from stepcot_jax.report.operating_view import write_operating_section
from stepcot_jax.report.page import Section, render, write_page
from stepcot_jax.report.page_cases import write_cases
from stepcot_jax.report.settings_view import write_settings
from stepcot_jax.report.trust import Plausibility, write_calibration_section

_LEVEL = 0.95


def assemble(
    run: FinishedRun,
    *,
    model: str,
    num_cases: int,
    with_data: bool,
    with_maps: bool,
    terminal: Terminal,
    num_resamples: int = 1000,
) -> str:
    """Return the page of a run as HTML."""
    plausibility = Plausibility.of_run(run)
    gathered = gather(
        run,
        model=model,
        num_cases=num_cases,
        broken_rules=plausibility.broken_rules,
        with_data=with_data,
        with_maps=with_maps,
        progress=terminal.watch,
    )
    terminal.say(f"bootstrap: {num_resamples} resamples of the test cases")
    intervals = bootstrap(run.split, run.chain, num_resamples=num_resamples, level=_LEVEL)
    sections = [
        *_write_figures(run, intervals, num_resamples),
        write_calibration_section(run),
        write_operating_section(run),
        plausibility.write_section(run),
        *_write_cases(run, gathered),
        Section("settings", "Settings", "Every setting of the run.", write_settings(run.settings, run.report)),
    ]
    return write_page(title=f"Run {run.workdir.resolve().name}", about=_describe(run), sections=sections)


def _describe(run: FinishedRun) -> list[str]:
    counts = run.report["num_cases"]
    data = run.settings.data
    source = "the drawn phantom" if data.source == "phantom" else data.root
    split = ", ".join(f"{counts[name]} {name}" for name in ("train", "val", "test") if name in counts)
    lines = [f"Trained on {source}: {split} cases, {run.chain.num_steps} steps each."]
    best = run.report.get("best")
    if isinstance(best, dict) and best:
        chosen = ", ".join(f"{name} at update {entry['step']}" for name, entry in best.items())
        lines.append(f"Best weights on validation: {chosen}. All figures below are of the test split.")
    return lines


def _write_figures(run: FinishedRun, intervals: Mapping[str, ModelIntervals], num_resamples: int) -> Iterator[Section]:
    metrics = evaluate(run.split.predictions, run.chain)
    lead = (
        f"In percent, with {_LEVEL:.0%} intervals from {num_resamples} bootstrap resamples of the patients. "
        "Majority is the accuracy of always giving the most frequent answer, or chain of answers."
    )
    body = render(
        "results.html.j2",
        intervals=intervals,
        metrics=metrics,
        mean_of=_name_mean(metrics),
        difference=_compare_networks(run, num_resamples),
        notes=_list_notes(metrics),
    )
    yield Section("results", "Results", lead, body)
    yield Section(
        "curves", "Learning curves", "", Markup('<div class="charts">{}</div>').format(write_curves(run.entries))
    )
    lead = "Rows are the truth, columns the answers; the frame marks right answers."
    yield Section("confusion", "Confusion", lead, render("confusion.html.j2", metrics=metrics))


def _name_mean(metrics: Mapping[str, ModelMetrics]) -> str:
    """Return of which steps the mean is, in words."""
    steps = next(iter(metrics.values())).steps
    num_left_out = sum(step.has_one_answer for step in steps)
    return f"mean of {len(steps) - num_left_out} of {len(steps)} steps" if num_left_out else "mean of the steps"


def _compare_networks(run: FinishedRun, num_resamples: int) -> str:
    """Return the difference of student and teacher in a sentence; "" unless the run has both."""
    if not {"teacher", "student"} <= set(run.split.predictions.logits):
        return ""
    found = bootstrap_difference(
        run.split, run.chain, first="student", second="teacher", num_resamples=num_resamples, level=_LEVEL
    )
    points = f"{100 * found.value:+.1f} points ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
    verdict = "a significant difference between these two networks"
    if count_patients(run.split.facts["patient_id"]) < MIN_PATIENTS:
        verdict = "from too few patients for a verdict"  # few similar patients give an interval without width
    elif not is_difference(found):
        verdict = "not a significant difference"
    return f"Mean accuracy, student less teacher: {points}, {verdict}."


def _list_notes(metrics: Mapping[str, ModelMetrics]) -> list[str]:
    notes = []
    for step in (step for model in metrics.values() for step in model.steps):
        if not step.num_cases:
            notes.append(f"{step.name}: no case was annotated; every mean leaves this step out.")
        elif step.left_out:
            left_out = "; ".join(step.left_out)
            notes.append(f"{step.name}: no case has these answers; the macro averages leave them out: {left_out}.")
        if step.has_one_answer:
            notes.append(f"{step.name}: every case has the same answer; the mean over the steps leaves it out.")
    return list(dict.fromkeys(notes))


def _write_cases(run: FinishedRun, gathered: Gathered) -> Iterator[Section]:
    yield Section("cases", "Cases", "", write_cases(gathered.cases, run.chain, notes=gathered.notes))
    body = Markup('<p class="note">{}</p>').format(gathered.correction_note)
    if gathered.corrections is not None:
        body = write_corrections(gathered.corrections, run.chain) + body
    lead = "The teacher's answers once the truth of the first steps is given; changed answers are marked."
    yield Section("corrections", "Corrections", lead, body)
