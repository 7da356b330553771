"""The content of a DICOM file that ends a parse above the limits on its header: elements and bytes.

pydicom makes objects of hundreds of bytes of an element or a sequence's item, which may take 8 bytes in the file, and
parses sequences of undefined length even if nobody wants them.
"""

import contextlib
import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import exceeds, read_limits

if TYPE_CHECKING:
    from pydicom import Dataset
    from pydicom.tag import BaseTag

PIXELS = 0x7FE00010
"""Tag of PixelData."""

_READS_PER_ELEMENT = 3  # tag with type, length, value; an item is one read
_UNDEFINED = 0xFFFFFFFF
_PACKED = (None, "OB", "OW", "UN")
MOST_DEPTH = 16
"""Accepted depth of sequences in sequences; real headers have three or four."""

_CODE_MACRO = frozenset(
    {
        *("CodeValue", "LongCodeValue", "URNCodeValue", "CodingSchemeDesignator", "CodingSchemeVersion", "CodeMeaning"),
        *("EquivalentCodeSequence", "ContextIdentifier", "ContextUID", "MappingResource", "MappingResourceUID"),
        *("MappingResourceName", "ContextGroupVersion", "ContextGroupExtensionFlag", "ContextGroupLocalVersion"),
        "ContextGroupExtensionCreatorUID",
    }
)  # DICOM PS3.3, table 8.8-1
_PROSE, _ABOUT_PEOPLE = frozenset({"PN", "LT", "ST", "UT"}), re.compile("Comment|Name|Address|Telephone|Telecom")
_IDENTIFIERS = frozenset({"UniversalEntityID", "LocalNamespaceEntityID"})  # texts by their type
_PICTURES, _GROUP_OF_PICTURES = (0x50003000, 0x60003000), 0xFF00FFFF  # curves and overlays; one for each even group
_Parsed = TypeVar("_Parsed")


class HeaderFile(io.BytesIO):
    """Counts what pydicom reads of a header, and refuses more than `Limits.elements` and `Limits.header_bytes`.

    Values of pixels, overlays, curves and private elements do not count: `watch` recognises them. Skipped values are
    not read, and do not count either.
    """

    def __init__(self, content: bytes, *, name: str) -> None:
        super().__init__(content)
        self._name, self._size, limits = name, len(content), read_limits()
        self._reads_left = _READS_PER_ELEMENT * limits.elements
        self._bytes_left = limits.header_bytes
        self._is_packed = False
        self._refusal: BadInput | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes."""
        self._reads_left -= 1
        if self._reads_left < 0:
            self._refusal = exceeds(self._name, "its header has too many elements and items", "elements")
        if not self._is_packed:
            left = max(0, self._size - self.tell())
            self._bytes_left -= left if size is None or size < 0 else min(size, left)
            if self._bytes_left < 0:
                self._refusal = exceeds(self._name, "the elements of its header take too many bytes", "header_bytes")
        if self._refusal is not None:
            raise self._refusal
        return super().read(size)

    def watch(self, tag: int, kind: str | None, length: int) -> bool:
        """Take note of the element whose value comes next; always False, as pydicom's `stop_when` that never stops."""
        is_whole = length != _UNDEFINED or (tag == PIXELS and kind != "UN")  # else pydicom looks for items
        self._is_packed = is_packed(tag) and kind in _PACKED and is_whole
        return False

    def parse(self, parse: Callable[[], _Parsed], otherwise: BadInput) -> _Parsed:
        """Return what `parse` returns."""
        with contextlib.suppress(Exception):
            return parse()
        # Outside of an except block, as in `dicom_fields.attempt`.
        raise self._refusal or otherwise


def clean_items(header: "Dataset", *, name: str) -> BadInput | None:
    """Remove private elements, comments and names from the items of a header's sequences, at every depth.

    Items of code sequences keep the elements of DICOM's code macro alone. pydicom parses an item when it is asked for;
    so one level is parsed after the other, and nothing that is removed.

    Returns:
      The error for sequences that are more than `MOST_DEPTH` deep or have too many elements; None for all others.
    """
    level, left = [header], read_limits().elements
    for _ in range(MOST_DEPTH + 1):
        items: list[Dataset] = []
        for sequence in (element for dataset in level for element in dataset if element.VR == "SQ"):
            for item in sequence.value:
                for tag in [tag for tag in item.keys() if not _is_kept(item, tag, of=sequence.keyword)]:  # noqa: SIM118
                    del item[tag]
                left -= 1 + len(item)
                if left < 0:
                    return exceeds(name, "its header has too many elements and items", "elements")
                items.append(item)
        if not items:
            return None
        level = items
    return BadInput(f"{name}: its sequences are more than {MOST_DEPTH} deep; expected a header as scanners write it")


def _is_kept(item: "Dataset", tag: "BaseTag", *, of: str) -> bool:
    from pydicom.datadict import dictionary_has_tag, dictionary_VR, keyword_for_tag

    if tag.is_private or not dictionary_has_tag(tag):
        return False
    keyword = keyword_for_tag(tag)
    if of.endswith("CodeSequence"):
        return keyword in _CODE_MACRO
    kinds = {dictionary_VR(tag), item.get_item(tag).VR}
    return keyword in _IDENTIFIERS or not (kinds & _PROSE or _ABOUT_PEOPLE.search(keyword))


def is_packed(tag: int) -> bool:
    """Whether an element holds pixels, an overlay or a curve, or is private: never parsed here."""
    return tag == PIXELS or bool(tag >> 16 & 1) or tag & _GROUP_OF_PICTURES in _PICTURES
