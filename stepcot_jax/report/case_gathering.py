"""The cases of a run's page: pictures and reports from its data, maps and corrections from its networks."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.features.inputs import trained_preprocessing
from stepcot_jax.host.errors import BadInput
from stepcot_jax.predict.radiographs import to_input
from stepcot_jax.predict.reader import Reader
from stepcot_jax.predict.trained_model import Trained, load_trained
from stepcot_jax.report.correction_view import Corrections, read_corrections
from stepcot_jax.report.embedded_pictures import write_picture
from stepcot_jax.report.finished_run import FinishedRun
from stepcot_jax.report.found_cases import FoundCase, find_cases
from stepcot_jax.report.page_cases import ShownCase, draw_places

NUM_CORRECTED = 32
"""Number of cases that the teacher reads again with answers given: each is read once a step."""

_BATCH_SIZE = 8

Progress = Callable[[Iterable[Any], str], Iterable[Any]]


@dataclasses.dataclass(frozen=True)
class Gathered:
    """The cases of a page.

    Attributes:
      cases: those to browse.
      corrections: of the teacher; None where there are none.
      notes: what a reader has to know of the cases, one sentence each.
      correction_note: why there are no corrections, or of which cases they are.
    """

    cases: Sequence[ShownCase]
    corrections: Corrections | None
    notes: Sequence[str]
    correction_note: str


def gather(
    run: FinishedRun,
    *,
    model: str,
    num_cases: int,
    broken_rules: Callable[[Int[np.ndarray, "case step"]], Sequence[str]],
    with_data: bool,
    with_maps: bool,
    progress: Progress,
) -> Gathered:
    """The cases of a page.

    Args:
      run: whose test split it is.
      model: whose answers are shown.
      num_cases: how many to show at most.
      broken_rules: says of answers [case, step] which rule each case breaks, "" for none.
      with_data: False leaves out pictures, reports, maps and corrections, and needs no data.
      with_maps: False leaves out maps.
      progress: shows how far it is.

    Raises:
      BadInput: data or checkpoint cannot be used.
    """
    predictions = run.split.predictions
    chosen = draw_places(len(predictions.index), num_cases)
    notes = [_describe_choice(len(chosen), len(predictions.index), model)]
    found: list[FoundCase] | None = None
    maps: Sequence[Any] = [None] * len(chosen)
    corrections, correction_note = None, "They need the data of the run, which was left out."
    answers = _answers(run, model)[chosen]
    if with_data:
        trained = _load(run)
        found = _find(run, chosen, trained, progress)
        maps, note = _make_maps(run, trained, found, model, answers, with_maps, progress)
        notes.append(note)
        corrections, correction_note = _correct(run, trained, found, chosen, progress)
    else:
        notes.append("Pictures, reports and maps were left out.")
    cases = _show(run, chosen, model, found, maps, broken_rules(answers))
    return Gathered(cases, corrections, notes, correction_note)


def _describe_choice(num_shown: int, num_cases: int, model: str) -> str:
    which = (
        f"All {num_cases} test cases"
        if num_shown == num_cases
        else f"{num_shown} of {num_cases} test cases, drawn at random"
    )
    return f"{which}, as the {model} answers them."


def _answers(run: FinishedRun, model: str) -> Int[np.ndarray, "case step"]:
    logits = run.split.predictions.logits[model]
    own = [logits[:, place, :num].argmax(axis=-1) for place, num in enumerate(run.chain.answers_per_step)]
    return np.stack(own, axis=1).astype(np.int32)


def _load(run: FinishedRun) -> Trained | None:
    """The networks; None where they read no images, for which `_why_unread` has the reason."""
    return None if _why_unread(run) else load_trained(run.workdir)


def _why_unread(run: FinishedRun) -> str:
    if run.settings.image_encoder.name == "imported":
        return "the features of this run were made elsewhere, so that no picture can be read again"
    return "" if run.settings.job in ("teacher", "distill") else f"a {run.settings.job} is not read step by step"


def _find(run: FinishedRun, chosen: list[int], trained: Trained | None, progress: Progress) -> list[FoundCase]:
    preprocessing = trained_preprocessing(run.settings) if trained is None else trained.preprocessing
    paths = run.split.facts["image_path"][chosen].tolist()
    labels = run.split.predictions.labels[chosen]
    try:
        return find_cases(run.settings, paths, labels, preprocessing=preprocessing, progress=progress)
    except BadInput as error:
        raise BadInput(f"{error}; --without-data writes the page without pictures, reports and maps") from None


def _make_maps(
    run: FinishedRun,
    trained: Trained | None,
    found: Sequence[FoundCase],
    model: str,
    answers: Int[np.ndarray, "case step"],
    with_maps: bool,
    progress: Progress,
) -> tuple[Sequence[Any], str]:
    """A map for each case and step, and what to say of them."""
    none: list[None] = [None] * len(found)
    if not with_maps:
        return none, "Maps were left out."
    if trained is None:
        return none, f"There are no maps: {_why_unread(run)}."
    from stepcot_jax.explain.saliency import Explainer

    try:
        explainer = Explainer(trained, model=model, batch_size=_BATCH_SIZE)
    except BadInput as error:
        raise BadInput(f"{error}; --without-maps writes the page without them") from None
    maps: list[Float[np.ndarray, "step row column"]] = []
    for start in progress(range(0, len(found), _BATCH_SIZE), "making maps (batches)"):
        images = _to_input(found[start : start + _BATCH_SIZE], trained.preprocessing)
        maps.extend(explainer.explain(images, labels=answers[start : start + _BATCH_SIZE]).maps)
    return maps, (
        "A map shows what in the picture speaks for the answer, from its lowest value (clear) to its highest (bright); "
        "it does not say that the network looks where a radiologist would."
    )


def _correct(
    run: FinishedRun, trained: Trained | None, found: Sequence[FoundCase], chosen: list[int], progress: Progress
) -> tuple[Corrections | None, str]:
    """What the teacher answers with earlier answers given, or why it cannot be said."""
    if trained is None:
        return None, f"There are none: {_why_unread(run)}."
    if "teacher" not in trained.params or not trained.networks.teacher.memory:
        return None, "Only a teacher with a memory can be given answers; this run has none."
    num_corrected = min(NUM_CORRECTED, len(found))
    images = _to_input(found[:num_corrected], trained.preprocessing)
    reader = Reader(trained, model="teacher", batch_size=_BATCH_SIZE)
    bar = iter(progress(range(run.chain.num_steps), "reading again with answers given (steps)"))

    def read(given: Int[np.ndarray, "case step"]) -> Float[np.ndarray, "case step answer"]:
        next(bar, None)
        return reader.read(images, given.astype(np.int32)).probabilities

    truth = run.split.predictions.labels[chosen[:num_corrected]]
    names = [each.case.image_path for each in found[:num_corrected]]
    corrections = read_corrections(read, truth, names)
    for _ in bar:
        pass
    return corrections, f"The first {num_corrected} cases of this page, read by the teacher."


def _to_input(found: Sequence[FoundCase], preprocessing: Preprocessing) -> Float[np.ndarray, "case size size 3"]:
    return to_input([each.pixels for each in found], preprocessing)


def _show(
    run: FinishedRun,
    chosen: list[int],
    model: str,
    found: Sequence[FoundCase] | None,
    maps: Sequence[Any],
    broken: Sequence[str],
) -> list[ShownCase]:
    facts, labels = run.split.facts, run.split.predictions.labels
    probabilities, sets = run.probabilities(model), run.answer_sets(model)
    return [
        ShownCase(
            name=str(facts["image_path"][place]),
            about=", ".join(str(facts[key][place]) for key in ("origin", "view") if facts[key][place]),
            picture=None if found is None else write_picture(found[number].pixels),
            report="" if found is None else found[number].case.report,
            truth=labels[place],
            probabilities=probabilities[place],
            sets=None if sets is None else sets[place],
            inconsistent=broken[number],
            maps=maps[number],
        )
        for number, place in enumerate(chosen)
    ]
