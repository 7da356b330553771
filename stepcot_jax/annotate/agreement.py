"""Agreement of annotators per step, by Cohen's and Fleiss' kappa.

Chains are matched by image, the images of a report as one unit, uncertain answers like certain ones.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from jaxtyping import Float64, Int, Real

from stepcot_jax import __version__
from stepcot_jax.annotate.output import align_markdown
from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step, fold
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.records import Collection, read_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, write_whole
from stepcot_jax.host.untrusted import resolve
from stepcot_jax.pages.sheets import Table, columns
from stepcot_jax.pages.shell import Section, make_environment, render, tabulate, write_report
from stepcot_jax.record import Record

PAGE_NAME = "disagreements.html"

_TEMPLATES = make_environment(Path(__file__).parent)
_NUM_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class Unit:
    """One report: a case per annotator, of its first image, and all images with the same answers."""

    cases: tuple[Record, ...]
    image_paths: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Aligned:
    """The matched records of several annotators."""

    names: tuple[str, ...]
    collections: tuple[Collection, ...]  # all records of each annotator
    units: tuple[Unit, ...]  # reports that every annotator has
    num_missing: tuple[int, ...]  # per annotator, the number of records that only other annotators have

    @property
    def chain(self) -> Chain:
        """The steps as worded by the first annotator."""
        return self.collections[0].chain


def align(paths: Sequence[Path], *, names: Sequence[str] | None = None) -> Aligned:
    """Match the records of annotators, in folders with `data.json`, by image; `names` default to the folders'."""
    roots = [path.parent if path.is_file() and path.name == data_json.FILE_NAME else path for path in paths]
    collections = tuple(map(read_annotator, roots))
    for other in collections[1:]:
        _require_same_chain(collections[0], other)
    by_image = [{case.image: case for case in collection.cases} for collection in collections]
    common = [image for image in by_image[0] if all(image in cases for cases in by_image)]
    if not common:
        raise BadInput(f"{', '.join(map(str, roots))} have no image_path in common")
    matched = [tuple(cases[image] for cases in by_image) for image in common]
    for cases in matched:
        _require_same_report(cases, collections)
    every = set().union(*by_image)
    num_missing = tuple(len(every - set(cases)) for cases in by_image)
    return Aligned(_choose_names(roots, names), collections, _join(matched), num_missing)


def read_annotator(root: Path) -> Collection:
    """Read all records of a folder; images may be missing."""
    # Not with "stop", whose message recommends a training setting.
    collection = read_records(root, on_bad_record="skip", require_images=False)
    if not collection.set_aside:
        return collection
    first, more = collection.set_aside[0], len(collection.set_aside) - 1
    others = f"; {more} more of the {more + 1 + len(collection.cases)} records are bad" if more else ""
    where = f"{root / data_json.FILE_NAME}, record {first.record} (image_path {first.image_path[:_NUM_SHOWN]!r})"
    raise BadInput(f"{where}: {first.reason}{others}")


def _join(matched: Sequence[tuple[Record, ...]]) -> tuple[Unit, ...]:
    """Join images of one report with the same answers into one annotation."""
    groups: dict[object, list[tuple[Record, ...]]] = {}
    for cases in matched:
        case = cases[0]
        name = dict(case.provenance).get("report", "") or case.report
        answers = tuple((record.answers, record.uncertain) for record in cases)
        key = (case.patient, name, answers) if case.report else case.image
        groups.setdefault(key, []).append(cases)
    return tuple(Unit(group[0], tuple(cases[0].image for cases in group)) for group in groups.values())


def _choose_names(roots: Sequence[Path], names: Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        names = [resolve(root).name for root in roots]
        if len(set(names)) < len(names):
            names = [str(root) for root in roots]
    are_names = all(name.strip() and name.isprintable() for name in names)
    if len(names) != len(roots) or len(set(names)) != len(names) or not are_names:
        raise BadInput(f"--names: {list(names)} must be {len(roots)} different names, one per annotator")
    return tuple(names)


def _require_same_chain(first: Collection, other: Collection) -> None:
    for number, (one, two) in enumerate(zip(first.chain.steps, other.chain.steps, strict=True), start=1):
        if list(map(fold, one.options)) != list(map(fold, two.options)):
            raise BadInput(
                f"{other.root / data_json.FILE_NAME}, step {number}: the options {list(two.options)} differ from those "
                f"of {first.root / data_json.FILE_NAME}"
            )


def _require_same_report(cases: Sequence[Record], collections: Sequence[Collection]) -> None:
    for case, collection in zip(cases[1:], collections[1:], strict=True):
        for field, name in (("patient_id", "patient"), ("report", "report")):
            if getattr(case, name) != getattr(cases[0], name):
                path, first = (source.root / data_json.FILE_NAME for source in (collection, collections[0]))
                where = f"{path}, image_path {case.image[:_NUM_SHOWN]!r}, field {field!r}"
                raise BadInput(f"{where} differs from {first}")


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two annotators on one step, as in `StepComparison`: the reports that both answered, and Cohen's kappa."""

    names: tuple[str, str]
    num_cases: int
    agreement: float
    kappa: float


@dataclasses.dataclass(frozen=True)
class StepComparison:
    """All annotators on one step."""

    step: str
    num_cases: int
    agreement: float  # share of them with one common answer, 0 to 1; NaN without reports
    kappa: float  # Fleiss' kappa, of two annotators Cohen's; NaN if undefined
    pairs: tuple[Pair, ...]


def compare(aligned: Aligned) -> tuple[StepComparison, ...]:
    """Compute the agreement of two or more annotators, step by step."""
    if len(aligned.names) < 2:
        raise BadInput(f"agree requires two or more annotators; got only {aligned.names[0]}")
    labels = np.array([[case.stated for case in unit.cases] for unit in aligned.units])
    steps = enumerate(aligned.chain.steps)
    return tuple(_compare_step(step, labels[:, :, index], aligned.names) for index, step in steps)


def cohen_kappa(confusion: Real[np.ndarray, "*resample answer answer"]) -> Float64[np.ndarray, "*resample"]:
    """Return Cohen's kappa of two annotators, (observed - expected) / (1 - expected) agreement."""
    counts = confusion.astype(np.float64)
    total = counts.sum(axis=(-2, -1))
    with np.errstate(invalid="ignore"):  # 0 / 0 without cases, or if only one answer occurs
        expected = (counts.sum(axis=-2) * counts.sum(axis=-1)).sum(axis=-1) / total**2
        return (np.trace(counts, axis1=-2, axis2=-1) / total - expected) / (1 - expected)


def fleiss_kappa(
    counts: Int[np.ndarray, "case answer"], weights: Real[np.ndarray, "*resample case"] | None = None
) -> Float64[np.ndarray, "*resample"]:
    """Return Fleiss' kappa of two or more annotators from their numbers per answer, for one or many weightings."""
    weights = np.ones(len(counts)) if weights is None else weights.astype(np.float64)
    raters = counts.sum(axis=1)
    if not len(counts):
        return np.full(weights.shape[:-1], np.nan)
    if raters.min() != raters.max() or raters[0] < 2:
        raise ValueError(f"every case needs the same two or more annotators; got {raters.min()} to {raters.max()}")
    number = float(raters[0])
    within = ((counts.astype(np.float64) ** 2).sum(axis=1) - number) / (number * (number - 1))
    total = weights.sum(axis=-1)
    with np.errstate(invalid="ignore"):  # 0 / 0 without cases, or if only one answer occurs
        shares = weights @ counts / (total * number)[..., None]
        expected = (shares**2).sum(axis=-1)
        return (weights @ within / total - expected) / (1 - expected)


def as_markdown(comparison: Sequence[StepComparison]) -> str:
    """Write a comparison as a Markdown table."""
    rows = [("Step", "Annotators", "Reports", "Agreement", "Kappa")]
    for step in comparison:
        figures: list[tuple[str, str, StepComparison | Pair]] = [(step.step, "all", step)]
        figures += [("", " / ".join(pair.names), pair) for pair in step.pairs if len(step.pairs) > 1]
        for name, who, of in figures:
            rows.append((name, who, str(of.num_cases), show_figure(of.agreement), show_figure(of.kappa)))
    kinds = "Cohen's of the two" if len(comparison[0].pairs) == 1 else "Fleiss' of all, Cohen's of two"
    return f"{align_markdown(rows)}\nKappa is {kinds}.\n"


def show_figure(figure: float) -> str:
    """Format a share or a kappa for tables."""
    return "n/a" if math.isnan(figure) else f"{figure:.3f}"


def _compare_step(step: Step, labels: Int[np.ndarray, "case annotator"], names: Sequence[str]) -> StepComparison:
    answered = labels[(labels != NOT_ANNOTATED).all(axis=1)]
    counts = (answered[:, :, None] == np.arange(step.num_answers)).sum(axis=1)
    pairs = tuple(
        _compare_pair(labels[:, [a, b]], step.num_answers, (names[a], names[b]))
        for a, b in itertools.combinations(range(len(names)), 2)
    )
    agreement = float((counts == len(names)).any(axis=1).mean()) if len(answered) else math.nan
    # Fleiss' kappa of two annotators is not Cohen's: the two define chance agreement differently.
    kappa = pairs[0].kappa if len(pairs) == 1 else float(fleiss_kappa(counts))
    return StepComparison(step.name, len(answered), agreement, kappa, pairs)


def _compare_pair(labels: Int[np.ndarray, "case 2"], num_answers: int, names: tuple[str, str]) -> Pair:
    answered = labels[(labels != NOT_ANNOTATED).all(axis=1)]
    confusion = np.zeros((num_answers, num_answers), np.int64)
    np.add.at(confusion, (answered[:, 0], answered[:, 1]), 1)
    agreement = float(np.trace(confusion)) / len(answered) if len(answered) else math.nan
    return Pair(names, len(answered), agreement, float(cohen_kappa(confusion)))


def write_agreement(folder: Path, aligned: Aligned, comparison: Sequence[StepComparison]) -> None:
    """Write `agreement.json`, `agreement.md` and the page."""
    figures = {
        "annotators": list(aligned.names),
        "num_reports": len(aligned.units),
        "num_missing": dict(zip(aligned.names, aligned.num_missing, strict=True)),
        "steps": comparison,
    }
    make_workdir(folder)
    plain = json.loads(msgspec.json.encode({"version": __version__, **figures}))  # NaN becomes null
    write_whole(folder / "agreement.json", json.dumps(plain, indent=1, ensure_ascii=False).encode() + b"\n")
    write_whole(folder / "agreement.md", as_markdown(comparison).encode())
    units = find_disagreements(aligned)
    rows = ((step.step, step.num_cases, show_figure(step.agreement), show_figure(step.kappa)) for step in comparison)
    heads = (*columns("text", "step"), *columns("number", "reports"), *columns("text", "all agree", "kappa"))
    side_by_side = render(_TEMPLATES, "disagreements.html.j2", aligned=aligned, units=units, show_answer=show_answer)
    sections = [
        tabulate(Table("agreement", "Agreement by step", heads, tuple(rows))),
        Section("disagreements", "Disagreements", "", side_by_side, style="tr.differs { background: var(--warn); }\n"),
    ]
    title = f"{len(units)} of {len(aligned.units)} reports with a disagreement"
    about = (f"Annotators: {', '.join(aligned.names)}.",)
    page = write_report(title=title, about=about, sections=sections, writer="stepcot annotate agree")
    write_whole(folder / PAGE_NAME, page.encode())


def find_disagreements(aligned: Aligned) -> list[Unit]:
    """Return the reports on which annotators differ in at least one step."""
    return [unit for unit in aligned.units if len({case.stated for case in unit.cases}) > 1]


def show_answer(step: Step, case: Record, index: int) -> str:
    """Return a case's answer to the step of this index, for readers."""
    label = case.stated[index]
    doubt = "" if label == case.answers[index] else " (uncertain)"
    return "not answered" if label == NOT_ANNOTATED else step.lettered_options[label] + doubt
