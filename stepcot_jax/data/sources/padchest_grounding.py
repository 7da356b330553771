"""PadChest-GR as grounded images: each label of a sentence with its boxes, sentence and location."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.box import Box
from stepcot_jax.data.records import data_json
from stepcot_jax.data.sources import padchest_gr as files
from stepcot_jax.data.sources.intake import ImageFinder, Listing, Readers, read_image_size
from stepcot_jax.data.sources.padchest_gr import IMAGE_FOLDERS, ORIGIN, read_facts, sentence_of
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record

_LICENCE = "PadChest-GR: BIMCV data use agreement"
_NORMAL = ("normal", "unchanged")


class _Place(msgspec.Struct, frozen=True):
    locations: Any = None


class _Places(msgspec.Struct, frozen=True):
    findings: tuple[_Place, ...]


def list_padchest_gr(path: Path, require_images: bool, readers: Readers) -> Listing:
    """List the studies of the grounded reports.

    A label of a boxed sentence is a finding at each of its boxes. Boxes are fractions of the picture, so every study
    needs its image file. A label is absent if a sentence that is not abnormal and has no boxes names it, and no other
    sentence finds it. Patients come from the master table; without it each study counts as a patient.
    """
    del require_images
    finder = ImageFinder(path.parent, folders=IMAGE_FOLDERS, require_images=True)
    facts = read_facts(path.parent, path=path)
    for index, raw in enumerate(data_json.read_raw_records(path)):
        try:
            study = files.decode_study(raw, index=index)
            places = msgspec.json.decode(raw, type=_Places).findings
            locations = [place.locations for place in places]
            image = _ground(study, locations, finder=finder, facts=facts, readers=readers)
            provenance = {"file": path.name, "row": str(index), "licence": _LICENCE}
            yield f"record {index}", msgspec.structs.replace(image, provenance=provenance)
        except BadInput as error:
            yield f"record {index}", error


def _ground(
    study: files.GroundedStudy,
    locations: list[Any],
    *,
    finder: ImageFinder,
    facts: Mapping[str, files.StudyFacts],
    readers: Readers,
) -> Record:
    study_id = str(study.study)
    if not study_id.strip() or (facts and study_id not in facts):
        raise BadInput(f"StudyID: {study_id[:80]!r} is {'not in the master table' if study_id.strip() else 'blank'}")
    image_path, real_path = finder.find(study.image)
    width, height = read_image_size(Path(real_path))
    findings, denied = [], []
    for sentence, places in zip(study.findings, locations, strict=True):
        labels = [" ".join(label.split()) for label in sentence.labels or () if label.strip()]
        extra = sentence.extra_boxes or ()
        boxes = (*(sentence.boxes or ()), *(extra if readers == "all" else ()))
        if not sentence.abnormal and not boxes and not extra:
            denied += [label for label in labels if label.casefold() not in _NORMAL]
        region = ", ".join(place for place in places if isinstance(place, str)) if isinstance(places, list) else ""
        for corners in boxes:
            x1, y1, x2, y2 = (min(max(corner, 0.0), 1.0) for corner in corners)
            box = (x1 * width, y1 * height, x2 * width, y2 * height)
            findings += [Box(label, box, sentence_of(sentence), region) for label in labels]
    present = {label.casefold() for sentence in study.findings if sentence.abnormal for label in sentence.labels or ()}
    present |= {finding.label.casefold() for finding in findings}
    return Record(
        id=study_id,
        image=image_path,
        image_size=(width, height),
        patient=facts[study_id].patient_id if facts else study_id,
        origin=ORIGIN,
        boxes=tuple(findings),
        absent=tuple(dict.fromkeys(label for label in denied if label.casefold() not in present)),
    )
