"""The sections of a run's page, from what the run left."""

import dataclasses
from collections.abc import Iterator

from stepcot_jax.evaluation.evaluator import evaluate
from stepcot_jax.evaluation.intervals import ModelIntervals, bootstrap
from stepcot_jax.evaluation.paired import bootstrap_difference, is_difference
from stepcot_jax.evaluation.resamples import count_patients
from stepcot_jax.evaluation.subgroups import MIN_PATIENTS
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.report.case_gathering import Gathered, gather
from stepcot_jax.report.confidence import write_confidence
from stepcot_jax.report.correction_view import write_corrections
from stepcot_jax.report.curves import write_curves
from stepcot_jax.report.finished_run import FinishedRun
from stepcot_jax.report.markup import Html, join, tag
from stepcot_jax.report.page import Section, write_page
from stepcot_jax.report.page_cases import write_cases
from stepcot_jax.report.plausibility import Plausibility, write_plausibility
from stepcot_jax.report.result_tables import write_confusions, write_key_figures, write_results
from stepcot_jax.report.settings_table import write_settings_table

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
    """The page of a run.

    Args:
      run: the run.
      model: whose answers the cases show.
      num_cases: how many cases to show at most.
      with_data: whether to show pictures, reports, maps and corrections.
      with_maps: whether to show maps.
      terminal: shows how far it is.
      num_resamples: of the bootstrap behind every interval.

    Raises:
      BadInput: data or checkpoint cannot be used.
    """
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
        Section("confidence", "Calibration", *write_confidence(run)),
        Section("consistency", "Consistency", *write_plausibility(run, plausibility)),
        *_write_cases(run, gathered),
        Section("settings", "Settings", "Every setting of the run.", _settings(run)),
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
        chosen = ", ".join(f"{name} at step {entry['step']}" for name, entry in best.items())
        lines.append(f"Best weights on validation: {chosen}. All figures below are of the test split.")
    return lines


def _write_figures(run: FinishedRun, intervals: dict[str, ModelIntervals], num_resamples: int) -> Iterator[Section]:
    metrics = evaluate(run.split.predictions, run.chain)
    lead = (
        f"In percent, with {_LEVEL:.0%} intervals from {num_resamples} bootstrap resamples of the patients. "
        "Majority is what the best constant answer would reach."
    )
    body = join(write_key_figures(intervals), _write_difference(run, num_resamples), write_results(metrics, intervals))
    yield Section("results", "Results", lead, body)
    yield Section("curves", "Learning curves", "", write_curves(run.entries))
    lead = "Truth from top to bottom, answers from left to right; the frame marks right answers."
    yield Section("confusion", "Confusion", lead, write_confusions(metrics))


def _write_difference(run: FinishedRun, num_resamples: int) -> Html | None:
    """The student against the teacher, where both are there."""
    if not {"teacher", "student"} <= set(run.split.predictions.logits):
        return None
    found = bootstrap_difference(
        run.split, run.chain, first="student", second="teacher", num_resamples=num_resamples, level=_LEVEL
    )
    points = f"{100 * found.value:+.1f} points ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
    verdict = "a difference between these two networks that other patients would not explain"
    if count_patients(run.split.facts["patient_id"]) < MIN_PATIENTS:
        verdict = "of too few patients to tell"  # few who are alike give an interval without width
    elif not is_difference(found):
        verdict = "no difference that these cases can show"
    return tag("p", f"Mean accuracy, student less teacher: {points}, {verdict}.")


def _write_cases(run: FinishedRun, gathered: Gathered) -> Iterator[Section]:
    yield Section("cases", "Cases", "", write_cases(gathered.cases, run.chain, notes=gathered.notes))
    note = tag("p", gathered.correction_note, class_="note")
    body = note if gathered.corrections is None else join(write_corrections(gathered.corrections, run.chain), note)
    lead = "What the teacher answers when it is told the truth of the first steps; changed answers are marked."
    yield Section("corrections", "Corrections", lead, body)


def _settings(run: FinishedRun) -> Html:
    table = write_settings_table(dataclasses.asdict(run.settings))
    seconds = run.report.get("wall_seconds")
    took = None if not isinstance(seconds, int | float) else tag("p", f"The run took {seconds:.0f} s.", class_="note")
    return join(table, took)
