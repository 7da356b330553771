"""The content of a DICOM file that ends a parse above the limits on its header: elements and bytes.

pydicom makes objects of hundreds of bytes of an element or a sequence's item, which may take 8 bytes in the file, and
parses sequences of undefined length even if nobody wants them.
"""

import contextlib
import io
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
_NO_TEXT = frozenset({"UI", "CS", "DA", "TM", "DT", "AS", "IS", "DS", "SQ"})
_PERSON = "PersonIdentificationCodeSequence"  # its code's meaning is a name (PS3.3, table 10-1)
_ITEM_TAGS = (b"\xfe\xff\x00\xe0", b"\xff\xfe\xe0\x00")
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
    """Keep of the items of a header's sequences, at every depth, identifiers, codes, dates and numbers alone.

    Names, comments, addresses and other texts go, as do private elements, and sequences written as another type. Items
    of code sequences keep the elements of DICOM's code macro. pydicom parses an item when it is asked for; so one level
    is parsed after the other, and nothing that is removed.

    Args:
      header: changed in place.
      name: of the file, for messages.

    Returns:
      The error for sequences that are more than `MOST_DEPTH` deep or have too many elements; None for all others.
    """
    too_many = exceeds(name, "its header has too many elements and items", "elements")
    level, left = [header], read_limits().elements
    for _ in range(MOST_DEPTH + 1):
        items: list[Dataset] = []
        for dataset in level:
            for tag in list(dataset.keys()):
                if count_items(dataset, tag) > left:
                    return too_many
                element = dataset[tag]
                if (element.VR == "SQ") != (_type_of(tag) == "SQ"):  # nobody would look at its items
                    del dataset[tag]
                    continue
                for item in element.value if element.VR == "SQ" else ():
                    for own in [own for own in item.keys() if not _is_kept(own, of=element.keyword)]:  # noqa: SIM118
                        del item[own]
                    left -= 1 + len(item)
                    items.append(item)
                if left < 0:
                    return too_many
        if not items:
            return None
        level = items
    return BadInput(f"{name}: its sequences are more than {MOST_DEPTH} deep; expected a header as scanners write it")


def count_items(dataset: "Dataset", tag: "BaseTag") -> int:
    """Return at most how many items are in a value that pydicom has not parsed yet, without parsing it."""
    value = getattr(dataset.get_item(tag), "value", None)
    return max(map(value.count, _ITEM_TAGS)) if isinstance(value, bytes) else 0


def _type_of(tag: "BaseTag") -> str:
    from pydicom.datadict import dictionary_has_tag, dictionary_VR

    return dictionary_VR(tag) if dictionary_has_tag(tag) else ""


def _is_kept(tag: "BaseTag", *, of: str) -> bool:
    from pydicom.datadict import keyword_for_tag

    keyword = keyword_for_tag(tag)  # "" of private and unknown ones
    if of.endswith("CodeSequence"):
        return keyword in _CODE_MACRO
    return keyword != _PERSON and (_type_of(tag) in _NO_TEXT or keyword.endswith("ID"))


def is_packed(tag: int) -> bool:
    """Whether an element holds pixels, an overlay or a curve, or is private: never parsed here."""
    return tag == PIXELS or bool(tag >> 16 & 1) or tag & _GROUP_OF_PICTURES in _PICTURES
