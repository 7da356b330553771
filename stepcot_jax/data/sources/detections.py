"""Images with boxed findings from detection lists: ChestX-ray8, PadChest-GR, VinBigData and phantom folders.

MedCLM, data: detection lists are what its reasoning data starts from. Boxes that leave the picture are refused, never
clipped; none of the 984 released boxes of ChestX-ray8 does.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from stepcot_jax.box import Box
from stepcot_jax.data.records.records import OnBadRecord
from stepcot_jax.data.sources import chestxray8 as nih
from stepcot_jax.data.sources.chestxray8 import IMAGE_FOLDERS, ORIGIN, ImageRecord, list_box_images
from stepcot_jax.data.sources.intake import ImageFinder, Listing, Readers, Sorting, find_file
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.record import Record, SetAside

AUTO = "auto"

DETECTION_LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "chestxray8": (nih.BOX_LIST,),
    "padchest_gr": ("grounded_reports*.json",),
    "vinbigdata": ("train.csv",),
    "phantom": ("boxes.csv",),
}
"""Name of each layout and the files that it is recognised by."""

_NIH_LICENCE = "NIH Clinical Center: use is unrestricted with attribution and a link to the NIH download site"
_LOG = logging.getLogger(__name__)


def read_detections(
    root: Path,
    *,
    layout: str = AUTO,
    on_bad_record: OnBadRecord = "stop",
    require_images: bool = True,
    with_normal: bool = False,
    readers: Readers = 2,
    set_aside: list[SetAside] | None = None,
) -> list[Record]:
    """Read the images of a detection list with their boxed findings.

    Args:
      on_bad_record: "stop" raises at the first bad row, "skip" sets the images of bad rows aside.
      with_normal: also return images without a box of which the source denies findings ("No finding").
      readers: VinBigData: least number of readers whose boxes of a class agree, or "all" for every reader's box;
        PadChest-GR: "all" adds the boxes of the second reader.

    Returns:
      The images in the order of the list. `absent` holds only labels that the source denies.
    """
    root = Path(root)
    layout = detect_detection_layout(root) if layout == AUTO else layout
    if readers != "all" and (isinstance(readers, bool) or not isinstance(readers, int) or readers < 1):
        raise BadInput(f"readers: {readers!r} is not 'all' or a number from 1")
    listing = _find_reader(layout, with_normal=with_normal)
    path = find_file(root, *DETECTION_LAYOUTS[layout])
    if path is None:
        raise BadInput(f"{root}: has no {DETECTION_LAYOUTS[layout][0]}")
    sorting = Sorting(path, on_bad_record=on_bad_record, set_aside=set_aside)
    images, num_boxless = [], 0
    for place, image in listing(path, require_images, readers):
        if isinstance(image, BadInput) or (problem := _find_problem(image)):
            sorting.refuse(f"{place}: {image if isinstance(image, BadInput) else problem}")
            continue
        if not sorting.keep(image.id, place=place):
            continue
        image = _drop_repeats(image)
        if image.boxes or (with_normal and image.absent):
            images.append(image)
        else:
            num_boxless += 1
    sorting.finish()
    boxless = "without a finding that counts (no box, or too few readers agree) left out"
    for message, number in ((boxless, num_boxless), ("set aside as bad", len(sorting.set_aside))):
        if number:
            _LOG.warning("%s: %d image%s %s", path, number, "" if number == 1 else "s", message)
    if not images:
        raise BadInput(f"{path}: no image has a box")
    return images


def detect_detection_layout(root: Path) -> str:
    """Return the layout of a detection list, recognised by its file names."""
    root = Path(root)
    if not root.is_dir():
        raise BadInput(f"{root}: is not a folder; {_expected()}")
    found = [name for name, patterns in DETECTION_LAYOUTS.items() if any(next(root.glob(p), None) for p in patterns)]
    if "vinbigdata" in found and not _names_readers(root / "train.csv"):
        found.remove("vinbigdata")  # a table of splits has the same name
    if len(found) != 1:
        problem = (
            f"has files of the layouts {' and '.join(found)}; choose one" if found else "has no known detection list"
        )
        raise BadInput(f"{root}: {problem}; {_expected()}")
    return found[0]


def _names_readers(path: Path) -> bool:
    with open_untrusted(path, accepted="a table") as file:
        return b"rad_id" in file.readline(4096)


def _find_reader(layout: str, *, with_normal: bool) -> Callable[[Path, bool, Readers], Listing]:
    if layout == "chestxray8":
        return functools.partial(_list_chestxray8, with_normal=with_normal)
    if layout == "padchest_gr":
        from stepcot_jax.data.sources.padchest_grounding import list_padchest_gr

        return list_padchest_gr
    if layout == "vinbigdata":
        from stepcot_jax.data.sources.vinbigdata import list_vinbigdata

        return list_vinbigdata
    if layout == "phantom":
        from stepcot_jax.data.sources.phantom_folder import list_phantoms

        return list_phantoms
    raise BadInput(f"layout: {layout[:80]!r} is not one of {', '.join((AUTO, *DETECTION_LAYOUTS))}")


def _list_chestxray8(path: Path, require_images: bool, readers: Readers, *, with_normal: bool) -> Listing:
    """List the images of the box list, then on request those that the table of labels calls normal."""
    del readers  # the list has one box per finding
    finder = ImageFinder(path.parent, folders=IMAGE_FOLDERS, require_images=require_images)
    table = find_file(path.parent, nih.ENTRY_TABLE)
    entries = nih.read_entries(table) if table else []
    records = [*list_box_images(nih.read_box_list(path), entries)]
    for record in records:
        rows = ", ".join(str(box.number) for box in record.boxes)
        yield record.place, _ground(record, finder=finder, file=path.name, rows=rows)
    listed = {record.image for record in records}
    for entry in entries if with_normal else ():  # else their files need not be there
        if table and entry.labels == (nih.NO_FINDING,) and entry.image not in listed:
            normal = ImageRecord(entry.image, f"row {entry.number}", entry.labels, (), entry, "")
            yield (
                f"{table.name}, {normal.place}",
                _ground(normal, finder=finder, file=table.name, rows=str(entry.number)),
            )


def _ground(record: ImageRecord, *, finder: ImageFinder, file: str, rows: str) -> Record | BadInput:
    if record.problem:
        return BadInput(record.problem.removeprefix(f"{record.place}: "))
    try:
        image_path, _ = finder.find(record.image)
    except BadInput as error:
        return error
    return Record(
        id=Path(record.image).stem,
        image=image_path,
        image_size=(nih.RELEASED_SIDE, nih.RELEASED_SIDE),
        patient=record.patient_id,
        origin=ORIGIN,
        boxes=tuple(Box(row.box.label, row.box.corners) for row in record.boxes),
        absent=nih.CLASSES if record.labels == (nih.NO_FINDING,) else (),
        provenance={"file": file, "row": rows, "licence": _NIH_LICENCE},
    )


def _drop_repeats(image: Record) -> Record:
    """Keep one of several equal findings, and say so."""
    findings = tuple(dict.fromkeys(image.boxes))
    number = len(image.boxes) - len(findings)
    if not number:
        return image
    provenance = {**image.provenance, "repeated": f"{number} box{'' if number == 1 else 'es'} listed again, kept once"}
    return msgspec.structs.replace(image, boxes=findings, provenance=provenance)


def _find_problem(image: Record) -> str:
    """Return why records of the image would be refused, "" if they would not."""
    width, height = image.image_size
    for finding in image.boxes:
        try:
            finding.check()
        except BadInput as error:
            return str(error)
        try:
            Box(finding.region or "unknown", finding.corners).check()
        except BadInput as error:
            return f"region: {str(error).removeprefix('label: ')}"
        if finding.corners[2] > width or finding.corners[3] > height:
            return f"box: {list(finding.corners)} of {finding.label!r} leaves the picture of {width} by {height}"
    return ""


def _expected() -> str:
    return "expected " + "; ".join(f"{' or '.join(patterns)} ({name})" for name, patterns in DETECTION_LAYOUTS.items())
