"""One record an image of ChestX-ray8, from the box list and the table of labels together."""

import dataclasses
from collections.abc import Iterable

from stepcot_jax.data.sources.chestxray8_tables import Entry, ListedBox


@dataclasses.dataclass(frozen=True)
class ImageRecord:
    """What both tables say of one image.

    Attributes:
      image: name of its file.
      place: what to call the record in messages.
      labels: distinct classes.
      boxes: its rows of the box list.
      entry: its row of the table of labels; None where that has none.
      problem: why the record cannot be used; "" if it can.
    """

    image: str
    place: str
    labels: tuple[str, ...]
    boxes: tuple[ListedBox, ...]
    entry: Entry | None
    problem: str

    @property
    def patient_id(self) -> str:
        """The patient as the table of labels has it, else the number that the image's name begins with."""
        if self.entry and self.entry.patient_id:
            return self.entry.patient_id
        return self.image.partition("_")[0] or self.image


def list_box_images(boxes: Iterable[ListedBox], entries: Iterable[Entry]) -> list[ImageRecord]:
    """The images of the box list, in its order, with the labels of their boxes."""
    entry_of = {entry.image: entry for entry in entries}
    records = []
    for listed in _group(boxes).values():
        image, place = listed[0].image, f"row {listed[0].number}"
        entry = entry_of.get(image)
        problem = next((box.problem for box in listed if box.problem), "")
        if entry and entry.problem and not problem:
            problem = f"{place}: in the table of labels: {entry.problem}"
        labels = tuple(dict.fromkeys(box.label for box in listed))
        records.append(ImageRecord(image, place, labels, listed, entry, problem))
    return records


def list_entries(boxes: Iterable[ListedBox], entries: Iterable[Entry]) -> list[ImageRecord]:
    """The rows of the table of labels, in its order, then the images that are in the box list only."""
    boxes_of = _group(boxes)
    first: dict[str, int] = {}
    records = []
    for entry in entries:
        listed = boxes_of.get(entry.image, ()) if entry.image else ()
        problem = entry.problem or next((f"in the box list: {box.problem}" for box in listed if box.problem), "")
        known = first.setdefault(entry.image, entry.number)
        if known != entry.number and not problem:
            problem = f"row {entry.number}: found the image of row {known} again, accepted is one row an image"
        records.append(ImageRecord(entry.image, f"row {entry.number}", entry.labels, listed, entry, problem))
    for image, listed in boxes_of.items():
        if image not in first:
            place = f"row {listed[0].number} of the box list"
            problem = listed[0].problem or f"{place}: found an image that the table of labels does not have"
            records.append(ImageRecord(listed[0].image, place, (), listed, None, problem))
    return records


def _group(boxes: Iterable[ListedBox]) -> dict[str, tuple[ListedBox, ...]]:
    """The boxes of each image; a row without an image's name is a group of its own."""
    groups: dict[str, list[ListedBox]] = {}
    for box in boxes:
        groups.setdefault(box.image or f"\0{box.number}", []).append(box)
    return {image: tuple(listed) for image, listed in groups.items()}
