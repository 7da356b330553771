"""Which images of an IU X-Ray report are frontal.

The released files do not say it: captions describe the whole examination, names count series and images. The
projection comes from, in this order:

1. `indiana_projections.csv` (columns uid, filename, projection), if a copy lies with the data.
2. The descriptors of every image in its report: words for its edges, colours and layout, computed from its pixels.
   `EVIDENCE` says how much more often a word belongs to a frontal than to a lateral image.
3. The order of the figures: the frontal image comes first in about nine of ten reports of two images.

The evidence was measured on 1,935 reports, half of the collection, by expectation-maximisation over a two-class naive
Bayes model in which a report of two images has one of each kind; the images themselves were not used. Of the 3,575
images that it decides, 51.3 % are frontal; `indiana_projections.csv` is reported to have 3,818 frontal images of 7,466
(51.1 %).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from stepcot_jax.data.sources.delimited import read_table
from stepcot_jax.host.errors import BadInput

Projection = Literal["frontal", "lateral", "undecided"]
DecidedBy = Literal["list", "descriptors", "order", ""]

LIST_NAME = "indiana_projections.csv"

# fmt: off
EVIDENCE: dict[str, dict[str, float]] = {
    "CEDD": {
        "f2p0k216": 2.4, "f2p0k680": 1.8, "f2p0k1598": 1.5, "f2p0k1637": 1.4, "f2p0k166": 1.4,
        "f2p0k710": 1.2, "f2p0k1297": 1.1, "f2p0k750": 0.9, "f2p0k1362": 0.7, "f2p0k1205": 0.5,
        "f2p0k1056": -0.5, "f2p0k1013": -0.7, "f2p0k1034": -1.4, "f2p0k754": -2.0, "f2p0k377": -2.1,
        "f2p0k633": -2.1, "f2p0k220": -2.2, "f2p0k1498": -2.5,
    },
    "ColorLayout": {
        "f1p0k98": 2.5, "f1p0k122": 2.3, "f1p0k137": 2.2, "f1p0k152": 1.8, "f1p0k65": 1.0,
        "f1p0k16": 0.9, "f1p0k112": 0.8, "f1p0k55": 0.7, "f1p0k2": 0.6, "f1p0k109": 0.6,
        "f1p0k147": 0.5, "f1p0k36": -0.4, "f1p0k33": -1.1, "f1p0k160": -1.5, "f1p0k129": -1.7,
        "f1p0k76": -1.7, "f1p0k75": -2.1, "f1p0k6": -2.2, "f1p0k151": -2.6, "f1p0k66": -2.9,
        "f1p0k7": -3.7,
    },
    "EdgeHistogram": {
        "f0p0k338": 2.6, "f0p0k184": 2.1, "f0p0k1051": 0.8, "f0p0k1179": -1.2, "f0p0k436": -1.5,
        "f0p0k447": -2.3, "f0p0k593": -2.7, "f0p0k832": -2.9, "f0p0k666": -3.1, "f0p0k518": -3.1,
    },
}
# fmt: on
"""Log odds of frontal against lateral for each descriptor's words, times 0.65 since the descriptors are correlated."""

FIRST_OF_TWO = 2.2
"""Log odds that the first of two images is the frontal one: 0.90 against 0.10."""

_DECIDED = 1.4
"""Log odds from which an image is decided: 4 to 1."""

ProjectionList: TypeAlias = Mapping[str, Projection]

_COLUMNS = ("filename", "projection")
_MAX_LIST_BYTES = 10_000_000
_NUM_SHOWN = 80
_EXPECTED = "expected the columns uid, filename and projection (Frontal or Lateral)"


def decide_projections(
    descriptors: Sequence[Mapping[str, str]], *, listed: Sequence[Projection | None] = ()
) -> tuple[tuple[Projection, DecidedBy], ...]:
    """Return the projection of each image of one report, and what decided it.

    Two images are one frontal and one lateral, unless the list says otherwise; otherwise each is judged by itself.

    Args:
      descriptors: for each image, in the order of the figures, its word for each descriptor.
      listed: for each image its projection in `indiana_projections.csv`, None if it is not listed; empty without
        the list.

    >>> decide_projections([{"EdgeHistogram": "f0p0k518"}, {"EdgeHistogram": "f0p0k338"}])
    (('lateral', 'descriptors'), ('frontal', 'descriptors'))
    """
    evidence = [
        sum(weights.get(words.get(descriptor, ""), 0.0) for descriptor, weights in EVIDENCE.items())
        for words in descriptors
    ]
    if len(evidence) == 2:
        difference = evidence[0] - evidence[1]
        decided_by: DecidedBy = "descriptors" if abs(difference) >= _DECIDED else "order"
        decided = [_judge(difference + FIRST_OF_TWO, decided_by), _judge(-difference - FIRST_OF_TWO, decided_by)]
    else:
        decided = [_judge(each, "descriptors") for each in evidence]
    if not listed:
        return tuple(decided)
    return tuple((known, "list") if known else found for known, found in zip(listed, decided, strict=True))


def _judge(log_odds: float, decided_by: DecidedBy) -> tuple[Projection, DecidedBy]:
    if abs(log_odds) < _DECIDED:
        return "undecided", ""
    return "frontal" if log_odds > 0 else "lateral", decided_by


def read_projection_list(path: Path) -> ProjectionList:
    """Read the projections in `indiana_projections.csv`, by image (`name_image`)."""
    if path.stat().st_size > _MAX_LIST_BYTES:
        raise BadInput(f"{path}: has more than {_MAX_LIST_BYTES} bytes; {_EXPECTED}")
    header, rows = read_table(path, known_columns=_COLUMNS)
    missing = [name for name in _COLUMNS if name not in header]
    if missing:
        raise BadInput(f"{path}: no column {' and '.join(missing)}; {_EXPECTED}")
    projections: dict[str, Projection] = {}
    for row in rows:
        where, named = f"{path}: row {row.number}", dict(zip(header, row.cells, strict=False))
        projection = named.get("projection", "").lower()
        if projection not in ("frontal", "lateral"):
            raise BadInput(f"{where}: projection {projection[:_NUM_SHOWN]!r}; {_EXPECTED}")
        image = name_image(named.get("filename", ""))
        if projections.setdefault(image, projection) != projection:  # type: ignore[arg-type]
            raise BadInput(f"{where}: {image[:_NUM_SHOWN]!r} already has another projection; {_EXPECTED}")
    return projections


def name_image(name: str) -> str:
    """Return an image's name without the prefix and suffixes that differ between releases.

    >>> name_image("CXR1_1_IM-0001-3001") == name_image("1_IM-0001-3001.dcm.png")
    True
    """
    bare = re.sub(r"(\.(dcm|png|jpe?g))+$", "", name, flags=re.IGNORECASE)
    return re.sub(r"^CXR(\d+_(?=\d+_))?", "", bare)
