"""What every source returns: its records one at a time, each usable, refused, or excluded by a rule."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from stepcot_jax.chain import DEFAULT_CHAIN, Chain
from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.levels import Key
from stepcot_jax.record import Record

LabelsFrom = Literal["auto", "boxes", "entries"]
NumReaders = int | Literal["all"]
FRACTIONS = (1, 1)
"""`image_size` of a record whose boxes are fractions of the picture's sides."""


class Listed(NamedTuple):
    """One record of a source; a reason begins with its place in the file."""

    location: str  # such as "row 7"
    record: Record  # of a refused one only the image and the patient, as far as they can be read
    refusal: str = ""  # why it cannot be used; "" if it can
    missing: str = ""  # why its image cannot be found; "" if it can, or nobody asks
    rule: str = ""  # why a rule of the layout excludes it; "" if none does
    real_path: str = ""  # of its image, links resolved


class Source(NamedTuple):
    """The records of one file."""

    root: Path  # folder that image paths are relative to
    file: str  # name of the file in it; "" for a folder of files
    records: Iterator[Listed]
    chain: Chain = DEFAULT_CHAIN
    size_from: str = ""  # what states `image_size`, for warnings

    @property
    def path(self) -> Path:
        """The file with the records."""
        return self.root / self.file


@dataclasses.dataclass(frozen=True, kw_only=True)
class How:
    """How to list a source; a layout ignores what it has no use for."""

    require_images: bool = True  # whether to look for the images
    for_cases: bool = True  # whether answers of a chain are wanted, or boxes for questions
    step_names: tuple[str, ...] = PUBLISHED_STEP_NAMES
    single_label: bool = True  # whether a rule excludes images with several findings
    labels_from: LabelsFrom = "auto"  # table that ChestX-ray8's labels come from
    with_normal: bool = False  # whether to list images without a box from a second table
    readers: NumReaders = 2  # VinBigData's readers who must agree on a box; "all": each one's boxes
    box_size: tuple[int, int] | None = None  # of the picture that released questions' boxes refer to
    levels: tuple[Key, ...] = ()  # in which a chain's cases are asked about; (): each step is a question

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_names", tuple(self.step_names))
        number = self.readers
        if number != "all" and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise BadInput(f"readers: {number!r} is not 'all' or a number from 1")
        if self.labels_from not in get_args(LabelsFrom):
            raise BadInput(f"labels_from: {self.labels_from!r} is not one of {', '.join(get_args(LabelsFrom))}")
        if self.box_size is not None and min(self.box_size) < 1:
            raise BadInput(f"--box-size: {list(self.box_size)} is not a width and a height of at least 1 pixel")


def refused(location: str, reason: str, *, image: str = "", patient: str = "") -> Listed:
    """Return a record that cannot be used."""
    return Listed(location, Record(image=image, patient=patient), reason)
