"""The organ that hosts a lesion (MedCLM): by masks, by what the source says, or by an atlas fitted to the radiograph.

Masks are files (ORGAN/IMAGE, IMAGE/ORGAN, or foldN/masks/ORGAN/IMAGE as SCR has them for JSRT) or CheXmask's table.
"""

import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import get_args

import numpy as np
from jaxtyping import Bool
from PIL import Image

from stepcot_jax.annotate.recipes.items import HostOrgan, TaskSettings
from stepcot_jax.annotate.recipes.pictures import MOST_PIXELS, read_content, read_picture
from stepcot_jax.box import Corners, iou
from stepcot_jax.data.delimited import read_columns
from stepcot_jax.data.images.drawn_boxes import scale_boxes
from stepcot_jax.data.images.image_decoding import decode_picture
from stepcot_jax.data.questions.organ_atlas import Fit, fit_atlas, map_lungs, name_organ
from stepcot_jax.data.questions.vocabulary import host_organ, split_lungs
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record

Mask = Bool[np.ndarray, "height width"]

ORGAN_FROM = "organ from"
"""Name in the provenance: "masks", "source", or "atlas" with the least share of a box in its organ."""

LEAST_DICE = 0.7
"""CheXmask's own limit of "Dice RCA (Mean)", below which its masks are not to be used."""

_GREATEST_OUTSIDE = 127
_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif")
_FILMS = (*_SUFFIXES, ".dcm", ".dicom")
_TABLE = ("Left Lung", "Right Lung", "Heart", "Height", "Width")
_RADIOGRAPH = "xray"
_LUNGS = ("right lung", "left lung")


Row = tuple[int, dict[str, str], tuple[str, str]]
"""Of CheXmask's table: number, runs "start length" of each organ's mask (from 1, along the rows), height and width."""


class Hosts:
    """Finds the host organs of records; `images` are those that will be asked about."""

    def __init__(self, settings: TaskSettings, images: Collection[str]) -> None:
        self._settings, self._fits = settings, dict[str, Fit]()
        masks = settings.masks
        self._table = masks if masks is not None and masks.is_file() else None
        self._rows = {} if self._table is None else _read_table(self._table, images)

    def find(self, record: Record) -> tuple[str, str]:
        """Return the organs that host a record's boxes, and from where they are known; two "" if they are unknown."""
        masks = self._read_masks(record.image)
        if masks:
            shape = next(iter(masks.values())).shape
            boxes = scale_boxes([box.corners for box in record.references], record.image_size, shape)
            organ = find_hosts(boxes, masks, method=self._settings.host_organ)
            return organ, "masks" if organ else ""
        if record.organ:
            return record.organ, "source"
        if self._settings.organ_prior != "atlas" or record.modality != _RADIOGRAPH:
            return "", ""
        return self._ask_atlas(record)

    def _read_masks(self, image: str) -> dict[str, Mask]:
        settings = self._settings
        if self._table is not None:
            return _decode_row(self._rows[image], self._table) if image in self._rows else {}
        folder, root = (settings.root / "masks", settings.root) if settings.masks is None else (settings.masks,) * 2
        return read_masks(folder, image, root=root)

    def _ask_atlas(self, record: Record) -> tuple[str, str]:
        """Return the organs that the fitted atlas names for every box; none if it names none for one of them."""
        if record.image not in self._fits:
            picture = read_picture(record.image, self._settings).convert("L")
            self._fits = {record.image: fit_atlas(map_lungs(np.asarray(picture)))}
        fit, (width, height) = self._fits[record.image], record.image_size
        named = []
        for box in record.references:
            x1, y1, x2, y2 = box.corners
            named.append(name_organ(box.label, (x1 / width, y1 / height, x2 / width, y2 / height), fit))
        if not all(organ for organ, _ in named):
            return "", ""
        least = min((share for _, share in named), default=0.0)
        return " and ".join(sorted({organ for organ, _ in named})), f"atlas, share {least:.2f}"


def find_hosts(boxes: Sequence[Corners], masks: Mapping[str, Mask], *, method: HostOrgan) -> str:
    """Return the organs that host boxes in alphabetical order, joined by "and"; "" if no mask meets any box.

    "coverage": the share of the box in the mask; "iou_mask": their IoU; "iou_box": that of box and the mask's box.
    """
    if method not in get_args(HostOrgan):
        raise BadInput(f"--host-organ: {method!r} is not one of {', '.join(get_args(HostOrgan))}")
    hosts = {_find_host(box, masks, method) for box in boxes if masks}
    return " and ".join(sorted(filter(None, hosts)))


def _find_host(box: Corners, masks: Mapping[str, Mask], method: HostOrgan) -> str:
    if method == "coverage":
        return host_organ(box, masks)
    shares = {name: _overlap(box, mask, method) for name, mask in masks.items()}
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] > 0 else ""


def _overlap(box: Corners, mask: Mask, method: HostOrgan) -> float:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not rows.size:
        return 0.0
    if method == "iou_box":
        return float(iou([box], [[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]])[0, 0])
    x1, y1 = (int(np.floor(edge)) for edge in box[:2])
    x2, y2 = (int(np.ceil(edge)) for edge in box[2:])
    shared = int(mask[y1:y2, x1:x2].sum())
    return shared / ((x2 - x1) * (y2 - y1) + int(mask.sum()) - shared)


def read_masks(folder: Path, image_path: str, *, root: Path | None = None) -> dict[str, Mask]:
    """Return an image's masks by organ, from files; a mask "lung" is split into two lungs."""
    stem = Path(image_path).stem
    files = {path.stem: path for path in _list_files(folder / stem)}
    if not files and folder.is_dir():
        organs = sorted(path for path in (*folder.iterdir(), *folder.glob("fold*/masks/*")) if path.is_dir())
        files = {organ.name: path for organ in organs for path in _list_files(organ, stem)}
    root = root or folder
    masks = {organ: _read_mask(root, path.relative_to(root).as_posix()) for organ, path in files.items()}
    if len({mask.shape for mask in masks.values()}) > 1:
        raise BadInput(f"{folder}: masks of {image_path[:80]!r} differ in size")
    if "lung" in masks and masks["lung"].any():
        masks = {f"{side} lung": mask for side, mask in split_lungs(masks.pop("lung")).items()} | masks
    _check_sides(masks, f"{folder}: masks of {image_path[:80]!r}")
    return masks


def _check_sides(masks: Mapping[str, Mask], where: str) -> None:
    """Refuse lungs that are named by the picture's sides, or a mirrored picture."""
    right, left = (np.flatnonzero(masks[name].any(axis=0)) if name in masks else np.zeros(0) for name in _LUNGS)
    if right.size and left.size and right.mean() > left.mean():
        raise BadInput(f"{where}: 'left lung' lies left in the picture; expected the patient's left, which is right")


def _list_files(folder: Path, stem: str | None = None) -> list[Path]:
    if not folder.is_dir():
        return []
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES and path.is_file())
    return [path for path in files if stem is None or path.stem == stem]


def _read_mask(root: Path, name: str) -> Mask:
    return np.asarray(_decode_mask(*read_content(root, name)).convert("L")) > _GREATEST_OUTSIDE


def _decode_mask(content: bytes, name: str) -> Image.Image:
    """Decode a mask, which may have a format that no radiograph has."""
    if not content.startswith((b"GIF8", b"BM", b"II*\0", b"MM\0*")):
        return decode_picture(content, name=name, max_pixels=MOST_PIXELS)
    try:
        picture = Image.open(io.BytesIO(content), formats=("GIF", "BMP", "TIFF"))
        if picture.width * picture.height > MOST_PIXELS:
            raise BadInput(f"{name}: {picture.width} x {picture.height} pixels; at most {MOST_PIXELS}")
        picture.load()
    except BadInput:
        raise
    except Exception as error:  # Pillow's decoders raise a dozen types of error on broken files
        raise BadInput(f"{name}: cannot be decoded: {type(error).__name__}: {str(error)[:200]}") from error
    return picture


# CheXmask: a table with the masks of a whole collection (Gaggion et al., Scientific Data 2024).


def _read_table(path: Path, images: Collection[str]) -> dict[str, Row]:
    """Return the rows of some images that reach CheXmask's own quality; the first column names a row's image."""
    wanted: dict[str, str] = {}
    for image in images:
        parts = PurePosixPath(_without_suffix(image)).parts
        for tail in ("/".join(parts[start:]) for start in range(len(parts))):
            wanted[tail] = "" if tail in wanted else image  # none for a name of several images
    rows: dict[str, Row] = {}
    columns = read_columns(path, _TABLE, optional=("Dice RCA (Mean)",))
    for row, (left, right, heart, height, width, dice), problem in columns:
        if image := wanted.get(_without_suffix(row.cells[0]), ""):
            try:
                if problem:
                    raise ValueError(problem)
                is_good = float(dice or 1) >= LEAST_DICE
            except ValueError as error:
                raise BadInput(f"{path}: row {row.number}: {error}") from None
            runs = {"right lung": right, "left lung": left, "heart": heart}
            if is_good:
                rows[image] = row.number, {organ: text for organ, text in runs.items() if text}, (height, width)
    return rows


def _without_suffix(name: str) -> str:
    return next((name[: -len(suffix)] for suffix in _FILMS if name.lower().endswith(suffix)), name)


def _decode_row(row: Row, table: Path) -> dict[str, Mask]:
    number, runs, sides = row
    try:
        height, width = map(int, sides)
        if min(height, width) < 1 or height * width > MOST_PIXELS:
            raise ValueError(f"Height, Width: {height} x {width} pixels")
        masks = {organ: _decode_runs(text, height * width).reshape(height, width) for organ, text in runs.items()}
    except (ValueError, OverflowError) as error:
        raise BadInput(f"{table}: row {number}: {error}; expected runs of a mask as CheXmask writes them") from None
    _check_sides(masks, f"{table}: row {number}")
    return masks


def _decode_runs(text: str, size: int) -> Bool[np.ndarray, " pixel"]:
    numbers = np.array(text.split(), np.int64)
    if numbers.size % 2:
        raise ValueError("a start without a length")
    starts, lengths = numbers.reshape(-1, 2).T
    if starts.min() < 1 or lengths.min() < 0 or lengths.max() > size or (starts + lengths - 1).max() > size:
        raise ValueError(f"runs leave the {size} pixels")
    steps = np.bincount(starts - 1, minlength=size + 1) - np.bincount(starts + lengths - 1, minlength=size + 1)
    mask: Bool[np.ndarray, " pixel"] = steps[:size].cumsum() > 0
    return mask
