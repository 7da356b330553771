"""A CSV of boxes: in pixels, in shares (Open Images), as x, y, width, height, or without a header (keras-retinanet).

Whether numbers are pixels or shares is proven by the table: shares are all at most 1 and some are no whole numbers.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from stepcot_jax.box import Corners
from stepcot_jax.data.delimited import Row, fold_column, read_rows
from stepcot_jax.data.identities import read_split
from stepcot_jax.data.sources.box_files import Mark, Picture, list_pictures, read_number
from stepcot_jax.data.sources.intake import SUFFIXES
from stepcot_jax.data.sources.listed import FRACTIONS, How, Source
from stepcot_jax.data.sources.question_files import split_of_name
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Split

_IMAGE = ("filename", "file name", "image", "image path", "imageid", "image id", "path", "img", "patientid")
_LABEL = ("class", "labelname", "label", "class name", "category", "finding", "name")
_CORNERS = (
    ("xmin", "ymin", "xmax", "ymax"),
    ("x min", "y min", "x max", "y max"),
    ("x1", "y1", "x2", "y2"),
)
_SIZED = (("x", "y", "width", "height"), ("x", "y", "w", "h"), ("xmin", "ymin", "w", "h"))
_SIZE = ("width", "height")
_BARE = 6  # cells of a row without a header: path, x1, y1, x2, y2, class


class Columns(NamedTuple):
    """Positions of the columns that are read."""

    image: int
    label: int
    numbers: tuple[int, ...]  # of the four numbers
    is_sized: bool  # whether the last two are width and height
    size: tuple[int, ...] = ()  # of the picture's width and height
    split: int = -1
    patient: int = -1


def find_columns(names: Sequence[str]) -> Columns | None:
    """Return the columns of a table by their names; None if it has no boxes of named classes."""
    columns = {fold_column(name): position for position, name in enumerate(names)}
    find = lambda known: next((columns[name] for name in known if name in columns), -1)  # noqa: E731
    image, label = find(_IMAGE), find(_LABEL)
    for numbers, is_sized in itertools.chain(((four, False) for four in _CORNERS), ((four, True) for four in _SIZED)):
        if min(image, label) >= 0 and all(name in columns for name in numbers):
            has_size = not is_sized and all(name in columns for name in _SIZE)
            size = tuple(columns[name] for name in _SIZE) if has_size else ()
            places = tuple(columns[name] for name in numbers)
            return Columns(image, label, places, is_sized, size, find(("split",)), find(("patient", "patient id")))
    return None


def _find_bare(cells: Sequence[str]) -> Columns | None:
    """Return the columns of keras-retinanet's rows: path, x1, y1, x2, y2, class, or five empty cells."""
    is_row = len(cells) == _BARE and Path(cells[0]).suffix.lower() in SUFFIXES
    if is_row and (not any(cells[1:]) or all(read_number(cell) == read_number(cell) for cell in cells[1:5])):
        return Columns(0, 5, (1, 2, 3, 4), False)
    return None


def find_tables(root: Path) -> dict[Path, Columns]:
    """Return the tables of boxes in a folder, or the one that is given."""
    found = {}
    for path in [root] if root.is_file() else sorted((*root.glob("*.csv"), *root.glob("*/_annotations.csv"))):
        try:
            first = next(read_rows(path), None)
        except BadInput:
            continue
        if first and (columns := find_columns(first.cells) or _find_bare(first.cells)):
            found[path] = columns
    return found


def is_box_table(root: Path) -> bool:
    """Return whether a folder has a table of boxes."""
    return bool(find_tables(root))


def list_box_table(root: Path, how: How) -> Source:
    """List the pictures of all tables of boxes of a folder; a row without numbers is a picture without a finding."""
    tables = find_tables(root)
    folder = root if root.is_dir() else root.parent
    if not tables:
        raise BadInput(f"{root}: no table has columns of an image, a class, and xmin, ymin, xmax, ymax or x, y, w, h")
    folders = dict.fromkeys(name for path in tables for name in _guess_folders(path, folder))
    names = _read_names(folder)
    several = len(tables) > 1
    pictures = (
        picture for path, columns in tables.items() for picture in _read(path, columns, folder, names, several=several)
    )
    file = next(iter(tables)).name if len(tables) == 1 else ""
    return list_pictures(folder, how, pictures, file=file, origin=folder.name or "boxes", folders=tuple(folders))


def _guess_folders(path: Path, root: Path) -> tuple[str, ...]:
    """Return the folders in which a table's pictures may lie: of "train_labels.csv" also train and images/train."""
    beside, part = path.parent.relative_to(root).as_posix(), re.split("[-_]", path.stem)[0]
    return tuple(dict.fromkeys((beside, part or beside, "images", f"images/{part or '.'}", ".")))


def _read_names(root: Path) -> dict[str, str]:
    """Return the names of codes of classes, of a table of two columns without a header."""
    names: dict[str, str] = {}
    for pattern in ("class-descriptions*.csv", "classes.csv"):
        for path in sorted(root.glob(pattern)):
            rows = [row.cells for row in read_rows(path) if len(row.cells) == 2]
            names |= {code: name for code, name in rows if not name.isdecimal()}
    return names


def _read(path: Path, columns: Columns, root: Path, names: dict[str, str], *, several: bool) -> Iterator[Picture]:
    rows = [row for row in read_rows(path) if find_columns(row.cells) is None]
    numbers = {row.number: _numbers(row, columns) for row in rows}
    space = _prove_space(numbers.values(), path)
    split = split_of_name(path.name) or split_of_name(path.parent.name if path.parent != root else "")
    pictures: dict[str, Picture] = {}
    for row in rows:
        where = f"{path.relative_to(root).as_posix()}, row {row.number}" if several else f"row {row.number}"
        if len(row.cells) <= max(columns.image, columns.label, *columns.numbers):
            yield Picture("", "", where, problem=f"has {len(row.cells)} cells; too few")
            continue
        image = row.cells[columns.image]
        own = _cell(row, columns.split)
        picture = pictures.get(image) or _start(image, where, root, path, row, columns, space, split)
        try:
            picture = picture._replace(split=read_split(own)) if own else picture
        except BadInput as error:
            picture = picture._replace(problem=str(error))
        mark = _read_mark(row, columns, numbers[row.number], names, where)
        if mark and space != FRACTIONS and _is_share(numbers[row.number]):
            mark = mark._replace(problem=f"box: {list(numbers[row.number])} are shares in a table of pixels")
        pictures[image] = picture if mark is None else picture._replace(marks=(*picture.marks, mark))
    yield from pictures.values()


def _cell(row: Row, column: int) -> str:
    return row.cells[column] if 0 <= column < len(row.cells) else ""


def _start(
    image: str, where: str, root: Path, path: Path, row: Row, columns: Columns, space: tuple[int, int], split: Split
) -> Picture:
    size = space
    if space != FRACTIONS and columns.size:
        width, height = (read_number(_cell(row, column)) for column in columns.size)
        size = (int(width), int(height)) if min(width, height) >= 1 else (0, 0)
    image_file = image
    if image and "/" not in image:  # Open Images names pictures without a suffix
        names = [image] if Path(image).suffix else [f"{image}{suffix}" for suffix in SUFFIXES]
        there = (f"{folder}/{name}" for name in names for folder in _guess_folders(path, root))
        image_file = next((file for file in there if (root / file).is_file()), names[-1])
    return Picture(
        Path(image).with_suffix("").as_posix(),
        image_file,
        where,
        size=size,
        split=split,
        patient=_cell(row, columns.patient),
    )


def _numbers(row: Row, columns: Columns) -> tuple[float, ...]:
    return tuple(read_number(_cell(row, column)) for column in columns.numbers)


def _is_share(numbers: Sequence[float]) -> bool:
    return max(map(abs, numbers)) <= 1.5 and any(number != number // 1 for number in numbers)  # False of NaN


def _prove_space(rows: Iterable[Sequence[float]], path: Path) -> tuple[int, int]:
    """Return `FRACTIONS` or (0, 0) for pixels, as most rows prove it; refuse a table whose numbers could be both."""
    known = [row for row in rows if all(number == number for number in row)]
    num_shares, num_pixels = sum(map(_is_share, known)), sum(max(row) > 1.5 for row in known)
    if known and num_shares == num_pixels:
        what = (
            f"{num_shares} rows have shares, {num_pixels} pixels" if num_shares else "all numbers of boxes are 0 or 1"
        )
        raise BadInput(f"{path}: {what}, so that pixels and shares cannot be told apart")
    return FRACTIONS if num_shares > num_pixels else (0, 0)


def _read_mark(
    row: Row, columns: Columns, numbers: tuple[float, ...], names: dict[str, str], where: str
) -> Mark | None:
    """Return the box of a row; None for a row without numbers, which says that the picture has no finding."""
    written = [_cell(row, column) for column in columns.numbers]
    if not any(written):
        return None
    label = row.cells[columns.label]
    label = names.get(label, label)
    a, b, c, d = numbers
    corners: Corners = (a, b, a + c, b + d) if columns.is_sized else (a, b, c, d)
    problem = "" if label.strip() else "class: blank; the class of the box is required"
    if any(number != number for number in numbers):
        problem = f"box: {written} are no four numbers"
    elif columns.is_sized and min(c, d) <= 0:
        problem = f"box: width {written[2]} and height {written[3]}; expected numbers above 0"
    return Mark(where, label, corners, problem)
