"""The IU X-Ray collection (Demner-Fushman et al., JAMIA 2016): reports, coding and images.

A data root is `NLMCXR_reports.tgz`, a folder with it, or one with the XML files; images are beside the reports.
"""

import collections
import dataclasses
import gzip
import io
import itertools
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, cast
from xml.parsers import expat

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, NOT_APPLICABLE, fold
from stepcot_jax.data.delimited import read_columns
from stepcot_jax.data.sources.intake import ImageFinder, list_named
from stepcot_jax.data.sources.listed import How, Listed, Source, refused
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.record import Record, SetAside

_TABLES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
DIAGNOSES: dict[str, list[str]] = _TABLES["diagnoses"]
LESIONS = frozenset({*DIAGNOSES, *_TABLES["lesions"]} - {"normal", "cardiomegaly"})
OUTSIDE_LUNG = frozenset(_TABLES["outside_lung"])  # qualifiers of a calcification, a lucency or a density elsewhere
SIDES = frozenset({"left", "right"})
ONE_SIDED = frozenset({"lingula", "middle lobe"})
FOCAL, DIFFUSE, MULTIFOCAL = frozenset({"focal"}), frozenset({"diffuse"}), frozenset(_TABLES["multifocal"])
LOCATIONS, PATTERNS, MORPHOLOGIES = (
    {word: answer for answer, words in _TABLES[name].items() for word in words}
    for name in ("locations", "patterns", "morphologies")
)
SECONDARY: list[list[str]] = _TABLES["secondary"]  # heading, qualifier ("" for any) and answer
LUCENT = frozenset(_TABLES["lucent"])
DENSE = (LESIONS | {"pulmonary edema"}) - LUCENT
_Heading = tuple[str, ...]


def read_coding(mesh: Sequence[str]) -> tuple[int, ...]:
    """Return the labels of the steps of `DEFAULT_CHAIN` that the major headings of a report imply."""
    headings = [tuple(fold(part) for part in heading.split("/")) for heading in mesh]
    named = {diagnosis for heading in headings for diagnosis in DIAGNOSES.get(heading[0], ())}
    if len(named) > 1 or ("Normal" in named and len(headings) > 1):
        return (NOT_ANNOTATED,) * DEFAULT_CHAIN.num_steps
    if "Normal" in named:
        return _labels("No abnormality", *[NOT_APPLICABLE] * 5, "Normal")
    diagnosis = next(iter(named), None)
    lesions = _described(headings, diagnosis)
    qualifiers = {qualifier for heading in lesions for qualifier in heading[1:]}
    return _labels(
        _detection(headings),
        _distribution(lesions, qualifiers),
        _only({PATTERNS[word] for heading in lesions for word in heading if word in PATTERNS}),
        _only({LOCATIONS[word] for word in qualifiers if word in LOCATIONS}),
        _only({MORPHOLOGIES[word] for heading in lesions for word in heading if word in MORPHOLOGIES}),
        _secondary(headings) if diagnosis else None,
        diagnosis,
    )


def _labels(*answers: str | None) -> tuple[int, ...]:
    return tuple(
        NOT_ANNOTATED if answer is None else step.options.index(answer)
        for step, answer in zip(DEFAULT_CHAIN.steps, answers, strict=True)
    )


def _only(answers: Set[str]) -> str | None:
    return next(iter(answers)) if len(answers) == 1 else None


def _described(headings: Sequence[_Heading], diagnosis: str | None) -> list[_Heading]:
    """Return the headings of the lesion that steps 2 to 5 describe."""
    lesions = [item for item in headings if item[0] in LESIONS and not OUTSIDE_LUNG.intersection(item[1:])]
    if diagnosis is None:
        return lesions if len({_location(item) for item in lesions}) == 1 else []
    named = [item for item in lesions if diagnosis in DIAGNOSES.get(item[0], ())]
    locations = {_location(item) for item in named}
    return [item for item in lesions if item in named or _location(item) in locations]


def _location(heading: _Heading) -> frozenset[str]:
    words = {LOCATIONS.get(word, word) for word in heading[1:] if word in LOCATIONS or word in SIDES}
    return frozenset(words | {word for word in heading[1:] if word in MULTIFOCAL})


def _distribution(lesions: Sequence[_Heading], qualifiers: Set[str]) -> str | None:
    words = set(qualifiers)
    if words & DIFFUSE:
        return "Diffuse"
    if words & MULTIFOCAL or words >= SIDES or len({_location(item) for item in lesions if _location(item)}) > 1:
        return "Multifocal"
    return "Focal" if words & (FOCAL | SIDES | ONE_SIDED) else None


def _secondary(headings: Sequence[_Heading]) -> str | None:
    effects = {
        answer
        for heading in headings
        for name, qualifier, answer in SECONDARY
        if name in heading and (not qualifier or qualifier in heading)
    }
    return _only(effects) if effects else NOT_APPLICABLE


def _detection(headings: Sequence[_Heading]) -> str | None:
    names = {heading[0] for heading in headings if not OUTSIDE_LUNG.intersection(heading[1:])}
    lucent, dense = bool(names & LUCENT), bool(names & DENSE)
    if not lucent and not dense:
        return None
    if lucent and dense:
        return "Mixed"
    return "Decreased opacity" if lucent else "Increased opacity"


# Nothing is written to disk. Names of archive entries appear only in messages, so they cannot lead out of a folder.

MAX_REPORT_BYTES = 1_000_000  # largest report file that is read; the released ones have at most 9 thousand bytes
MAX_REPORTS = 100_000  # most entries of an archive or a folder; the released one has 3,955
MAX_ARCHIVE_BYTES = 1_000_000_000  # most bytes of an unpacked archive; the released one has 20 million
_MAX_HEADER_BYTES = 100_000
_EXPECTED = "expected the collection's archive (.tgz, .tar.gz, .tar) or a folder with its XML files"
_NUM_SHOWN = 80
ReportFile = tuple[str, bytes | str]
"""Name of a report file, for messages only, and its content as bytes, or as text the reason why it cannot be read."""


def iterate_files(source: Path) -> Iterator[ReportFile]:
    """Yield the XML files of an archive (in its order) or of a folder (by name), one at a time."""
    source = Path(source)
    try:
        if source.is_dir():
            with os.scandir(source) as entries:
                names = [entry.name for entry in itertools.islice(entries, MAX_REPORTS + 1)]
            _check_count(len(names), source=source)
            for name in sorted(filter(_is_report_name, names)):
                yield name, _read_file(source / name)
        else:
            yield from _iterate_archive(source)
    except (OSError, ValueError, EOFError, zlib.error, tarfile.TarError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)[:_NUM_SHOWN]
        raise BadInput(f"{source}: cannot be read as report files ({reason}); {_EXPECTED}") from None


def _read_file(path: Path) -> bytes | str:
    try:
        with open_untrusted(path, accepted="an XML file", follow=False) as file:
            content = file.read(MAX_REPORT_BYTES + 1)
    except BadInput:
        return "is a link or not an ordinary file; expected an XML file"
    except OSError as error:
        return f"is a link or cannot be read ({error.strerror}); expected an XML file"
    return content if len(content) <= MAX_REPORT_BYTES else f"has more than {MAX_REPORT_BYTES} bytes"


def _iterate_archive(source: Path) -> Iterator[ReportFile]:
    with open_untrusted(source, accepted="an archive") as file:
        start = file.read(2)
        file.seek(0)
        unpacked = cast(BinaryIO, gzip.GzipFile(fileobj=file) if start == b"\x1f\x8b" else file)
        limited = _LimitedReader(unpacked, source=source)
        # "r:" and not "r|": a tar stream would hide from the reader how much is read at once.
        with tarfile.open(fileobj=limited, mode="r:") as archive:
            num_entries = 0
            while (entry := archive.next()) is not None:
                num_entries += 1
                _check_count(num_entries, source=source)
                # Otherwise the archive keeps every entry and every global header in memory.
                archive.members = []  # type: ignore[attr-defined]
                archive.pax_headers = {}
                if _is_report_name(entry.name) and not entry.isdir():
                    yield entry.name, _read_entry(archive, entry, limited)
            # tarfile treats a broken header as the end of the archive.
            if limited.last.strip(b"\0") or 0 < len(limited.last) < tarfile.BLOCKSIZE:
                raise BadInput(f"{source}: breaks off after {num_entries} entries; {_EXPECTED}")
            # Reading to the end verifies the checksum of gzip.
            while limited.read(_MAX_HEADER_BYTES):
                limited.seek(limited.tell())


def _read_entry(archive: tarfile.TarFile, entry: tarfile.TarInfo, limited: "_LimitedReader") -> bytes | str:
    if not entry.isreg() or entry.issparse():
        return "is a link, a device or a sparse file; expected an ordinary XML file"
    if entry.size > MAX_REPORT_BYTES:
        return f"has {entry.size} bytes, more than {MAX_REPORT_BYTES}"
    limited.largest = MAX_REPORT_BYTES
    file = archive.extractfile(entry)
    content = file.read() if file else b""
    limited.largest = _MAX_HEADER_BYTES
    if len(content) != entry.size:
        raise BadInput(f"{limited.source}: ends within {entry.name[:_NUM_SHOWN]!r}; {_EXPECTED}")
    return content


def _is_report_name(name: str) -> bool:
    # macOS archives have a file "._1.xml" for each file "1.xml".
    last = name.rpartition("/")[2]
    return last.lower().endswith(".xml") and not last.startswith("._")


def _check_count(num_entries: int, *, source: Path) -> None:
    if num_entries > MAX_REPORTS:
        raise BadInput(f"{source}: has more than {MAX_REPORTS} entries; {_EXPECTED}")


class _LimitedReader(io.RawIOBase):
    """A forward-only file that limits the bytes of one read, to `largest`, and of all reads."""

    def __init__(self, file: BinaryIO, *, source: Path) -> None:
        self._file = file
        self.source, self.largest, self.last = source, _MAX_HEADER_BYTES, b""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self.largest:
            raise BadInput(f"{self.source}: has a header of {size} bytes; {_EXPECTED}")
        self.last = self._file.read(size)
        return self.last

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or offset < self._file.tell():
            raise BadInput(f"{self.source}: has an entry that points backwards; {_EXPECTED}")
        if offset > MAX_ARCHIVE_BYTES:
            raise BadInput(f"{self.source}: has more than {MAX_ARCHIVE_BYTES} bytes unpacked; {_EXPECTED}")
        return self._file.seek(offset)


# Which images of an IU X-Ray report are frontal.

Projection = Literal["frontal", "lateral", "undecided"]
DecidedBy = Literal["list", "descriptors", "order", ""]
LIST_NAME = "indiana_projections.csv"
EVIDENCE: dict[str, dict[str, float]] = _TABLES["evidence"]
"""Log odds of frontal against lateral for each descriptor's words, times 0.65 since the descriptors are correlated."""

FIRST_OF_TWO = 2.2  # log odds that the first of two images is the frontal one: 0.90 against 0.10
_DECIDED = 1.4  # log odds from which an image is decided: 4 to 1
ProjectionList: TypeAlias = Mapping[str, Projection]
_COLUMNS = ("filename", "projection")
_MAX_LIST_BYTES = 10_000_000
_EXPECTED_COLUMNS = "expected the columns uid, filename and projection (Frontal or Lateral)"


def decide_projections(
    descriptors: Sequence[Mapping[str, str]], *, listed: Sequence[Projection | None] = ()
) -> tuple[tuple[Projection, DecidedBy], ...]:
    """Return the projection of each image of one report, and what decided it."""
    evidence = [
        sum(weights.get(words.get(descriptor, ""), 0.0) for descriptor, weights in EVIDENCE.items())
        for words in descriptors
    ]
    if len(evidence) == 2:
        difference = evidence[0] - evidence[1]
        decided_by: DecidedBy = "descriptors" if abs(difference) >= _DECIDED else "order"
        decided = [_judge(difference + FIRST_OF_TWO, decided_by), _judge(-difference - FIRST_OF_TWO, decided_by)]
    else:
        decided = [_judge(log_odds, "descriptors") for log_odds in evidence]
    if not listed:
        return tuple(decided)
    return tuple((known, "list") if known else judged for known, judged in zip(listed, decided, strict=True))


def _judge(log_odds: float, decided_by: DecidedBy) -> tuple[Projection, DecidedBy]:
    if abs(log_odds) < _DECIDED:
        return "undecided", ""
    return "frontal" if log_odds > 0 else "lateral", decided_by


def read_projection_list(path: Path) -> ProjectionList:
    """Read the projections in `indiana_projections.csv`, by image (`name_image`)."""
    if path.stat().st_size > _MAX_LIST_BYTES:
        raise BadInput(f"{path}: has more than {_MAX_LIST_BYTES} bytes; {_EXPECTED_COLUMNS}")
    projections: dict[str, Projection] = {}
    for row, (filename, written), _ in read_columns(path, _COLUMNS):
        where, projection = f"{path}: row {row.number}", written.lower()
        if projection not in ("frontal", "lateral"):
            raise BadInput(f"{where}: projection {projection[:_NUM_SHOWN]!r}; {_EXPECTED_COLUMNS}")
        image = name_image(filename)
        if projections.setdefault(image, projection) != projection:  # type: ignore[arg-type]
            raise BadInput(f"{where}: {image[:_NUM_SHOWN]!r} already has another projection; {_EXPECTED_COLUMNS}")
    return projections


def name_image(name: str) -> str:
    """Return an image's name without the prefix and suffixes that differ between releases."""
    bare = re.sub(r"(\.(dcm|png|jpe?g))+$", "", name, flags=re.IGNORECASE)
    return re.sub(r"^CXR(\d+_(?=\d+_))?", "", bare)


# `XXXX` in a text marks words removed to protect the patient; texts are kept unchanged.

_SECTIONS = ("COMPARISON", "INDICATION", "FINDINGS", "IMPRESSION")
_TEXTS = {"AbstractText", "major", "caption", "url", *EVIDENCE}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MAX_DEPTH = 50
_EXPECTED_REPORT = "expected a report of the collection (<eCitation> with <uId>, <AbstractText> and <parentImage>)"


@dataclasses.dataclass(frozen=True)
class IuImage:
    """One image of a report."""

    id: str  # its name without ending, such as "CXR1000_IM-0003-1001"
    caption: str  # of the examination; nearly always the same for all images of a report
    file_name: str  # its file in the archive, such as "CXR1000_IM-0003-1001.jpg"
    projection: Projection
    decided_by: DecidedBy  # "list", "descriptors" or "order" (see `decide_projections`); "" if undecided


@dataclasses.dataclass(frozen=True)
class IuReport:
    """One report with its coding; missing sections are ""."""

    uid: str  # name of the report, such as "CXR1000"; the collection has one report a patient
    findings: str
    impression: str
    mesh: tuple[str, ...]  # the experts' codes as written, such as "Opacity/lung/upper lobe/right" or "normal"
    images: tuple[IuImage, ...]  # in the order of the file

    @property
    def text(self) -> str:
        """Findings and impression with their headings; empty sections are omitted."""
        sections = (("FINDINGS", self.findings), ("IMPRESSION", self.impression))
        return " ".join(f"{heading}: {section}" for heading, section in sections if section)

    @property
    def frontal_images(self) -> tuple[IuImage, ...]:
        """The images decided to be frontal."""
        return tuple(image for image in self.images if image.projection == "frontal")


def read_report(content: bytes, *, listed: ProjectionList | None = None) -> IuReport:
    """Parse a report file."""
    collector = _Collector()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = collector.start
    parser.EndElementHandler = collector.end
    parser.CharacterDataHandler = collector.read_text
    parser.StartDoctypeDeclHandler = _refuse_declarations
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"is not XML ({error}); {_EXPECTED_REPORT}") from None
    return _as_report(collector, listed=listed)


def _refuse_declarations(*_: object) -> None:
    raise BadInput(f"has a document type declaration; {_EXPECTED_REPORT}, without one")


class _Collector:
    """Collects the used parts of a file while it is parsed."""

    def __init__(self) -> None:
        self.uid = ""
        self.sections: dict[str, list[str]] = collections.defaultdict(list)
        self.mesh: list[str] = []
        self.images: list[dict[str, str]] = []
        self._depth = self._text_depth = 0
        self._label = ""
        self._text: list[str] | None = None

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._depth and name != "eCitation":
            raise BadInput(f"is <{name[:_NUM_SHOWN]}>; {_EXPECTED_REPORT}")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise BadInput(f"nests elements more than {_MAX_DEPTH} deep; {_EXPECTED_REPORT}")
        if name == "uId":
            self.uid = attributes.get("id", "").strip()
        elif name == "parentImage":
            self.images.append({"id": attributes.get("id", "").strip()})
        elif name == "AbstractText":
            self._label = attributes.get("Label", "").strip().upper()
        if name in _TEXTS and self._text is None:
            self._text, self._text_depth = [], self._depth

    def read_text(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def end(self, name: str) -> None:
        if self._text is not None and self._depth == self._text_depth:
            text, self._text = "".join(self._text).strip(), None
            if text and name == "AbstractText":
                self.sections[self._label].append(text)
            elif text and name == "major":
                self.mesh.append(text)
            elif text and self.images:
                self.images[-1].setdefault(name, text)
        self._depth -= 1


def _as_report(collector: _Collector, *, listed: ProjectionList | None) -> IuReport:
    for field, name in (("uId", collector.uid), *(("id of a parentImage", image["id"]) for image in collector.images)):
        if not _NAME.fullmatch(name):
            raise BadInput(f"{field}: {name[:_NUM_SHOWN]!r} must have only letters, digits, '.', '_' and '-'")
    unknown = collector.sections.keys() - set(_SECTIONS)
    if unknown:
        labels = sorted(label[:_NUM_SHOWN] for label in unknown)
        raise BadInput(f"AbstractText with label {labels} is not one of {', '.join(_SECTIONS)}")
    known = [listed.get(name_image(image["id"])) for image in collector.images] if listed is not None else ()
    projections = decide_projections(collector.images, listed=known)
    return IuReport(
        uid=collector.uid,
        findings=" ".join(collector.sections.get("FINDINGS", ())),
        impression=" ".join(collector.sections.get("IMPRESSION", ())),
        mesh=tuple(collector.mesh),
        images=tuple(itertools.starmap(_as_image, zip(collector.images, projections, strict=True))),
    )


def _as_image(image: dict[str, str], decided: tuple[Projection, DecidedBy]) -> IuImage:
    last = image.get("url", "").rpartition("/")[2]
    file_name = last if _NAME.fullmatch(last) else f"{image['id']}.jpg"
    return IuImage(image["id"], image.get("caption", ""), file_name, *decided)


ORIGIN = "IU X-Ray"
_ARCHIVE_ENDINGS = (".tgz", ".tar.gz", ".tar")
_ARCHIVE_PATTERNS = ("NLMCXR_reports*.tgz", "NLMCXR_reports*.tar.gz", "NLMCXR_reports*.tar")
_REPORT_FOLDER = "ecgen-radiology"
IMAGE_FOLDERS = ("NLMCXR_png", "images")
_EXPECTED_FOLDER = (
    f"expected NLMCXR_reports.tgz, a folder with it, or a folder with XML reports in it or in {_REPORT_FOLDER}/"
)


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
    """Yield the reports of an archive or a folder, in the archive's order or by file name."""
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
        raise BadInput(f"{source}: has no .xml file; {_EXPECTED_FOLDER}")


def list_iu_xray(root: Path, how: How) -> Source:
    """List each frontal image, labelled from the experts' coding (`read_coding`).

    A step that the coding leaves open or answers in several ways is not annotated. Every image, every report without an
    image and every unusable file is a record. A rule excludes lateral and undecided images and reports without images.
    """
    folder, reports = _locate_data(root), _locate_reports(root)
    finder = ImageFinder(folder, folders=IMAGE_FOLDERS, require_images=how.require_images)
    file = "" if reports == folder else reports.name
    return Source(folder, file, _list_images(root, finder))


def _list_images(root: Path, finder: ImageFinder) -> Iterator[Listed]:
    for report in read_reports(root):
        if isinstance(report, SetAside):
            yield refused("", report.reason)
            continue
        if not report.images:
            yield Listed(report.uid, Record(image="", patient=report.uid), rule=f"{report.uid}: has no image")
        for image in report.images:
            yield _list_image(report, image, finder)


def _list_image(report: IuReport, image: IuImage, finder: ImageFinder) -> Listed:
    location, uid = f"{report.uid} {image.id}", report.uid
    if image.projection != "frontal":
        return Listed(location, Record(image=image.file_name, patient=uid), rule=_explain(report, image))
    views = set(re.findall(r"\b(PA|AP)\b", image.caption.upper()))
    record = Record(
        patient=uid,
        image=image.file_name,
        origin=ORIGIN,
        report=report.text,
        answers=read_coding(report.mesh),
        reasoning=("",) * DEFAULT_CHAIN.num_steps,
        view=views.pop() if len(views) == 1 else "",  # a caption may name both
    )
    return list_named(location, record, finder.find, where=uid)


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
    if not root.is_dir():
        return root
    archives = _find_archives(root)
    folder = root / _REPORT_FOLDER
    sources = [*archives, *([folder] if folder.is_dir() else [])]
    if len(sources) > 1:
        names = ", ".join(path.name for path in sources)
        raise BadInput(f"{root}: has reports in {names}; keep one of them, or use one as the root")
    return sources[0] if sources else root


def _find_archives(folder: Path) -> list[Path]:
    return sorted(path for pattern in _ARCHIVE_PATTERNS for path in folder.glob(pattern) if path.is_file())
