"""One report file of the IU X-Ray collection: XML to its sections, its coding and its images.

`XXXX` in a text marks what was removed from it to protect the patient; texts are kept as they are.
"""

import dataclasses
import re
from collections.abc import Sequence
from xml.parsers import expat

from stepcot_jax.data.sources.iu_projections import (
    EVIDENCE,
    DecidedBy,
    Projection,
    ProjectionList,
    decide_projections,
    name_image,
)
from stepcot_jax.host.errors import BadInput

_SECTIONS = ("COMPARISON", "INDICATION", "FINDINGS", "IMPRESSION")
_TEXTS = {"AbstractText", "major", "automatic", "caption", "url", "figureId", *EVIDENCE}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MAX_DEPTH = 50
_NUM_SHOWN = 80
_ACCEPTED = "accepted is a report of the collection (<eCitation> with <uId>, <AbstractText> and <parentImage>)"


@dataclasses.dataclass(frozen=True)
class IuImage:
    """One image of a report.

    Attributes:
      id: its name without ending, such as "CXR1000_IM-0003-1001".
      caption: what the examination is; nearly always the same for all images of a report.
      figure: its place in the report as written, such as "F1"; "" where there is none.
      file_name: its file as the archive names it, such as "CXR1000_IM-0003-1001.jpg".
      projection: "frontal", "lateral" or "undecided".
      decided_by: "list", "descriptors" or "order" (see `iu_projections`); "" where undecided.
    """

    id: str
    caption: str
    figure: str
    file_name: str
    projection: Projection
    decided_by: DecidedBy


@dataclasses.dataclass(frozen=True)
class IuReport:
    """One report with its coding; sections that it does not have are "".

    Attributes:
      uid: name of the report, such as "CXR1000"; the collection has one report a patient.
      findings: what is seen.
      impression: what it means.
      indication: why the examination was made.
      comparison: what it was compared with.
      mesh: the experts' codes as written, such as "Opacity/lung/upper lobe/right" or "normal".
      automatic: terms that a program found in the text.
      images: in the order of the file.
    """

    uid: str
    findings: str
    impression: str
    indication: str
    comparison: str
    mesh: tuple[str, ...]
    automatic: tuple[str, ...]
    images: tuple[IuImage, ...]

    @property
    def text(self) -> str:
        """Findings and impression with their headings, without those that are empty.

        >>> IuReport("CXR1", "Clear lungs.", "Normal.", "", "", ("normal",), (), ()).text
        'FINDINGS: Clear lungs. IMPRESSION: Normal.'
        """
        sections = (("FINDINGS", self.findings), ("IMPRESSION", self.impression))
        return " ".join(f"{heading}: {section}" for heading, section in sections if section)

    @property
    def frontal_images(self) -> tuple[IuImage, ...]:
        """The images that are known to be frontal."""
        return tuple(image for image in self.images if image.projection == "frontal")


def read_report(content: bytes, *, listed: ProjectionList | None = None) -> IuReport:
    """The report that a file holds.

    A document type declaration is refused, so there are no entities to expand and no other files to fetch.

    Args:
      content: bytes of the file; UTF-8, UTF-16, Latin-1 or ASCII, as its first line says.
      listed: projections of `indiana_projections.csv`, if there is one.

    Raises:
      BadInput: the content is not XML, not a report of the collection, or its names are not acceptable.
    """
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
        raise BadInput(f"found what is not XML ({error}); {_ACCEPTED}") from None
    return _as_report(collector, listed=listed)


def _refuse_declarations(*_: object) -> None:
    raise BadInput(f"found a document type declaration; {_ACCEPTED}, without one")


class _Collector:
    """Keeps the few parts of a file that are used, while it is parsed."""

    def __init__(self) -> None:
        self.uid = ""
        self.sections: dict[str, list[str]] = {}
        self.mesh: list[str] = []
        self.automatic: list[str] = []
        self.images: list[dict[str, str]] = []
        self._path: list[str] = []
        self._label = ""
        self._text: list[str] | None = None
        self._text_depth = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._path and name != "eCitation":
            raise BadInput(f"found <{name[:_NUM_SHOWN]}>; {_ACCEPTED}")
        self._path.append(name)
        if len(self._path) > _MAX_DEPTH:
            raise BadInput(f"found elements within elements more than {_MAX_DEPTH} deep; {_ACCEPTED}")
        if name == "uId":
            self.uid = attributes.get("id", "").strip()
        elif name == "parentImage":
            self.images.append({"id": attributes.get("id", "").strip()})
        elif name == "AbstractText":
            self._label = attributes.get("Label", "").strip().upper()
        if name in _TEXTS and self._text is None:
            self._text, self._text_depth = [], len(self._path)

    def read_text(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def end(self, name: str) -> None:
        if self._text is not None and len(self._path) == self._text_depth:
            text, self._text = "".join(self._text).strip(), None
            if text:
                self._keep(name, text)
        self._path.pop()

    def _keep(self, name: str, text: str) -> None:
        if name == "AbstractText":
            self.sections.setdefault(self._label, []).append(text)
        elif name == "major":
            self.mesh.append(text)
        elif name == "automatic":
            self.automatic.append(text)
        elif self.images:
            self.images[-1].setdefault(name, text)


def _as_report(collector: _Collector, *, listed: ProjectionList | None) -> IuReport:
    _require_name("uId", collector.uid)
    for image in collector.images:
        _require_name("id of a parentImage", image["id"])
    unknown = collector.sections.keys() - set(_SECTIONS)
    if unknown:
        found = sorted(label[:_NUM_SHOWN] for label in unknown)
        raise BadInput(f"found AbstractText with the label {found}, accepted are {', '.join(_SECTIONS)}")
    sections = {name.lower(): " ".join(collector.sections.get(name, ())) for name in _SECTIONS}
    return IuReport(
        uid=collector.uid,
        mesh=tuple(collector.mesh),
        automatic=tuple(collector.automatic),
        images=_as_images(collector.images, listed=listed),
        **sections,
    )


def _require_name(field: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{field}: found {name[:_NUM_SHOWN]!r}, accepted are letters, digits, '.', '_' and '-'")


def _as_images(found: Sequence[dict[str, str]], *, listed: ProjectionList | None) -> tuple[IuImage, ...]:
    projections = decide_projections(
        found, listed=[listed.get(name_image(image["id"])) for image in found] if listed is not None else ()
    )
    return tuple(
        IuImage(
            id=image["id"],
            caption=image.get("caption", ""),
            figure=image.get("figureId", ""),
            file_name=_as_file_name(image),
            projection=projection,
            decided_by=decided_by,
        )
        for image, (projection, decided_by) in zip(found, projections, strict=True)
    )


def _as_file_name(image: dict[str, str]) -> str:
    last = image.get("url", "").rpartition("/")[2]
    return last if _NAME.fullmatch(last) else f"{image['id']}.jpg"
