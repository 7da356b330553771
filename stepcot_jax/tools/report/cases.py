"""The cases to browse on the page: loaded from the run's data with their pictures, and shown with answers and maps."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.data.images.pixels import PhantomPixels
from stepcot_jax.data.images.preprocessing import Preprocessing, repeat_grey
from stepcot_jax.host.errors import BadInput
from stepcot_jax.pages.pictures import write_map
from stepcot_jax.pages.shell import Section, name_unseen
from stepcot_jax.record import Record
from stepcot_jax.run.loading import Progress, load_dataset
from stepcot_jax.run.settings import Settings
from stepcot_jax.tools.report.sections import render

_PHANTOM_NAME = re.compile(r"images/phantom_(\d{6,9})\.png")


@dataclasses.dataclass(frozen=True)
class LoadedCase:
    """A case with its pixels at the encoder's size."""

    case: Record
    pixels: UInt8[np.ndarray, "size size 3"]


def find_cases(
    settings: Settings,
    *,
    image_paths: Sequence[str],
    labels: Int[np.ndarray, "case step"],
    preprocessing: Preprocessing,
    progress: Progress,
) -> list[LoadedCase]:
    """Load cases by their images' paths; phantoms are drawn again."""
    load = _draw if settings.data.source == "phantom" else _read
    where = settings.data.root or "the phantom"
    cases = []
    candidates = load(settings, image_paths, preprocessing, progress)
    for path, expected, loaded in zip(image_paths, labels, candidates, strict=True):
        if loaded is None:
            raise BadInput(f"{where} has no case with image {path!r}; expected the data that the run was trained on")
        known = expected != NOT_ANNOTATED  # a run that was supervised on some steps has no labels of the others
        if (np.array(loaded.case.answers, np.int32)[known] != expected[known]).any():
            raise BadInput(
                f"{where}, {path}: labels {loaded.case.answers} are not those of the run, {tuple(expected.tolist())}"
            )
        cases.append(loaded)
    return cases


def _draw(
    settings: Settings, image_paths: Sequence[str], preprocessing: Preprocessing, progress: Progress
) -> Iterator[LoadedCase | None]:
    phantom = settings.phantom
    drawing = PhantomPixels(phantom.seed, phantom.image_size, phantom.prevalence, preprocessing)
    for path in progress(image_paths, "drawing the cases"):
        match = _PHANTOM_NAME.fullmatch(path)
        if match is None or int(match[1]) >= phantom.num_cases:
            yield None
            continue
        case, pixels = drawing.draw(int(match[1]))
        yield LoadedCase(case, pixels if pixels.ndim == 3 else repeat_grey(pixels))


def _read(
    settings: Settings, image_paths: Sequence[str], preprocessing: Preprocessing, progress: Progress
) -> Iterator[LoadedCase | None]:
    # Only training needs the search for near duplicates, the cache and the splits; images are decoded when shown.
    data = dataclasses.replace(settings.data, near_duplicate_radius=0, cache_megabytes=0.0)
    dataset = load_dataset(
        dataclasses.replace(settings, data=data),
        preprocessing=preprocessing,
        is_known=lambda _: True,
        progress=progress,
    )
    indices = {case.image: index for index, case in enumerate(dataset.cases)}
    for path in progress(image_paths, "reading the cases"):
        index = indices.get(path)
        yield None if index is None else LoadedCase(dataset.cases[index], dataset.pixels[index])


@dataclasses.dataclass(frozen=True)
class ShownCase:
    """One case of the page."""

    name: str  # the case's name, such as its image's path
    about: str  # origin and projection, in words; "" where unknown
    picture: str | None  # data URI; None where the page has no pictures
    report: str  # of the radiologist; "" where there is none
    truth: Int[np.ndarray, "step"]  # `NOT_ANNOTATED` where nobody answered
    probabilities: Float[np.ndarray, "step answer"]  # calibrated if the run was; padded beyond a step's answers
    sets: Bool[np.ndarray, "step answer"] | None = None  # conformal answer sets; None without calibration
    inconsistent: str = ""  # the rule that the answers break, in words; "" if none
    maps: Float[np.ndarray, "step height width"] | None = None  # not negative; None without maps
    claims: Sequence[str] = ()  # of the maps, in words

    @property
    def last_truth(self) -> int:
        """Label of the last step."""
        return int(self.truth[-1])


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
    sets = None
    if case.sets is not None:
        rows = zip(case.sets, chain.answers_per_step, strict=True)
        sets = [np.flatnonzero(row[:num_answers]).tolist() for row, num_answers in rows]
    return {
        "name": name_unseen(case.name),
        "about": name_unseen(case.about),
        "picture": case.picture,
        "report": name_unseen(case.report),
        "truth": case.truth.tolist(),
        "answers": [int(row.argmax()) for row in probabilities],
        "confidences": [round(float(row.max()), 4) for row in probabilities],
        "sets": sets,
        "inconsistent": name_unseen(case.inconsistent),
        "maps": None if case.maps is None else [write_map(values) for values in case.maps],
        "claims": list(case.claims),
    }
