"""The transfer syntaxes of DICOM that are read: how elements are written and pixels are packed."""

import dataclasses

EXTRA = "pip install 'stepcot-jax[dicom]'"
"""How to get what reading DICOM needs."""


@dataclasses.dataclass(frozen=True)
class Syntax:
    """A transfer syntax.

    Attributes:
      name: as messages have it.
      decoders: pydicom's decoder plugins, the preferred first; none where we decode ourselves. GDCM's is left
        out: it ends the whole process at input that it does not expect.
      install: how to get a decoder.
      implicit: whether elements come without their type.
      little_endian: order of bytes.
    """

    name: str
    decoders: tuple[str, ...] = ()
    install: str = EXTRA
    implicit: bool = False
    little_endian: bool = True


RLE = "1.2.840.10008.1.2.5"
_JPEG_LOSSLESS = Syntax("JPEG Lossless", ("pylibjpeg",), install="pip install pylibjpeg-libjpeg (GPL)")
_JPEG_LS = Syntax("JPEG-LS", ("pyjpegls", "pylibjpeg"))
_JPEG_2000 = Syntax("JPEG 2000", ("pylibjpeg", "pillow"))
_HIGH_THROUGHPUT = Syntax("High-Throughput JPEG 2000", ("pylibjpeg",))

SYNTAXES: dict[str, Syntax] = {
    "1.2.840.10008.1.2": Syntax("Implicit VR Little Endian", implicit=True),
    "1.2.840.10008.1.2.1": Syntax("Explicit VR Little Endian"),
    "1.2.840.10008.1.2.2": Syntax("Explicit VR Big Endian", little_endian=False),
    RLE: Syntax("RLE Lossless"),
    "1.2.840.10008.1.2.4.50": Syntax("JPEG Baseline", ("pillow", "pylibjpeg")),
    "1.2.840.10008.1.2.4.51": Syntax("JPEG Extended", ("pillow", "pylibjpeg")),
    "1.2.840.10008.1.2.4.57": _JPEG_LOSSLESS,
    "1.2.840.10008.1.2.4.70": dataclasses.replace(_JPEG_LOSSLESS, name="JPEG Lossless SV1"),
    "1.2.840.10008.1.2.4.80": _JPEG_LS,
    "1.2.840.10008.1.2.4.81": dataclasses.replace(_JPEG_LS, name="JPEG-LS Near-Lossless"),
    "1.2.840.10008.1.2.4.90": dataclasses.replace(_JPEG_2000, name="JPEG 2000 Lossless"),
    "1.2.840.10008.1.2.4.91": _JPEG_2000,
    "1.2.840.10008.1.2.4.201": dataclasses.replace(_HIGH_THROUGHPUT, name="High-Throughput JPEG 2000 Lossless"),
    "1.2.840.10008.1.2.4.203": _HIGH_THROUGHPUT,
}
"""Accepted transfer syntaxes by UID. Deflated is none: it unpacks to any size before its header can be read."""
