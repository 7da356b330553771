"""DeepLesion (Yan et al., 2018): DL_info.csv and key slices of CT in Images_png/SERIES/SLICE.png.

Boxes count from 1: 1 is taken off every corner, as the public loaders do. The type says where a lesion is, not what it
is, and is -1 (unknown) in the training part. Values are Hounsfield units plus 32768 in 16 bits: `image_decoding` shows
those from -1024 to 1050 of such a picture; the window of each row is not read.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from stepcot_jax.data.delimited import read_columns
from stepcot_jax.data.sources.box_files import Mark, Picture, list_pictures, read_number
from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Split

_COLUMNS = ("File_name", "Patient_index", "Bounding_boxes", "Coarse_lesion_type", "Possibly_noisy", "Train_Val_Test")
_SPLITS: dict[str, Split] = {"1": "train", "2": "val", "3": "test"}
_KINDS = {
    "1": "bone lesion",
    "2": "abdomen lesion",
    "3": "mediastinum lesion",
    "4": "liver lesion",
    "5": "lung lesion",
    "6": "kidney lesion",
    "7": "soft tissue lesion",
    "8": "pelvis lesion",
    "-1": "lesion",
}
_FOLDERS = ("Images_png", "Images_png/Images_png", "Key_slices", ".")
_NUMBERS = re.compile(r"[\s,;]+")


def list_deeplesion(root: Path, how: How) -> Source:
    """List the key slices; one that the authors mark as possibly noisy is left out by a rule."""
    path = root / "DL_info.csv"
    if not path.is_file():
        raise BadInput(f"{root}: has no DL_info.csv")
    licence = "NIH Clinical Center, DeepLesion"
    pictures = _read(path)
    return list_pictures(root, how, pictures, file=path.name, origin="DeepLesion", folders=_FOLDERS, licence=licence)


def _read(path: Path) -> Iterator[Picture]:
    pictures: dict[str, Picture] = {}
    for row, cells, problem in read_columns(path, _COLUMNS):
        name, patient, written, kind, noisy, part = cells
        where = f"row {row.number}"
        if not problem and part not in _SPLITS:
            problem = f"Train_Val_Test: {part[:20]!r} is not 1, 2 or 3"
        if not problem and kind not in _KINDS:
            problem = f"Coarse_lesion_type: {kind[:20]!r} is not 1 to 8 or -1"
        if not problem and "_" not in name:
            problem = f"File_name: {name[:80]!r} is not PATIENT_STUDY_SERIES_SLICE.png"
        if problem or not name:
            yield Picture("", name, where, problem=problem or "File_name: blank")
            continue
        image = "/".join(name.rsplit("_", 1))
        split, known = _SPLITS[part], (("lesion_type", kind),)
        start = Picture(
            name, image, where, split=split, patient=patient or name.partition("_")[0], modality="CT", facts=known
        )
        marks = _read_marks(written, kind, where, is_noisy=noisy not in ("", "0"))
        picture = pictures.get(name, start)
        pictures[name] = picture._replace(marks=(*picture.marks, *marks))
    yield from pictures.values()


def _read_marks(written: str, kind: str, where: str, *, is_noisy: bool) -> Sequence[Mark]:
    numbers = [read_number(text) for text in _NUMBERS.split(written.strip()) if text]
    rule = "Possibly_noisy: 1, as the authors mark it" if is_noisy else ""
    if not numbers or len(numbers) % 4:
        return [Mark(where, "", (0, 0, 0, 0), f"Bounding_boxes: {written[:80]!r} is not four numbers a box", rule)]
    boxes = zip(*(iter(numbers),) * 4, strict=True)
    return [Mark(where, _KINDS[kind], (x1 - 1, y1 - 1, x2 - 1, y2 - 1), rule=rule) for x1, y1, x2, y2 in boxes]
