"""Questions of public collections: their files in any table format, and what their records have in common."""

import dataclasses
import logging
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

from stepcot_jax import chain
from stepcot_jax.box import Box
from stepcot_jax.chain import fold
from stepcot_jax.data import parquet
from stepcot_jax.data.identities import read_patient, read_split
from stepcot_jax.data.sources.intake import Image, ImagePaths
from stepcot_jax.data.sources.listed import How, Listed, Source, refused
from stepcot_jax.data.sources.released import NotARecord, read_objects
from stepcot_jax.data.splits.split_resolver import UNCOMPUTED
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import list_texts
from stepcot_jax.record import Kind, Record, Split, kind_of

_LOG = logging.getLogger(__name__)
_WORDS = re.compile(r"[a-z]+")
_OWN_LETTER = r"\s*[(\[]?{}\s*[:.)\]]\s*(.*)"  # "A: text" and "A:text"; `chain.strip_letters` takes off other forms
_SEVERAL = re.compile(r"[A-Za-z](?:\s*[,;|/&]\s*[A-Za-z])*|[A-Z]{2,10}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """A row of a table as a question; None and "" for what the table does not say."""

    image: str  # path below the root or below one of the layout's folders
    question: str
    answer: str | Sequence[str]  # letters or texts of options, or a text
    options: Sequence[str] = ()  # blank ones are left out
    kind: Kind | None = None  # None: by options and answer
    id: str = ""  # unique within the collection; "": file and row
    patient: str = ""  # "": the picture's digest
    split: Split | None = None  # None: that of the file
    synonyms: Sequence[str] = ()
    topic: str = ""
    modality: str = ""
    organ: str = ""
    references: Sequence[Box] = ()  # in pixels of the file
    image_size: tuple[int, int] = (0, 0)
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)


Row = Mapping[str, Any]
Read = Callable[[Row, "Place"], Asked]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a row stands."""

    file: Path
    where: str  # "row 7", behind the file's name if there are several files
    split: Split  # that the file's name says
    images: "Folders"


def list_tables(
    root: Path,
    how: How,
    files: Sequence[Path],
    read: Read,
    *,
    origin: str,
    licence: str,
    folders: Sequence[str] = (".",),
) -> Source:
    """List the questions of tables; a rule excludes rows for which `read` raises `NotARecord`.

    Args:
      root: folder or file that the user names; image paths are relative to the folder.
      how: how to list.
      files: tables below the root, in order.
      read: returns the question of a row.
      origin: name of the collection.
      licence: of its pictures, kept in each record's provenance.
      folders: where pictures may lie below the root, first match first; "." for the root itself.
    """
    folder = root if root.is_dir() else root.parent
    images = Folders(folder, folders, require_images=how.require_images)
    shown = files[0].relative_to(folder).as_posix() if len(files) == 1 else ""
    made = {"origin": origin, "licence": licence}
    return Source(folder, shown, _list(folder, files, read, images, made), size_from="image_size")


def _list(
    folder: Path, files: Sequence[Path], read: Read, images: "Folders", made: Mapping[str, str]
) -> Iterator[Listed]:
    for file in files:
        name = file.relative_to(folder).as_posix()
        split = split_of_name(file.name)
        for location, fields in read_objects(file, name=name):
            where = f"{name}, {location}" if len(files) > 1 else location
            image = ""
            try:
                if isinstance(fields, BadInput):
                    raise fields
                asked = read(fields, Place(file, where, split, images))
                image = asked.image
                found = images.find(image)
                record = _make_record(asked, found.path, name=name, location=location, split=split, made=made)
            except NotARecord as error:
                yield Listed(where, Record(image=image, patient=""), rule=f"{where}, {error}")
            except BadInput as error:
                yield refused(where, f"{where}, {error}", image=image)
            else:
                missing = found.missing and f"{where}, image: {found.missing}"
                yield Listed(where, record, missing=missing, real_path=found.real_path)


def _make_record(
    asked: Asked, image: str, *, name: str, location: str, split: Split, made: Mapping[str, str]
) -> Record:
    if not (answers := [text for text in as_list(asked.answer) if text.strip()]):
        raise BadInput("answer: blank; a text is required")
    kind = asked.kind or kind_of(asked.answer, asked.options)
    options, answer = asked.options, answers[0].strip()
    several: tuple[str, ...] = ()
    if kind in ("single", "multi"):
        options, letters = _read_choices(asked.options, answers)
        answer, several = letters[0], letters
    patient = read_patient(asked.patient) if asked.patient else image
    if asked.patient and not patient:
        raise BadInput("patient: a word for a missing one; a patient's identifier, or an empty cell, is required")
    return Record(
        id=asked.id or f"{name}:{location.rpartition(' ')[2]}",
        image=image,
        image_size=asked.image_size,
        patient=patient,
        origin=made["origin"],
        split=split if asked.split is None else asked.split,
        kind=kind,
        topic=asked.topic,
        question=asked.question.strip(),
        options=tuple(options) if several else (),
        answer=several if kind == "multi" else answer,
        synonyms=tuple(asked.synonyms),
        references=tuple(asked.references),
        organ=asked.organ,
        modality=asked.modality,
        facts={key: value for key, value in asked.facts.items() if value},
        provenance={"file": name, "row": location, "licence": made["licence"]},
    )


def _read_choices(options: Sequence[str], answers: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return options without blank ones and letters, and the letters of the answers among them, in order."""
    bare = strip_own_letters([option.strip() for option in options])
    kept = [index for index, option in enumerate(bare) if option]
    folded = [fold(bare[index]) for index in kept]
    if equal := next((text for text in folded if folded.count(text) > 1), ""):
        first, second, *_ = (string.ascii_uppercase[kept[k]] for k, text in enumerate(folded) if text == equal)
        raise BadInput(f"options {first} and {second}: both are {equal[:80]!r}; expected different texts")
    letters = set()
    for answer in answers:
        index = _find_option(answer, bare)
        if index not in kept:
            raise BadInput(f"answer: {answer[:80]!r} is none of the options {list_texts([bare[k] for k in kept])}")
        letters.add(string.ascii_uppercase[kept.index(index)])
    return tuple(bare[index] for index in kept), tuple(sorted(letters))


def _find_option(answer: str, options: Sequence[str]) -> int:
    """Return the position of the option that an answer names by its text or its letter; -1 if none."""
    texts, text = [fold(option).rstrip(".") for option in options], fold(answer).rstrip(".")
    if text in texts:
        return texts.index(text)
    shown = tuple(option or f"({k})" for k, option in enumerate(options))
    try:
        label = chain.Step("options", "options", shown).read_answer(answer)
    except BadInput:
        return -1
    return label if label >= 0 else -1


def strip_own_letters(options: Sequence[str]) -> tuple[str, ...]:
    """Return options without their letters where each that is not blank begins with its own.

    >>> strip_own_letters(["A: Axial", "B:1:2", "C: "])
    ('Axial', '1:2', '')
    """
    pairs = zip(options, string.ascii_uppercase, strict=False)
    matches = [(option, re.fullmatch(_OWN_LETTER.format(letter), option, re.DOTALL)) for option, letter in pairs]
    if all(match or not option for option, match in matches):
        return tuple(match[1].strip() if match else option for option, match in matches)
    return tuple(options)


def as_text(value: Any, field: str) -> str:
    """Return a cell as text; "" for None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInput(f"{field}: {type(value).__name__}; expected a text or a number")
    if value == UNCOMPUTED:
        raise BadInput(f"{field}: {UNCOMPUTED}; open and save the table in a spreadsheet program")
    return f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value)


def get_text(fields: Row, *names: str) -> str:
    """Return the text of the first of several columns that is not blank; "" if all are, or the row has none."""
    return next(filter(None, (as_text(fields.get(name), name).strip() for name in names)), "")


def as_list(value: str | Sequence[str]) -> list[str]:
    """Return an answer as a list of texts."""
    return [value] if isinstance(value, str) else list(value)


def split_answers(written: str, num_options: int) -> str | list[str]:
    """Return the letters of an answer such as "A, C", else the answer as it is.

    >>> split_answers("A, C", 4), split_answers("B", 4), split_answers("Air, fluid", 4)
    (['A', 'C'], 'B', 'Air, fluid')
    """
    letters = re.findall("[A-Za-z]", written) if _SEVERAL.fullmatch(written.strip()) else []
    known = string.ascii_uppercase[:num_options]
    if len(letters) > 1 and all(letter.upper() in known for letter in letters):
        return [letter.upper() for letter in letters]
    return written


def split_of_name(name: str) -> Split:
    """Return the split that a file's name says; "" if none or several.

    >>> split_of_name("train-00000-of-00001.parquet"), split_of_name("test_2.csv"), split_of_name("data.json")
    ('train', 'test', '')
    """
    splits = set()
    for word in _WORDS.findall(name.casefold()):
        try:
            splits.add(read_split(word))
        except BadInput:
            continue
    return splits.pop() if len(splits) == 1 else ""


def _list_ends(image: str) -> list[str]:
    r"""Return a path, and of an absolute one, which is of another machine, its ends from the longest on.

    >>> _list_ends("a/b.png"), _list_ends(r"C:\data\b.png")
    (['a/b.png'], ['data/b.png', 'b.png'])
    """
    path = PureWindowsPath(image)
    if not (path.drive or path.root) or ".." in path.parts:
        return [image.lstrip("/")]
    parts = path.parts[1:]
    return ["/".join(parts[start:]) for start in range(len(parts))] or [image]


class Folders:
    """Finds pictures in one of several folders below a root, or in the cells of a table."""

    def __init__(self, root: Path, folders: Sequence[str], *, require_images: bool) -> None:
        self._paths = ImagePaths(root, require_images=True)
        self._folders, self._requires = tuple(folders), require_images
        self._has_told = False
        self._packed = sorted(path.name for path in root.glob("*.zip") if not path.with_suffix("").exists())

    def find(self, image: str) -> Image:
        """Return where a picture is; where it is nowhere, its path in the first folder."""
        if not image.strip():
            raise BadInput("image: blank; the path of a picture is required")
        if cell := parquet.find_cell(image):
            found = self._paths.locate(cell.file)
            return found._replace(path=image, missing=found.missing)
        first: Image | None = None
        for name in _list_ends(image):
            for folder in self._folders:
                found = self._paths.locate(name if folder == "." else f"{folder}/{name}")
                if not found.missing:
                    if name != image.lstrip("/") and not self._has_told:
                        self._has_told = True
                        _LOG.warning(
                            "absolute paths such as %r are read by their ends: %r", image[:80], found.path[:80]
                        )
                    return found
                first = first or found
        assert first is not None  # noqa: S101 - a layout names at least one folder
        if not self._requires:
            return first._replace(missing="")
        packed = ", ".join(self._packed)
        return first._replace(missing=first.missing + (f"; unpack {packed} first" if packed else ""))
