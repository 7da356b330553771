"""What splits are, and the one place that refuses splits which share patients or lose cases."""

import collections
import dataclasses
import logging
from collections.abc import Mapping, Sequence

from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.splits.split_tables import SplitRow
from stepcot_jax.host.errors import BadInput

SPLIT_NAMES = ("train", "val", "test")

_LOG = logging.getLogger(__name__)
_NUM_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Splits:
    """Indices into the cases, ascending; no case and no patient is in two of them."""

    train: tuple[int, ...]
    val: tuple[int, ...]
    test: tuple[int, ...]

    def by_name(self) -> dict[str, tuple[int, ...]]:
        """The indices of each split by its name."""
        return {name: getattr(self, name) for name in SPLIT_NAMES}


def check_splits(
    splits: Splits, cases: Sequence[Case], *, source: str, rows: Mapping[tuple[str, int], SplitRow] | None = None
) -> None:
    """Refuses splits that share a patient (hence a case) or have no case.

    Args:
      splits: the splits.
      cases: what they index.
      source: where they come from, for the message.
      rows: the table row behind each (split name, index), for the message.
    """
    first_case: dict[str, dict[str, int]] = collections.defaultdict(dict)
    for split, indices in splits.by_name().items():
        if not indices:
            raise BadInput(f"{source}: found no case in split {split}, accepted is at least one")
        for index in indices:
            first_case[cases[index].patient_id].setdefault(split, index)
    shared = {patient: found for patient, found in first_case.items() if len(found) > 1}
    if shared:
        shown = []
        for patient, found in sorted(shared.items())[:_NUM_SHOWN]:
            places = [f"{rows[key].file} row {rows[key].number}" if rows else key[0] for key in found.items()]
            shown.append(f"{patient!r} ({', '.join(places)})")
        more = f" and {len(shared) - _NUM_SHOWN} more" if len(shared) > _NUM_SHOWN else ""
        raise BadInput(
            f"{source}: found {len(shared)} patients in more than one split: {', '.join(shown)}{more}; "
            "accepted is every patient in one split only"
        )


def check_listed(splits: Splits, cases: Sequence[Case], *, source: str, allow_unlisted: bool = False) -> None:
    """Refuses splits that leave cases out, or counts those in a warning if they may be left out."""
    listed = {index for indices in splits.by_name().values() for index in indices}
    unlisted = [case.image_path for index, case in enumerate(cases) if index not in listed]
    if not unlisted:
        return
    if allow_unlisted:
        _LOG.warning("%s: %d of %d cases are in no split and left out", source, len(unlisted), len(cases))
        return
    shown = ", ".join(repr(path[:80]) for path in unlisted[:_NUM_SHOWN])
    more = f" and {len(unlisted) - _NUM_SHOWN} more" if len(unlisted) > _NUM_SHOWN else ""
    raise BadInput(
        f"{source}: found {len(unlisted)} of {len(cases)} cases in no split: {shown}{more}; "
        "accepted is every case in one split"
    )
