"""Counts of what is wrong with records and images: reasons to set them aside, and oddities of readable pictures."""

import re
from typing import Any

import numpy as np
from jaxtyping import UInt8

from stepcot_jax.data.splits.splits import Problem
from stepcot_jax.record import SetAside

_MOST_KINDS = 100
_EXAMPLES_OF_REASON = 3
_NUM_SHOWN = 300
# The parts of a reason that differ between records.
_UNIT = r"(?:row|line|record|image|annotation|object|step) [^ :,]{1,80}(?: \([^()]{0,200}\))?"
_PATH = r"[^:, /]{0,200}/[^:, ]{0,200}"
_PLACE = (
    re.compile(  # "train.json, record 2", "data.yaml, train/a: labels/train/a.txt, line 1"; bounded: texts are long
        rf"^(?:[^:,]{{1,200}}, |{_PATH}: ){{0,3}}(?:{_UNIT}(?:[,:] {_UNIT}){{0,2}}|(?<=, ){_PATH})(?=[,:] )"
    )
)
_PARTICULAR = re.compile(
    rf"{_PLACE.pattern}"
    r"|^(?:row \d+|(?![a-z_]+\[\d+\])\S*[\d/]\S*)(?=: )"  # the row or file that a reason begins with, but no field
    r"|(?<=references\[)\d+(?=\])|(?<!\w)\[-?\d[^\]]*\]"  # the number of a box, and its corners
    r"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""  # a quoted value
    r"|(?<=of record )\d+|(?<=in record )\d+|\d+ x \d+|(?<=starts with bytes )[0-9a-f ]+(?=;)"
)


_MISSING_IMAGE = re.compile(r"no image '|does not exist below the data root|cannot be copied \(No such file")


def names_missing(reason: str) -> bool:
    """Return whether a message is about a missing image."""
    return _MISSING_IMAGE.search(reason) is not None


class Reasons:
    """Counts records set aside by reason; keeps their names, which split tables may use."""

    def __init__(self) -> None:
        self._reasons: dict[str, Problem] = {}
        self.num_bad = 0  # records that no rule excludes
        self.example: SetAside | None = None  # a bad record, one whose image is missing if there is one
        self.image_paths: list[str] = []
        self.patient_ids: list[str] = []

    def append(self, item: SetAside) -> None:
        """Add a record."""
        if not item.by_rule:
            self.num_bad += 1
            if self.example is None or (names_missing(item.reason) and not names_missing(self.example.reason)):
                self.example = item
        place = match[0] if (match := _PLACE.match(item.reason)) else ""
        kind = _PARTICULAR.sub("…", item.reason)[:_NUM_SHOWN]
        if kind not in self._reasons and len(self._reasons) >= _MOST_KINDS:
            kind = "further reasons"
        image_path, reason = item.image_path[:_NUM_SHOWN], item.reason[:_NUM_SHOWN]
        example = {"record": item.record, "image_path": image_path, "reason": reason, "place": place}
        self._reasons.setdefault(kind, Problem(kind)).add(example, most=_EXAMPLES_OF_REASON)
        self.image_paths.append(item.image_path)
        self.patient_ids.append(item.patient_id)

    def __len__(self) -> int:
        return len(self.image_paths)

    def as_facts(self) -> list[dict[str, Any]]:
        """Return each reason with "…" for the parts that differ, its count and examples; the most frequent first."""
        return [
            {"reason": reason.kind, "count": reason.count, "examples": reason.examples}
            for reason in sorted(self._reasons.values(), key=lambda reason: -reason.count)
        ]


_LEAST_SIDE = 16
_SAME_GREY = 2  # grey values within which a picture shows one: those of a black JPEG differ


def describe_oddities(pixels: UInt8[np.ndarray, "height width *channel"]) -> list[str]:
    """Return what makes a picture useless: that it shows one grey, or that it is tiny."""
    low, high, side = int(pixels.min()), int(pixels.max()), min(pixels.shape[:2])
    colour = "black" if high <= _SAME_GREY else "white" if low >= 255 - _SAME_GREY else "of one grey"
    return [f"the picture is all {colour}"] * (high - low <= _SAME_GREY) + [
        f"a side of the picture is under {_LEAST_SIDE} pixels"
    ] * (side < _LEAST_SIDE)


def note_oddities(oddities: Reasons) -> list[str]:
    """Return a note for each oddity of images, with their number and the first names."""
    notes = []
    for oddity in oddities.as_facts():
        names = [example["image_path"] for example in oddity["examples"]]
        names += ["..."] * (oddity["count"] > len(names))
        images = "1 image" if oddity["count"] == 1 else f"{oddity['count']} images"
        notes.append(f"{images}: {oddity['reason']} ({', '.join(names)})")
    return notes
