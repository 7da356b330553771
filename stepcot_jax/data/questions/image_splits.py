"""Splits of grounded images by patient."""

from collections.abc import Sequence

import msgspec

from stepcot_jax.data.columns import RecordTable
from stepcot_jax.data.questions.vocabulary import canonical
from stepcot_jax.data.splits.making import PUBLISHED_FRACTIONS, deal
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record


def split_images(images: Sequence[Record], *, seed: int) -> list[Record]:
    """Return the images with splits by patient, stratified by diagnosis and origin; splits of the source are kept."""
    named = [image for image in images if image.split]
    if named:
        if len(named) < len(images):
            raise BadInput(f"{len(images) - len(named)} of {len(images)} images have no split; expected all or none")
        return list(images)
    splits = split_by_patient(images, [_stratum(image) for image in images], seed=seed)
    return [msgspec.structs.replace(image, split=split) for image, split in zip(images, splits, strict=True)]


def split_by_patient(
    images: Sequence[Record | Record | Record],
    strata: Sequence[str],
    *,
    seed: int,
    fractions: tuple[float, ...] = PUBLISHED_FRACTIONS,
    names: Sequence[str] = SPLIT_NAMES,
) -> list[str]:
    """Return the split of each image, by patient, stratified by `strata` and origin."""
    numbers = {name: min(place, 127) for place, name in enumerate(sorted(set(strata)))}
    table = RecordTable(
        Record(
            patient=image.patient, image=image.image, origin=image.origin, answers=(numbers[stratum],), reasoning=("",)
        )
        for image, stratum in zip(images, strata, strict=True)
    )
    parts = deal(table, seed=seed, fractions=fractions, joined=())
    split_of = {place: name for name, places in zip(names, parts, strict=True) for place in places}
    return [split_of[place] for place in range(len(table))]


def _stratum(image: Record) -> str:
    return image.facts.get("diagnosis") or (canonical(image.boxes[0].label) if image.boxes else "")
