"""Match the records of several annotators by image, with the images of one report as one unit."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from stepcot_jax.chain import Chain, fold
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.records import Collection, read_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record

_NUM_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class Unit:
    """One report: a case per annotator, of its first image, and all images with the same answers."""

    cases: tuple[Record, ...]
    image_paths: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Aligned:
    """The matched records of several annotators.

    Attributes:
      collections: all records of each annotator.
      units: reports that every annotator has.
      num_missing: per annotator, the number of records that only others have.
    """

    names: tuple[str, ...]
    collections: tuple[Collection, ...]
    units: tuple[Unit, ...]
    num_missing: tuple[int, ...]

    @property
    def chain(self) -> Chain:
        """The steps as worded by the first annotator."""
        return self.collections[0].chain


def align(paths: Sequence[Path], *, names: Sequence[str] | None = None) -> Aligned:
    """Match the records of several annotators, in folders with `data.json`, by image; `names` default to the folders'.

    Raises:
      BadInput: a file cannot be used, chains or reports differ, or no record is common to all.
    """
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
    return Aligned(_name(roots, names), collections, _join(matched), tuple(len(every - set(c)) for c in by_image))


def read_annotator(root: Path) -> Collection:
    """Read all records of a folder; images may be missing."""
    # Not read with "stop", whose message recommends a setting of the training.
    collection = read_records(root, on_bad_record="skip", require_images=False)
    if not collection.set_aside:
        return collection
    first, more = collection.set_aside[0], len(collection.set_aside) - 1
    others = f"; {more} more of the {more + 1 + len(collection.cases)} records are bad" if more else ""
    where = f"{root / data_json.FILE_NAME}, record {first.record} (image_path {first.image_path[:_NUM_SHOWN]!r})"
    raise BadInput(f"{where}: {first.reason}{others}")


def _join(matched: Sequence[tuple[Record, ...]]) -> tuple[Unit, ...]:
    """Join images of one report with the same answers: they are one annotation."""
    groups: dict[object, list[tuple[Record, ...]]] = {}
    for cases in matched:
        case = cases[0]
        name = dict(case.provenance).get("report", "") or case.report
        answers = tuple((each.answers, each.uncertain) for each in cases)
        key = (case.patient, name, answers) if case.report else case.image
        groups.setdefault(key, []).append(cases)
    return tuple(Unit(group[0], tuple(cases[0].image for cases in group)) for group in groups.values())


def _name(roots: Sequence[Path], names: Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        names = [root.resolve().name for root in roots]
        if len(set(names)) < len(names):
            names = [str(root) for root in roots]
    are_names = all(name.strip() and name.isprintable() for name in names)
    if len(names) != len(roots) or len(set(names)) != len(names) or not are_names:
        raise BadInput(f"--names: {list(names)} must be {len(roots)} different names, one per annotator")
    return tuple(names)


def _require_same_chain(first: Collection, other: Collection) -> None:
    options = [[[fold(option) for option in step.options] for step in each.chain.steps] for each in (first, other)]
    differing = [place for place, (one, two) in enumerate(zip(*options, strict=True)) if one != two]
    if differing:
        step = other.chain.steps[differing[0]]
        raise BadInput(
            f"{other.root / data_json.FILE_NAME}, step {differing[0] + 1}: the options {list(step.options)} differ "
            f"from those of {first.root / data_json.FILE_NAME}"
        )


def _require_same_report(cases: Sequence[Record], collections: Sequence[Collection]) -> None:
    for case, collection in zip(cases[1:], collections[1:], strict=True):
        for field, name in (("patient_id", "patient"), ("report", "report")):
            if getattr(case, name) != getattr(cases[0], name):
                path, first = (each.root / data_json.FILE_NAME for each in (collection, collections[0]))
                where = f"{path}, image_path {case.image[:_NUM_SHOWN]!r}, field {field!r}"
                raise BadInput(f"{where} differs from {first}")
