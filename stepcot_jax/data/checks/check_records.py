"""Records of a data root for `data check`: scanned as a run scans them, with reasons grouped instead of listed."""

import dataclasses
import re

import numpy as np

from stepcot_jax.data.columns import TextColumn
from stepcot_jax.data.records.cases import SetAside
from stepcot_jax.data.records.record_reader import ImageLocator, MissingImage
from stepcot_jax.data.records.record_scan import Scan
from stepcot_jax.data.records.records import Collection
from stepcot_jax.host.errors import BadInput

_MOST_KINDS = 100
_NUM_EXAMPLES = 3
_NUM_SHOWN = 300
# The parts of a reason that differ between records.
_PARTICULAR = re.compile(
    r"^(?:row \d+|(?!vqa_chain)\S*[\d/]\S*)(?=: )"  # the place that a reason begins with
    r"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""  # the value found
    r"|(?<=of record )\d+|(?<=in record )\d+|\d+ x \d+|(?<=starts with bytes )[0-9a-f ]+(?=;)"
)


@dataclasses.dataclass
class Reason:
    """Records that are set aside for the same reason.

    Attributes:
      kind: the reason with "…" for the parts that differ between records.
      count: number of records.
      examples: the first few: record, image path, and the reason in full.
    """

    kind: str
    count: int = 0
    examples: list[tuple[int, str, str]] = dataclasses.field(default_factory=list)


class Reasons:
    """Counts records set aside by reason; keeps their names, which split tables may use.

    Attributes:
      image_paths: their images.
      patient_ids: their patients.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, Reason] = {}
        self.image_paths = TextColumn()
        self.patient_ids = TextColumn()

    def append(self, item: SetAside) -> None:
        """Add a record."""
        kind = _PARTICULAR.sub("…", item.reason)[:_NUM_SHOWN]
        if kind not in self._reasons and len(self._reasons) >= _MOST_KINDS:
            kind = "further reasons"
        found = self._reasons.setdefault(kind, Reason(kind))
        found.count += 1
        if len(found.examples) < _NUM_EXAMPLES:
            found.examples.append((item.record, item.image_path[:_NUM_SHOWN], item.reason[:_NUM_SHOWN]))
        self.image_paths.append(item.image_path)
        self.patient_ids.append(item.patient_id)

    def __len__(self) -> int:
        return len(self.image_paths)

    def listed(self) -> list[Reason]:
        """Return the reasons, the most frequent first."""
        return sorted(self._reasons.values(), key=lambda reason: -reason.count)


def scan_collection(collection: Collection, reasons: Reasons, *, require_images: bool) -> Scan:
    """Return a collection of another layout as a scan; it shares the collection's table.

    Args:
      collection: read with bad records set aside and without requiring images.
      reasons: takes the records that take no part.
      require_images: set cases without their image file aside.
    """
    aside = {item.record for item in collection.set_aside}
    numbers = [number for number in range(len(aside) + len(collection.cases)) if number not in aside]
    for item in collection.set_aside:
        reasons.append(item)
    scan = Scan(
        collection.root,
        collection.root / collection.file,
        collection.cases,
        numbers,
        reasons,
        np.ones(len(numbers), bool),
        collection.chain,
        num_wordings=(1,) * collection.chain.num_steps,
    )
    if require_images:
        locator = ImageLocator(collection.root, require_images=True)
        for place in range(len(numbers)):
            try:
                locator.locate(scan.table.image_paths[place])
            except BadInput as error:
                scan.num_missing += isinstance(error, MissingImage)
                scan.drop(place, str(error))
        scan.num_found = int(scan.good.sum())
    return scan
