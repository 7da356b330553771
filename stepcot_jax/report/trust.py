"""Two sections of the page: whether confidences are calibrated, and whether chains of answers are consistent."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Int
from markupsafe import Markup

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation import consistency
from stepcot_jax.evaluation.calibration import Reliability, step_reliability
from stepcot_jax.evaluation.consistency import read_pairs
from stepcot_jax.evaluation.predictions import own_logits, read_predictions
from stepcot_jax.report.figures import draw_reliability
from stepcot_jax.report.finished_run import FinishedRun
from stepcot_jax.report.page import Section, decimal, percent, render
from stepcot_jax.run.stored_reading import PAIRS_FILE

_NUM_RULES_SHOWN = 12


def write_calibration_section(run: FinishedRun) -> Section:
    """Write, for every network, a reliability diagram for each step and a table of errors and answer sets."""
    lead = "Accuracy against confidence. This run fitted no temperatures."
    raw = step_reliability(run.split.predictions, run.chain)
    calibrated: Mapping[str, tuple[Reliability, ...] | None] = dict.fromkeys(raw)
    if run.calibration is not None:
        lead = (
            "Accuracy against confidence, after temperature scaling with one temperature for each step, fitted on "
            f"validation. Answer sets aim to hold the true answer in {run.calibration.describe_coverage()}."
        )
        calibrated = step_reliability(run.split.predictions, run.chain, calibration=run.calibration)
    models = [_write_model(run, model, steps, calibrated[model]) for model, steps in raw.items()]
    return Section("confidence", "Calibration", lead, Markup("").join(models))


def _write_model(
    run: FinishedRun, model: str, raw: tuple[Reliability, ...], calibrated: tuple[Reliability, ...] | None
) -> Markup:
    headers = ["Step", "Cases", "ECE, %", "Brier", "NLL"]
    if calibrated is not None:
        headers += ["Temperature", "ECE before, %", "NLL before", "Set holds truth, %", "Mean set size"]
    sets = run.answer_sets(model)
    measured = [] if sets is None else _measure_sets(sets, run.split.predictions.labels)
    diagrams, rows = [], []
    for place, step in enumerate(calibrated or raw):
        filled = [each for each in step.bins if each.num_cases]
        diagrams.append(
            draw_reliability(
                confidences=[each.confidence for each in filled],
                accuracies=[each.accuracy for each in filled],
                counts=[each.num_cases for each in filled],
                title=step.name,
                model=model,
            )
        )
        row = [step.name, str(step.num_cases), percent(step.ece), decimal(step.brier), decimal(step.nll)]
        if calibrated is not None and run.calibration is not None:
            covered, size = measured[place]
            row += [decimal(run.calibration.temperatures[model][place]), percent(raw[place].ece)]
            row += [decimal(raw[place].nll), percent(covered), decimal(size)]
        rows.append(row)
    by_answer = [] if sets is None else _measure_answers(sets, run.split.predictions.labels, run.chain)
    return render(
        "calibration.html.j2", model=model, diagrams=diagrams, headers=headers, rows=rows, by_answer=by_answer
    )


def _measure_answers(
    sets: Bool[np.ndarray, "case step answer"], labels: Int[np.ndarray, "case step"], chain: Chain
) -> list[tuple[str, str, int, float]]:
    """Return step, answer, number of test cases with that true answer, and the share of them whose set holds it."""
    found = []
    for place, step in enumerate(chain.steps):
        for answer, option in enumerate(step.options):
            held = sets[labels[:, place] == answer, place, answer]
            if len(held):
                found.append((step.name, option, len(held), float(held.mean())))
    return found


def _measure_sets(
    sets: Bool[np.ndarray, "case step answer"], case_labels: Int[np.ndarray, "case step"]
) -> list[tuple[float, float]]:
    """Return for each step the share of annotated test cases whose set holds the truth, and the mean set size."""
    figures = []
    for place, labels in enumerate(case_labels.T):
        annotated = labels != NOT_ANNOTATED
        own, truth = sets[annotated, place], labels[annotated]
        if not len(truth):
            figures.append((math.nan, math.nan))
            continue
        held = own[np.arange(len(truth)), truth]
        figures.append((float(held.mean()), float(own.sum(axis=1).mean())))
    return figures


@dataclasses.dataclass(frozen=True)
class Plausibility:
    """The rules by which chains of answers are called inconsistent.

    Attributes:
      rules: pairs of answers that contradict each other.
      source: where the rules come from, in a sentence.
    """

    chain: Chain
    rules: consistency.Rules
    source: str

    @classmethod
    def of_run(cls, run: FinishedRun) -> "Plausibility":
        """Return the given rules, and those learned from training chains, or else from validation chains."""
        sources = []
        clear = consistency.find_clear_chest(run.chain)
        if clear is not None:
            sources.append(f"“{run.chain.steps[0].options[clear.label]}” settles every later step")
        counts, taught_by = _count_known_pairs(run)
        if counts is not None:
            sources.append(
                f"two answers were never together if no {taught_by} chain has both, though "
                f"{consistency.MIN_EXPECTED:.0f} would by chance"
            )
        rules = consistency.make_rules(run.chain, counts=counts)
        source = f"Rules: {'; '.join(sources)}." if sources else "There are no rules for this chain."
        return cls(run.chain, rules, " ".join([source, *(f"Not applied: {note}." for note in rules.notes)]))

    def broken_rules(self, answers: Int[np.ndarray, "case step"]) -> list[str]:
        """Return the rules that each case's answers break, in words; "" for none."""
        return ["; ".join(broken) for broken in consistency.list_broken(answers, self.rules, self.chain)]

    def write_section(self, run: FinishedRun) -> Section:
        """Write the share of chains that break a rule, of the truth and of every network."""
        answers = {"truth": run.split.predictions.labels}
        for model, logits in run.split.predictions.logits.items():
            own = own_logits(logits, chain=run.chain, model=model)
            answers[model] = np.stack([each.argmax(axis=1) for each in own], axis=1).astype(np.int32)
        chains = [
            {
                "name": name,
                "share": consistency.share_inconsistent(rows, self.rules),
                "num_cases": len(rows),
                "broken": list(consistency.count_broken(rows, self.rules, self.chain).items()),
            }
            for name, rows in answers.items()
        ]
        body = render("consistency.html.j2", chains=chains, most=_NUM_RULES_SHOWN)
        return Section("consistency", "Consistency", self.source, body)


def _count_known_pairs(run: FinishedRun) -> tuple[dict[consistency.Pair, np.ndarray] | None, str]:
    """Return how often each pair of answers occurs, and in which split's chains; None if the run kept neither."""
    if (run.workdir / PAIRS_FILE).exists():
        return read_pairs(run.workdir / PAIRS_FILE, run.chain), "training"
    validation = run.workdir / "predictions" / "val.npz"
    if validation.exists():
        labels = read_predictions(validation, run.chain).predictions.labels
        return consistency.count_pairs(labels, run.chain), "validation"
    return None, ""
