"""Parse one XML report of the IU X-Ray collection: sections, coding and images.

`XXXX` in a text marks words removed to protect the patient; texts are kept unchanged.
"""

import collections
import dataclasses
import itertools
import re
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
_TEXTS = {"AbstractText", "major", "caption", "url", *EVIDENCE}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MAX_DEPTH = 50
_NUM_SHOWN = 80
_EXPECTED = "expected a report of the collection (<eCitation> with <uId>, <AbstractText> and <parentImage>)"


@dataclasses.dataclass(frozen=True)
class IuImage:
    """One image of a report.

    Attributes:
      id: its name without ending, such as "CXR1000_IM-0003-1001".
      caption: of the examination; nearly always the same for all images of a report.
      file_name: its file in the archive, such as "CXR1000_IM-0003-1001.jpg".
      decided_by: "list", "descriptors" or "order" (see `iu_projections`); "" if undecided.
    """

    id: str
    caption: str
    file_name: str
    projection: Projection
    decided_by: DecidedBy


@dataclasses.dataclass(frozen=True)
class IuReport:
    """One report with its coding; missing sections are "".

    Attributes:
      uid: name of the report, such as "CXR1000"; the collection has one report a patient.
      mesh: the experts' codes as written, such as "Opacity/lung/upper lobe/right" or "normal".
      images: in the order of the file.
    """

    uid: str
    findings: str
    impression: str
    mesh: tuple[str, ...]
    images: tuple[IuImage, ...]

    @property
    def text(self) -> str:
        """Findings and impression with their headings; empty sections are omitted.

        >>> IuReport("CXR1", "Clear lungs.", "Normal.", ("normal",), ()).text
        'FINDINGS: Clear lungs. IMPRESSION: Normal.'
        """
        sections = (("FINDINGS", self.findings), ("IMPRESSION", self.impression))
        return " ".join(f"{heading}: {section}" for heading, section in sections if section)

    @property
    def frontal_images(self) -> tuple[IuImage, ...]:
        """The images decided to be frontal."""
        return tuple(image for image in self.images if image.projection == "frontal")


def read_report(content: bytes, *, listed: ProjectionList | None = None) -> IuReport:
    """Parse a report file.

    A document type declaration is refused, so no entity is expanded and no other file fetched.

    Args:
      content: bytes of the file; UTF-8, UTF-16, Latin-1 or ASCII, as declared in its first line.
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
        raise BadInput(f"is not XML ({error}); {_EXPECTED}") from None
    return _as_report(collector, listed=listed)


def _refuse_declarations(*_: object) -> None:
    raise BadInput(f"has a document type declaration; {_EXPECTED}, without one")


class _Collector:
    """Keeps the parts of a file that are used, while it is parsed."""

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
            raise BadInput(f"is <{name[:_NUM_SHOWN]}>; {_EXPECTED}")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise BadInput(f"nests elements more than {_MAX_DEPTH} deep; {_EXPECTED}")
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
        found = sorted(label[:_NUM_SHOWN] for label in unknown)
        raise BadInput(f"AbstractText with label {found} is not one of {', '.join(_SECTIONS)}")
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
