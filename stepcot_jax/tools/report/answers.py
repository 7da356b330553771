"""The page's sections of a run that answers steps: verdicts, figures, and cases with pictures, reports and maps."""

import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from markupsafe import Markup

from stepcot_jax.chain import NOT_ANNOTATED, Chain, find_one_answer
from stepcot_jax.data.images.preprocessing import resize_image
from stepcot_jax.evaluation.chains import (
    ModelIntervals,
    ModelMetrics,
    answer_accuracy,
    bootstrap,
    evaluate,
    mean_over_steps,
    most_frequent,
)
from stepcot_jax.evaluation.consistency import find_clear_chest
from stepcot_jax.evaluation.reply_page import compare
from stepcot_jax.evaluation.statistics import LEVEL, MIN_PATIENTS, Weights, count_patients
from stepcot_jax.evaluation.statistics import bootstrap as bootstrap_figures
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.pages.pictures import write_map, write_overlay, write_picture
from stepcot_jax.pages.sheets import Table, columns, heads
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
    fold,
    render,
    write_calibration_section,
    write_curves,
    write_operating_section,
    write_shares,
)

Row = dict[str, Any]
"""What the page shows of a case beside its answers, as `describe_case` takes it: pixels, report, maps and claims."""

_MAP_NOTE = (
    "A map shows which parts of the picture the answer loses most probability without (bright), when they are replaced "
    "by {filled_with}; below it stands what becomes of the probability when the brightest tenth is blurred, that of "
    "the case before, and a random tenth. It does not show that the network looks where a radiologist would."
)


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
    predictions, plausibility = run.split.predictions, Plausibility.of_run(run)
    indices = draw_places(len(predictions.index), num_cases)
    answers = run.answers(model)[indices]
    rows, note = [Row() for _ in indices], "Pictures, reports and maps were left out."
    if with_data:
        rows, note = _look(run, indices, model, answers, with_maps=with_maps, progress=terminal.watch)
    cases = _list_cases(run, indices, model, rows, plausibility.broken_rules(answers))
    terminal.say(f"bootstrap: {num_resamples} resamples of the test cases")
    intervals = bootstrap(run.split, run.chain, num_resamples=num_resamples)
    yield _write_summary(run, model, cases, rows, judge_networks(run, num_resamples))
    yield from _write_figures(run, intervals, num_resamples)
    yield write_calibration_section(run)
    yield write_operating_section(run)
    yield plausibility.write_section(run)
    yield from write_shares(run.workdir, run.chain)
    which = f"{len(indices)} of {len(predictions.index)} test cases, drawn at random"
    if len(indices) == len(predictions.index):
        which = f"All {len(indices)} test cases"
    yield write_cases(cases, run.chain, notes=[f"{which}, with the answers of the network {model!r}.", note])


def _look(
    run: FinishedRun,
    indices: list[int],
    model: str,
    answers: Int[np.ndarray, "case step"],
    *,
    with_maps: bool,
    progress: Progress,
) -> tuple[list[Row], str]:
    """Return the pictures of test cases, at the encoder's size, their reports and maps, and a note on maps."""
    job, unread = run.settings.trains, ""
    if run.settings.image_encoder.name == "imported":
        unread = "this run's image features were imported, so that its networks cannot read pictures"
    elif not job.reads_steps:
        unread = f"a {job} does not read step by step"
    trained = load_trained(run.workdir, names=(model,)) if with_maps and not unread else None
    preprocessing = trained_preprocessing(run.settings) if trained is None else trained.preprocessing
    try:
        source = open_run(run.workdir, "test")
        rows = list[Row]()
        for index in progress(indices, "reading the cases"):
            pixels = np.array(source.picture(index).convert("RGB"))
            rows.append(Row(pixels=resize_image(pixels, preprocessing), report=source.report(index)))
    except BadInput as error:
        raise BadInput(f"{error}; --without-data writes the page without pictures, reports and maps") from None
    if trained is None:
        return rows, f"There are no maps: {unread}." if with_maps else "Maps were left out."
    return rows, _add_maps(trained, rows, model, answers, progress)


def _add_maps(
    trained: Trained, rows: Sequence[Row], model: str, answers: Int[np.ndarray, "case step"], progress: Progress
) -> str:
    """Add to each case its maps with their claims in words; return a note on all maps."""
    from stepcot_jax.reading.explain import Explainer

    explainer, before = Explainer(trained, model=model, as_published=True), None  # the network's own answers
    for case in progress(range(len(rows)), "making maps (cases)"):
        images = to_input([rows[case]["pixels"]], trained.preprocessing)
        explained = explainer.explain(images, labels=answers[case : case + 1], before=before)
        before = explained.maps[0]
        rows[case].update(maps=before, claims=tuple(map(str, explained.claims[0])))
    return _MAP_NOTE.format(filled_with=explainer.filled_with)


def _list_cases(
    run: FinishedRun, indices: list[int], model: str, rows: Sequence[Row], broken: Sequence[str]
) -> list[dict[str, Any]]:
    facts, labels = run.split.facts, run.split.predictions.labels
    probabilities, sets = run.probabilities(model), run.answer_sets(model)
    return [
        describe_case(
            run.chain,
            name=str(facts["image_path"][index]),
            about=", ".join(str(facts[key][index]) for key in ("origin", "view") if facts[key][index]),
            truth=labels[index],
            probabilities=probabilities[index],
            sets=sets[index],
            inconsistent=rule,
            **row,
        )
        for index, row, rule in zip(indices, rows, broken, strict=True)
    ]


def describe_case(
    chain: Chain,
    *,
    name: str,
    about: str,
    truth: Int[np.ndarray, "step"],
    probabilities: Float[np.ndarray, "step answer"],
    sets: Bool[np.ndarray, "step answer"],
    inconsistent: str = "",
    pixels: Pixels | None = None,
    report: str = "",
    maps: Float[np.ndarray, "step row column"] | None = None,
    claims: Sequence[str] = (),
) -> dict[str, Any]:
    """Return one case as the page's script takes it.

    `inconsistent` is the rule that the answers break, in words; probabilities and answer sets are
    padded beyond a step's answers.
    """
    # The script shows these texts as text, hence `name_unseen`, which the templates apply by themselves.
    texts = {"name": name, "about": about, "report": report, "inconsistent": inconsistent}
    rows = [row[:num_answers] for row, num_answers in zip(probabilities, chain.answers_per_step, strict=True)]
    return {
        **{key: name_unseen(text) for key, text in texts.items()},
        "picture": None if pixels is None else write_picture(pixels),
        "truth": truth.tolist(),
        "answers": [int(row.argmax()) for row in rows],
        "confidences": [round(float(row.max()), 4) for row in rows],
        "sets": [np.flatnonzero(row).tolist() for row in sets],
        "maps": None if maps is None else [write_map(values) for values in maps],
        "claims": list(claims),
    }


def write_cases(cases: Sequence[Mapping[str, Any]], chain: Chain, *, notes: Sequence[str]) -> Section:
    """Write the section: filters, gallery, the dialog of one case, and the data of all cases."""
    steps = []
    for step in chain.steps:
        options = [name_unseen(text) for text in step.options]
        steps.append({"name": name_unseen(step.name), "question": name_unseen(step.question), "options": options})
    last = [case["truth"][-1] for case in cases]
    counts = {label: last.count(label) for label in range(chain.answers_per_step[-1]) if label in last}
    data = {"steps": steps, "cases": cases}
    body = render("cases.html.j2", notes=notes, cases=cases, steps=chain.steps, counts=counts, data=data)
    script = pathlib.Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    return Section("cases", "Cases", "", body, script=script)


def describe_answers(run: FinishedRun) -> list[str]:
    """Return what the run was trained on and which weights it kept."""
    counts = run.report.num_cases
    data = run.settings.data
    source = "the drawn phantom" if data.source == "phantom" else data.root
    split = ", ".join(f"{counts[name]} {name}" for name in ("train", "val", "test") if name in counts)
    text = f"Trained on {source}: {split} cases, {run.chain.num_steps} steps each."
    if chosen := ", ".join(f"{name} at update {entry.step}" for name, entry in run.report.best.items()):
        text += f" Best weights on validation: {chosen}. All figures are of the test split."
    return [text]


# The verdicts and the figures.

_OF = "points of the steps"


def judge_networks(run: FinishedRun, num_resamples: int) -> dict[str, str]:
    """Return a sentence on each network: steps better than the most frequent answer, and better than plain heads."""
    split, labels, patients = run.split, run.split.predictions.labels, run.split.facts["patient_id"]
    if count_patients(patients) < MIN_PATIENTS:  # few similar patients give an interval without width
        return dict.fromkeys(split.predictions.logits, "too few patients for a verdict")
    one_answer, constant = find_one_answer(labels), np.broadcast_to(most_frequent(labels), labels.shape)
    answers = {name: run.answers(name) for name in split.predictions.logits}

    def compute(weights: Weights) -> dict[tuple[str, str], np.ndarray]:
        of_all = {"": constant, **answers}
        right = {name: answer_accuracy(weights, answers=each, labels=labels)[0] for name, each in of_all.items()}
        mean = {name: mean_over_steps(each, left_out=one_answer) for name, each in right.items()}
        rivals = {(name, rival): mean[name] - mean[rival] for name in answers for rival in answers if name != rival}
        return {**{(name, ""): right[name] - right[""] for name in answers}, **rivals}

    found = bootstrap_figures(compute, patients, num_resamples=num_resamples)
    enough = [count_patients(patients[of_step != NOT_ANNOTATED]) >= MIN_PATIENTS for of_step in labels.T]
    better = {name: sum(step.low > 0 for step in itertools.compress(found[name, ""], enough)) for name in answers}
    of = f"of {(~one_answer).sum()} steps"
    return {name: _judge(run, name, found, f"at {number} {of}") for name, number in better.items()}


def _judge(run: FinishedRun, name: str, found: Mapping[Any, Any], where: str) -> str:
    parts = [f"better than the most frequent answer {where}"]
    heads = run.report.heads
    if (name, "plain") in found:
        parts.append(compare(found[name, "plain"], "plain heads", _OF))
    elif heads is not None and name in heads.figures:
        parts.append(compare(heads.figures[name][0], f"the {heads.name}", _OF))
    if (name, "teacher") in found and name == "student":
        parts.append(compare(found[name, "teacher"], "the teacher", _OF))
    return "; ".join(parts)


def _write_summary(
    run: FinishedRun, model: str, cases: Sequence[Mapping[str, Any]], rows: Sequence[Row], verdicts: Mapping[str, str]
) -> Section:
    """Return the first screen: a verdict on each network, and one case with its maps and answers."""
    clear = find_clear_chest(run.chain)
    abnormal = (place for place, case in enumerate(cases) if clear is None or case["truth"][0] != clear.label)
    place = next(abnormal, 0)
    overlays = [write_overlay(rows[place]["pixels"], values) for values in rows[place].get("maps", ())]
    how = {"case": cases[place], "overlays": overlays, "steps": run.chain.steps, "model": model}
    return Section("summary", "Verdict", "", render("summary.html.j2", verdicts=verdicts, **how))


_MACRO = ("AUC", "sensitivity", "macro specificity", "F1", "precision")
_FIGURES = (*heads("step", "#cases"), *columns("percent", "accuracy", "majority", *_MACRO))


def _write_figures(run: FinishedRun, intervals: Mapping[str, ModelIntervals], num_resamples: int) -> Iterator[Section]:
    metrics = evaluate(run.split.predictions, run.chain)
    lead = (
        f"In percent, with {LEVEL:.0%} intervals from {num_resamples} bootstrap resamples of the patients. "
        "Majority is the accuracy of always giving the most frequent answer, or chain of answers."
    )
    heads = [] if run.report.heads is None else [run.report.heads.tabulate()]
    folded = [fold(each.title, tabulate(each).body) for each in (*_tabulate_steps(metrics, intervals), *heads)]
    of_all = tabulate(_tabulate_networks(metrics, intervals, notes=[*run.report.notes, *_list_notes(metrics)]))
    yield Section("results", "Results", lead, Markup("").join([of_all.body, *folded]))
    yield write_curves(run.entries)
    lead = "Rows are the truth, columns the answers; the frame marks right answers."
    confusions = [
        fold(name.capitalize(), render("confusion.html.j2", model=name, steps=of_model.steps))
        for name, of_model in metrics.items()
    ]
    yield Section("confusion", "Confusion", lead, Markup("").join(confusions))


def _tabulate_networks(
    metrics: Mapping[str, ModelMetrics], intervals: Mapping[str, ModelIntervals], *, notes: Sequence[str]
) -> Table:
    """Return a row for each network and one for the most frequent answers."""
    constant = next(iter(metrics.values()))
    num_left_out, last = sum(step.has_one_answer for step in constant.steps), constant.steps[-1]
    mean = f"mean of {len(constant.steps) - num_left_out} of {len(constant.steps)} steps"
    named = columns("percent", mean if num_left_out else "mean of the steps", last.name, "every step of a case")
    rows: list[tuple[Any, ...]] = [
        (name, found.mean_accuracy, found.steps[-1].accuracy, found.chain_accuracy) for name, found in intervals.items()
    ]
    majority = ("majority", constant.mean_majority_accuracy, last.majority_accuracy, constant.majority_chain_accuracy)
    return Table("networks", "Networks", (*columns("text", "network"), *named), (*rows, majority), tuple(notes))


def _tabulate_steps(metrics: Mapping[str, ModelMetrics], intervals: Mapping[str, ModelIntervals]) -> Iterator[Table]:
    for name, model in metrics.items():
        rows: list[tuple[Any, ...]] = []
        for step, found in zip(model.steps, intervals[name].steps, strict=True):
            macro = (found.auc, found.sensitivity, found.specificity, found.f1, found.precision)
            rows.append((step.name, step.num_cases, found.accuracy, step.majority_accuracy, *macro))
        yield Table("figures", f"Every step ({name})", _FIGURES, tuple(rows))


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
