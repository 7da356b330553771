"""The records of a data root for a check: read by the code that a run reads them with, and counted, not kept."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from stepcot_jax.chain import Chain
from stepcot_jax.data.checks.check_tally import Reasons, Tally
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.record_agreement import Agreement, Verdicts, describe_disagreement, describe_repetition
from stepcot_jax.data.records.record_reader import ImageLocator, MissingImage, RecordReader
from stepcot_jax.data.records.records import Collection
from stepcot_jax.host.errors import BadInput


@dataclasses.dataclass
class Scan:
    """What is known of a data root's records when all have been read.

    Attributes:
      root: folder that the image paths start from.
      file: the file with the records.
      chain: the chain of most records; None where no record can be read.
      tally: the records that can be read.
      good: which of them take part.
      reasons: what is set aside.
      num_found: records whose image was found; None where none was looked for.
      num_missing: records without their image.
      num_other_options: records whose options are not those of most.
      num_repeated: records whose image an earlier one has.
    """

    root: Path
    file: Path
    chain: Chain | None
    tally: Tally
    good: Bool[np.ndarray, " record"]
    reasons: Reasons
    num_found: int | None = None
    num_missing: int = 0
    num_other_options: int = 0
    num_repeated: int = 0

    @property
    def num_records(self) -> int:
        """Number of records, good or bad."""
        return int(self.good.sum()) + self.reasons.count

    def set_aside(self, place: int, reason: str) -> None:
        """Takes a readable record out of those that take part."""
        self.good[place] = False
        self.reasons.add(
            reason,
            record=self.tally.records[place],
            image_path=self.tally.image_paths[place],
            patient_id=self.tally.patient_ids[place],
        )


def scan_published(
    root: Path, *, step_names: Sequence[str], require_images: bool, visit: Callable[[int], None] | None = None
) -> Scan:
    """Reads `root/data.json` record by record.

    Args:
      root: the data root.
      step_names: name of each step, in order.
      require_images: whether a record without its image file is bad.
      visit: see `data_json.read_raw_records`.

    Raises:
      BadInput: the file as a whole cannot be used.
    """
    path = Path(root) / data_json.FILE_NAME
    reader = RecordReader(Path(root), step_names=step_names, require_images=require_images)
    agreement, tally, reasons = Agreement(path), Tally(), Reasons()
    num_missing = 0
    for index, raw in enumerate(data_json.read_raw_records(path, visit=visit)):
        try:
            item = reader.read(data_json.decode_record(raw, index=index), index=index)
        except BadInput as error:
            patient_id, image_path = data_json.identify(raw)
            reasons.add(str(error), record=index, image_path=image_path, patient_id=patient_id)
            num_missing += isinstance(error, MissingImage)
            continue
        agreement.add(item)
        tally.add(item.case, item.steps, record=index)
    scan = Scan(Path(root), path, None, tally, np.ones(len(tally), bool), reasons, num_missing=num_missing)
    scan.num_found = len(tally) if require_images else None
    if len(tally):
        _apply(scan, agreement, agreement.judge())
    return scan


def _apply(scan: Scan, agreement: Agreement, verdicts: Verdicts) -> None:
    tally, reference = scan.tally, verdicts.reference
    scan.chain = Chain(agreement.steps(reference))
    for place in np.flatnonzero(~verdicts.good).tolist():
        original = int(verdicts.original[place])
        if verdicts.agrees[place]:
            scan.num_repeated += 1
            reason = describe_repetition(
                record=tally.records[place],
                known_record=tally.records[original],
                known_image_path=tally.image_paths[original],
            )
        else:
            scan.num_other_options += 1
            reason = describe_disagreement(
                agreement.steps(place),
                scan.chain.steps,
                record=tally.records[reference],
                image_path=tally.image_paths[reference],
            )
        scan.set_aside(place, reason)


def scan_collection(collection: Collection, *, require_images: bool) -> Scan:
    """Takes over what the reader of another layout gives.

    Args:
      collection: read with bad records set aside and without requiring images.
      require_images: whether a case without its image file is bad.
    """
    tally, reasons = Tally(), Reasons()
    aside = {item.record for item in collection.set_aside}
    numbers = (number for number in range(len(aside) + len(collection.cases)) if number not in aside)
    for record, case in zip(numbers, collection.cases, strict=True):
        tally.add(case, collection.chain.steps, record=record)
    for item in collection.set_aside:
        reasons.add(item.reason, record=item.record, image_path=item.image_path, patient_id=item.patient_id)
    file = collection.root / collection.file
    scan = Scan(collection.root, file, collection.chain, tally, np.ones(len(tally), bool), reasons)
    if require_images:
        locator = ImageLocator(collection.root, require_images=True)
        for place in range(len(tally)):
            try:
                locator.locate(tally.image_paths[place])
            except BadInput as error:
                scan.num_missing += isinstance(error, MissingImage)
                scan.set_aside(place, str(error))
        scan.num_found = int(scan.good.sum())
    return scan


def count_bytes(root: Path) -> int:
    """Size of `root/data.json`, 0 where there is none."""
    path = Path(root) / data_json.FILE_NAME
    return os.path.getsize(path) if path.is_file() else 0  # noqa: PTH202
