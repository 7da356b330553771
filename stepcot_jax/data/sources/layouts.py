"""Dataset layouts: detect the layout of a data root and read it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES, Collection, OnBadRecord, read_records
from stepcot_jax.data.sources.csv_table import TABLE_NAME, read_csv_table
from stepcot_jax.host.errors import BadInput

AUTO = "auto"

LAYOUTS: dict[str, str] = {
    "published": "a folder with data.json",
    "chestxray8": "a folder with BBox_List_2017*.csv or Data_Entry_2017*.csv",
    "padchest_gr": "a folder with grounded_reports*.json",
    "iu_xray": "a folder or .tgz archive with the collection's XML reports",
    "csv": f"a folder with {TABLE_NAME}, or a .csv file",
}
"""Name of each layout and the files that it is recognised by."""

_PATTERNS = {
    "published": (data_json.FILE_NAME,),
    "chestxray8": ("BBox_List_2017*.csv", "Data_Entry_2017*.csv"),
    "padchest_gr": ("grounded_reports*.json",),
    "csv": (TABLE_NAME,),
}


def detect_layout(root: Path, *, further: str = "") -> str:
    """Return the layout of a data root (a key of `LAYOUTS`), recognised by its file names."""
    root = Path(root)
    try:
        exists = root.exists()
    except (OSError, ValueError) as error:
        raise BadInput(f"{str(root)[:200]!r}: is not a path ({error}); {_expected(further)}") from None
    if not exists:
        raise BadInput(f"{root}: does not exist; {_expected(further)}")
    found = [layout for layout in LAYOUTS if _has_layout(root, layout)]
    if not found:
        raise BadInput(f"{root}: has no known layout; {_expected(further)}")
    if len(found) > 1:
        raise BadInput(f"{root}: has files of the layouts {' and '.join(found)}; choose one as the layout")
    return found[0]


def read_source(
    root: Path,
    *,
    layout: str = AUTO,
    step_names: Sequence[str] = PUBLISHED_STEP_NAMES,
    on_bad_record: OnBadRecord = "stop",
    require_images: bool = True,
    single_label: bool = True,
    labels_from: Literal["auto", "boxes", "entries"] = "auto",
) -> Collection:
    """Read a data root in any layout.

    Only the layouts "published" and "csv" (with a `chain.json`) have a chain of their own. The answers of the others
    are labels of `DEFAULT_CHAIN`.

    Args:
      on_bad_record: "stop" raises if any record is bad, "skip" sets bad records aside. Records that
        a rule of the reader excludes (several labels, a class without a diagnosis, a lateral view) are not bad: they
        are set aside with their reasons in both cases.
    """
    root = Path(root)
    if layout == AUTO:
        layout = detect_layout(root)
    elif layout not in LAYOUTS:
        raise BadInput(f"layout: {layout[:80]!r} is not one of {', '.join((AUTO, *LAYOUTS))}")
    options: dict[str, Any] = {"on_bad_record": on_bad_record, "require_images": require_images}
    if layout == "published":
        return read_records(root, step_names=step_names, **options)
    if layout == "csv":
        return read_csv_table(root, step_names=step_names, **options)
    expected = [step.name for step in DEFAULT_CHAIN.steps]
    if list(step_names) != expected:
        raise BadInput(f"step_names {list(step_names)} do not match the layout {layout}: expected {expected}")
    if layout == "iu_xray":
        from stepcot_jax.data.sources.iu_xray import read_iu_xray

        return read_iu_xray(root, **options)
    if layout == "chestxray8":
        from stepcot_jax.data.sources.chestxray8 import read_chestxray8

        return read_chestxray8(root, single_label=single_label, labels_from=labels_from, **options)
    from stepcot_jax.data.sources.padchest_gr import read_padchest_gr

    return read_padchest_gr(root, single_label=single_label, **options)


def _expected(further: str) -> str:
    accepted = [f"{description} ({name})" for name, description in LAYOUTS.items()]
    return f"expected {'; '.join([*accepted, further] if further else accepted)}"


def _has_layout(root: Path, layout: str) -> bool:
    if layout == "iu_xray":
        from stepcot_jax.data.sources.iu_xray import is_iu_xray

        return is_iu_xray(root)
    if not root.is_dir():
        return layout == "csv" and root.suffix.lower() == ".csv"
    return any(next(root.glob(pattern), None) for pattern in _PATTERNS[layout])
