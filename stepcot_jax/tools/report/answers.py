"""The page's sections of a run that answers steps: figures, and cases with pictures, reports and maps."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from markupsafe import Markup

from stepcot_jax.chain import Chain
from stepcot_jax.data.images.preprocessing import Preprocessing, resize_image
from stepcot_jax.evaluation.chains import ModelIntervals, ModelMetrics, bootstrap, bootstrap_differences, evaluate
from stepcot_jax.evaluation.statistics import LEVEL, MIN_PATIENTS, count_patients, is_difference
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.pages.pictures import write_map, write_picture
from stepcot_jax.pages.shell import Section, name_unseen, tabulate
from stepcot_jax.reading.audit_folder import draw_places
from stepcot_jax.reading.cases import open_run
from stepcot_jax.reading.finished import FinishedRun
from stepcot_jax.reading.radiographs import Pixels, to_input
from stepcot_jax.reading.trained_model import Trained, load_trained
from stepcot_jax.run.loading import Progress
from stepcot_jax.run.networks import trained_preprocessing
from stepcot_jax.tools.report.sections import (
    Plausibility,
    render,
    write_calibration_section,
    write_curves,
    write_operating_section,
    write_shares,
)


@dataclasses.dataclass(frozen=True)
class ShownCase:
    """One case of the page."""

    name: str  # the case's name, such as its image's path
    about: str  # origin and projection, in words; "" where unknown
    picture: str | None  # data URI; None where the page has no pictures
    report: str  # of the radiologist; "" where there is none
    truth: Int[np.ndarray, "step"]  # `NOT_ANNOTATED` where nobody answered
    probabilities: Float[np.ndarray, "step answer"]  # at the fitted temperatures; padded beyond a step's answers
    sets: Bool[np.ndarray, "step answer"]  # conformal answer sets
    inconsistent: str = ""  # the rule that the answers break, in words; "" if none
    maps: Float[np.ndarray, "step height width"] | None = None  # not negative; None without maps
    claims: Sequence[str] = ()  # of the maps, in words

    @property
    def last_truth(self) -> int:
        """Label of the last step."""
        return int(self.truth[-1])


_MAP_NOTE = (
    "A map shows which parts of the picture the answer loses most probability without (bright), when they are replaced "
    "by {filled_with}; below it stands what becomes of the probability when the brightest tenth is blurred, that of "
    "the case before, and a random tenth. It does not show that the network looks where a radiologist would."
)


def _write_case_section(
    run: FinishedRun,
    plausibility: Plausibility,
    *,
    model: str,
    num_cases: int,
    with_data: bool,
    with_maps: bool,
    progress: Progress,
) -> Section:
    """Return the section of the cases to browse."""
    predictions = run.split.predictions
    indices = draw_places(len(predictions.index), num_cases)
    which = f"{len(indices)} of {len(predictions.index)} test cases, drawn at random"
    if len(indices) == len(predictions.index):
        which = f"All {len(indices)} test cases"
    notes = [f"{which}, with the answers of the network {model!r}."]
    of_steps = zip(np.moveaxis(predictions.logits[model][indices], 1, 0), run.chain.answers_per_step, strict=True)
    answers = np.stack([logits[:, :num].argmax(axis=-1) for logits, num in of_steps], axis=1).astype(np.int32)
    pictures: Sequence[Any] = [None] * len(indices)
    reports: Sequence[str] = [""] * len(indices)
    maps: Sequence[Any] = [(None, ())] * len(indices)
    if not with_data:
        notes.append("Pictures, reports and maps were left out.")
    else:
        unread = _why_unread(run)
        trained = load_trained(run.workdir, names=(model,)) if with_maps and not unread else None
        preprocessing = trained_preprocessing(run.settings) if trained is None else trained.preprocessing
        pictures, reports = _read_cases(run, indices, preprocessing, progress)
        note = f"There are no maps: {unread}." if with_maps else "Maps were left out."
        if trained is not None:
            maps, note = _make_maps(trained, pictures, model, answers, progress)
        notes.append(note)
    shown = _list_shown(run, indices, model, pictures, reports, maps, plausibility.broken_rules(answers))
    return write_cases(shown, run.chain, notes=notes)


def _why_unread(run: FinishedRun) -> str:
    """Return why the networks cannot read images again; "" if they can."""
    if run.settings.image_encoder.name == "imported":
        return "this run's image features were imported, so that its networks cannot read pictures"
    job = run.settings.trains
    return "" if job.reads_steps else f"a {job} does not read step by step"


def _read_cases(
    run: FinishedRun, indices: list[int], preprocessing: Preprocessing, progress: Progress
) -> tuple[list[Pixels], list[str]]:
    """Return the pictures of test cases, at the encoder's size, and their reports; phantoms are drawn again."""
    try:
        source = open_run(run.workdir, "test")
        watched = progress(indices, "reading the cases")
        pictures = [resize_image(np.array(source.picture(index).convert("RGB")), preprocessing) for index in watched]
        return pictures, [source.report(index) for index in indices]
    except BadInput as error:
        raise BadInput(f"{error}; --without-data writes the page without pictures, reports and maps") from None


def _make_maps(
    trained: Trained,
    pictures: Sequence[Pixels],
    model: str,
    answers: Int[np.ndarray, "case step"],
    progress: Progress,
) -> tuple[list[tuple[np.ndarray, tuple[str, ...]]], str]:
    """Return the maps of each case with their claims in words, and a note on all maps."""
    from stepcot_jax.reading.explain import Explainer

    explainer = Explainer(trained, model=model, as_published=True)  # the page shows the network's own answers
    maps, before = [], None
    for case in progress(range(len(pictures)), "making maps (cases)"):
        images = to_input([pictures[case]], trained.preprocessing)
        explained = explainer.explain(images, labels=answers[case : case + 1], before=before)
        before = explained.maps[0]
        maps.append((explained.maps[0], tuple(map(str, explained.claims[0]))))
    return maps, _MAP_NOTE.format(filled_with=explainer.filled_with)


def _list_shown(
    run: FinishedRun,
    indices: list[int],
    model: str,
    pictures: Sequence[Pixels | None],
    reports: Sequence[str],
    maps: Sequence[Any],
    broken: Sequence[str],
) -> list[ShownCase]:
    facts, labels = run.split.facts, run.split.predictions.labels
    probabilities, sets = run.probabilities(model), run.answer_sets(model)
    return [
        ShownCase(
            name=str(facts["image_path"][index]),
            about=", ".join(str(facts[key][index]) for key in ("origin", "view") if facts[key][index]),
            picture=None if pixels is None else write_picture(pixels),
            report=report,
            truth=labels[index],
            probabilities=probabilities[index],
            sets=sets[index],
            inconsistent=rule,
            maps=of_case,
            claims=claims,
        )
        for index, pixels, report, rule, (of_case, claims) in zip(indices, pictures, reports, broken, maps, strict=True)
    ]


def list_answer_sections(
    run: FinishedRun,
    *,
    model: str,
    num_cases: int,
    with_data: bool,
    with_maps: bool,
    terminal: Terminal,
    num_resamples: int = 1000,
) -> Iterator[Section]:
    """Yield the sections of the page of a run that answers steps."""
    plausibility = Plausibility.of_run(run)
    cases = _write_case_section(
        run,
        plausibility,
        model=model,
        num_cases=num_cases,
        with_data=with_data,
        with_maps=with_maps,
        progress=terminal.watch,
    )
    terminal.say(f"bootstrap: {num_resamples} resamples of the test cases")
    intervals = bootstrap(run.split, run.chain, num_resamples=num_resamples)
    yield from _write_figures(run, intervals, num_resamples)
    yield write_calibration_section(run)
    yield write_operating_section(run)
    yield plausibility.write_section(run)
    yield from write_shares(run.workdir, run.chain)
    yield cases


def describe_answers(run: FinishedRun) -> list[str]:
    """Return what the run was trained on and which weights it kept."""
    counts = run.report.num_cases
    data = run.settings.data
    source = "the drawn phantom" if data.source == "phantom" else data.root
    split = ", ".join(f"{counts[name]} {name}" for name in ("train", "val", "test") if name in counts)
    lines = [f"Trained on {source}: {split} cases, {run.chain.num_steps} steps each."]
    if best := run.report.best:
        chosen = ", ".join(f"{name} at update {entry.step}" for name, entry in best.items())
        lines.append(f"Best weights on validation: {chosen}. All figures below are of the test split.")
    return lines


def _write_figures(run: FinishedRun, intervals: Mapping[str, ModelIntervals], num_resamples: int) -> Iterator[Section]:
    metrics = evaluate(run.split.predictions, run.chain)
    lead = (
        f"In percent, with {LEVEL:.0%} intervals from {num_resamples} bootstrap resamples of the patients. "
        "Majority is the accuracy of always giving the most frequent answer, or chain of answers."
    )
    body = render(
        "results.html.j2",
        intervals=intervals,
        metrics=metrics,
        mean_of=_name_mean(metrics),
        difference=_compare_networks(run, num_resamples),
        notes=[*run.report.notes, *_list_notes(metrics)],
    )
    if run.report.heads is not None:
        table = run.report.heads.tabulate()
        body += Markup("<h3>{}</h3>{}").format(table.title, tabulate(table).body)
    yield Section("results", "Results", lead, body)
    yield write_curves(run.entries)
    lead = "Rows are the truth, columns the answers; the frame marks right answers."
    yield Section("confusion", "Confusion", lead, render("confusion.html.j2", metrics=metrics))


def _name_mean(metrics: Mapping[str, ModelMetrics]) -> str:
    steps = next(iter(metrics.values())).steps
    num_left_out = sum(step.has_one_answer for step in steps)
    return f"mean of {len(steps) - num_left_out} of {len(steps)} steps" if num_left_out else "mean of the steps"


def _compare_networks(run: FinishedRun, num_resamples: int) -> str:
    """Return the difference of student and teacher in a sentence; "" unless the run has both."""
    if not {"teacher", "student"} <= set(run.split.predictions.logits):
        return ""
    difference = bootstrap_differences(
        run.split, run.chain, first="student", second="teacher", num_resamples=num_resamples
    ).mean_accuracy
    points = f"{100 * difference.value:+.1f} points ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"
    verdict = "a significant difference between these two networks"
    if count_patients(run.split.facts["patient_id"]) < MIN_PATIENTS:
        verdict = "from too few patients for a verdict"  # few similar patients give an interval without width
    elif not is_difference(difference):
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


def write_cases(cases: Sequence[ShownCase], chain: Chain, *, notes: Sequence[str]) -> Section:
    """Write the section: filters, gallery, the dialog of one case, and the data of all cases."""
    # The page's script shows these texts as text, hence `name_unseen`, which the templates apply by themselves.
    steps = [
        {
            "name": name_unseen(step.name),
            "question": name_unseen(step.question),
            "options": [name_unseen(text) for text in step.options],
        }
        for step in chain.steps
    ]
    data = {"steps": steps, "cases": [_as_data(case, chain) for case in cases]}
    body = render("cases.html.j2", notes=notes, cases=cases, steps=chain.steps, data=data)
    script = pathlib.Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    return Section("cases", "Cases", "", body, script=script)


def _as_data(case: ShownCase, chain: Chain) -> dict[str, Any]:
    probabilities = [
        row[:num_answers] for row, num_answers in zip(case.probabilities, chain.answers_per_step, strict=True)
    ]
    return {
        "name": name_unseen(case.name),
        "about": name_unseen(case.about),
        "picture": case.picture,
        "report": name_unseen(case.report),
        "truth": case.truth.tolist(),
        "answers": [int(row.argmax()) for row in probabilities],
        "confidences": [round(float(row.max()), 4) for row in probabilities],
        "sets": [np.flatnonzero(row).tolist() for row in case.sets],
        "inconsistent": name_unseen(case.inconsistent),
        "maps": None if case.maps is None else [write_map(values) for values in case.maps],
        "claims": list(case.claims),
    }
