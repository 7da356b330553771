"""The IU X-Ray collection (Demner-Fushman et al., JAMIA 2016): reports, coding and images.

A data root is the archive `NLMCXR_reports.tgz`, a folder with it, or a folder with the XML files (directly or in
`ecgen-radiology/`). Images are beside the reports in `NLMCXR_png/` or `images/`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.records import Collection, OnBadRecord, SetAside
from stepcot_jax.data.sources import iu_coding
from stepcot_jax.data.sources.intake import Intake
from stepcot_jax.data.sources.iu_archive import iterate_files
from stepcot_jax.data.sources.iu_projections import LIST_NAME, read_projection_list
from stepcot_jax.data.sources.iu_report import IuImage, IuReport, read_report
from stepcot_jax.data.sources.named_images import ImageFinder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted

ORIGIN = "IU X-Ray"

_ARCHIVE_ENDINGS = (".tgz", ".tar.gz", ".tar")
_ARCHIVE_PATTERNS = ("NLMCXR_reports*.tgz", "NLMCXR_reports*.tar.gz", "NLMCXR_reports*.tar")
_REPORT_FOLDER = "ecgen-radiology"
IMAGE_FOLDERS = ("NLMCXR_png", "images")
_NUM_SHOWN = 80
_EXPECTED = f"expected NLMCXR_reports.tgz, a folder with it, or a folder with XML reports in it or in {_REPORT_FOLDER}/"


def is_iu_xray(root: Path) -> bool:
    """Whether a data root has this collection, by its file names and, for loose XML files, the start of the first."""
    root = Path(root)
    if root.is_file():
        return root.name.lower().endswith(_ARCHIVE_ENDINGS)
    if not root.is_dir():
        return False
    if _find_archives(root) or (root / _REPORT_FOLDER).is_dir():
        return True
    first = min(root.glob("*.xml"), default=None)
    if first is None or not first.is_file():
        return False
    with open_untrusted(first, accepted="an XML file") as file:
        return b"<eCitation" in file.read(1000)


def read_reports(source: Path) -> Iterator[IuReport | SetAside]:
    """Yield the reports of an archive or a folder, in the archive's order or by file name.

    An unusable file comes as a `SetAside` with its position among the files from 0 and its name in the reason.
    `iu_projections` decides the projections, with the list beside the reports if there is one.
    """
    source = Path(source)
    path = _locate_data(source) / LIST_NAME
    listed = read_projection_list(path) if path.is_file() else None
    seen: set[str] = set()
    record = -1
    for record, (name, content) in enumerate(iterate_files(_locate_reports(source))):
        try:
            if isinstance(content, str):
                raise BadInput(content)
            report = read_report(content, listed=listed)
            if report.uid in seen:
                raise BadInput(f"uId: {report.uid!r} occurs twice; expected one file per report")
            seen.add(report.uid)
            yield report
        except BadInput as error:
            yield SetAside(record, "", f"{name[-_NUM_SHOWN:]}: {error}")
    if record < 0:
        raise BadInput(f"{source}: has no .xml file; {_EXPECTED}")


def read_iu_xray(root: Path, *, on_bad_record: OnBadRecord = "stop", require_images: bool = True) -> Collection:
    """Read one case for each frontal image, labelled from the experts' coding (`iu_coding`).

    A step that the coding leaves open or answers in several ways is not annotated. Every image, every report without
    an image and every unusable file is a record, numbered from 0. Lateral and undecided images and reports without
    images are set aside; unusable files and missing images are bad records.

    Args:
      require_images: whether a record without its image file is bad; if not, its image path is its name in the
        report, in the folder "images".
    """
    root = Path(root)
    folder, reports = _locate_data(root), _locate_reports(root)
    finder = ImageFinder(folder, folders=IMAGE_FOLDERS, require_images=require_images)
    file = "" if reports == folder else reports.name
    intake = Intake(folder, file=file, layout="iu_xray", on_bad_record=on_bad_record)
    for report in read_reports(root):
        if isinstance(report, SetAside):
            intake.refuse(report.reason)
            continue
        if not report.images:
            reason = f"{report.uid}: has no image"
            intake.leave_out(reason, image_path="", patient_id=report.uid)
        for image in report.images:
            _take_image(intake, report, image, finder)
    return intake.finish(DEFAULT_CHAIN)


def _take_image(intake: Intake, report: IuReport, image: IuImage, finder: ImageFinder) -> None:
    if image.projection != "frontal":
        intake.leave_out(_explain(report, image), image_path=image.file_name, patient_id=report.uid)
        return
    try:
        image_path, real_path = finder.find(image.file_name)
    except BadInput as error:
        intake.refuse(f"{report.uid}: {error}", image_path=image.file_name, patient_id=report.uid)
        return
    views = set(re.findall(r"\b(PA|AP)\b", image.caption.upper()))
    case = Case(
        patient_id=report.uid,
        image_path=image_path,
        origin=ORIGIN,
        report=report.text,
        labels=iu_coding.read_coding(report.mesh),
        reasoning=("",) * DEFAULT_CHAIN.num_steps,
        view=views.pop() if len(views) == 1 else "",  # a caption may name both
    )
    intake.keep(case, real_path=real_path, place=f"{report.uid} {image.id}")


def _explain(report: IuReport, image: IuImage) -> str:
    if image.projection == "lateral":
        return f"{report.uid}: lateral view (by {image.decided_by}); expected a frontal view"
    return (
        f"{report.uid}: neither the image's descriptors nor its place decide whether it is frontal; "
        f"expected a frontal view, or {LIST_NAME} beside the reports"
    )


def _locate_data(root: Path) -> Path:
    return root if root.is_dir() else root.parent


def _locate_reports(root: Path) -> Path:
    """Return the archive or the folder with the XML files of a data root."""
    if not root.is_dir():
        return root
    archives = _find_archives(root)
    folder = root / _REPORT_FOLDER
    found = [*archives, *([folder] if folder.is_dir() else [])]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise BadInput(f"{root}: has reports in {names}; keep one of them, or use one as the root")
    return found[0] if found else root


def _find_archives(folder: Path) -> list[Path]:
    return sorted(path for pattern in _ARCHIVE_PATTERNS for path in folder.glob(pattern) if path.is_file())
