"""Decode PNG, JPEG and DICOM to upright grey or RGB pictures, without trusting the files."""

import contextlib
import io
import warnings
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import UInt8, UInt16
from PIL import ExifTags, Image, ImageFile, ImageOps, JpegImagePlugin, PngImagePlugin

from stepcot_jax.data.images.file_formats import TEXT_MODE, Note, describe_other, has_crlf_only, ignore_note, is_dicom
from stepcot_jax.data.images.projections import Projection
from stepcot_jax.host.errors import BadInput

MAX_PIXELS = 50_000_000  # default limit of width times height; the largest detectors write about 20 million pixels
MAX_SIDE = 65_535  # longest side in pixels (JPEG's own limit): the memory of resampling is proportional to it
EXPECTED = "expected a PNG (8- or 16-bit grey, palette, RGB, RGBA), JPEG (grey, RGB, CMYK) or DICOM image"

_OPENERS: dict[bytes, Callable[[BinaryIO], ImageFile.ImageFile]] = {
    b"\x89PNG\r\n\x1a\n": PngImagePlugin.PngImageFile,
    b"\xff\xd8\xff": JpegImagePlugin.JpegImageFile,
}
_TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
_TURNED = range(2, 9)  # values of the EXIF orientation
_FULL_SCALES = tuple(2**bits - 1 for bits in (10, 12, 14, 16))
_SHARE_BELOW, _TOLERANCE = 0.999, 1.001  # share of 16-bit values that full scale holds, within 0.1 %

# Pillow keeps the high byte of 16-bit colour and alpha. For each raw mode of 16 bits: a mode, and the raw modes that
# give the high and the low bytes; grey with alpha has as many bytes a pixel as 8-bit RGBA.
_DEEP: dict[Any, tuple[str, ...]] = {
    "I;16B": (),
    "RGB;16B": ("RGB", "RGB;16B", "RGB;16L"),
    "LA;16B": ("RGBA", "RGBA"),
    "RGBA;16B": ("RGBA", "RGBA;16B", "RGBA;16L"),
}


# Pillow warns of metadata that does not affect pixels; everything else becomes BadInput.
warnings.filterwarnings("ignore", module=r"PIL\.")


def most_bytes(max_pixels: int) -> int:
    """Return the size limit of a file: 8 bytes a pixel (16-bit RGBA, uncompressed), and 16 MiB for metadata."""
    return 8 * max_pixels + 16 * 2**20


def decode_picture(content: bytes, *, name: str, max_pixels: int, note: Note = ignore_note) -> Image.Image:
    """Decode a file's content to an upright picture of mode "L" or "RGB", as `decode_image_bytes` does.

    `note` gets what is odd about a readable file, such as a DICOM window that misses the pixels.
    """
    opener = next((opener for magic, opener in _OPENERS.items() if content.startswith(magic)), None)
    if opener is PngImagePlugin.PngImageFile:
        content = _leave_long_texts_out(content, note)
    elif opener is not None and has_crlf_only(content[content.rfind(b"\xff\xda") :], least=8):
        raise BadInput(f"{name}: is a JPEG that {TEXT_MODE}")
    try:
        if opener is not None:
            return _open_and_load(opener(io.BytesIO(content)), content, name=name, max_pixels=max_pixels)
        if is_dicom(content):
            from stepcot_jax.data.images.dicom import read_dicom  # a thousand lines, for this format alone

            return Image.fromarray(read_dicom(content, name=name, max_pixels=max_pixels, note=note))
    except BadInput:
        raise
    # Pillow's decoders raise a dozen types of error on broken files.
    except Exception as error:
        raise BadInput(f"{name}: cannot be decoded: {type(error).__name__}: {str(error)[:200]}; {EXPECTED}") from error
    raise BadInput(f"{name}: {describe_other(content)}; {EXPECTED}")


def read_projection(content: bytes, *, name: str) -> Projection:
    """Return the projection that the header of a file names, without decoding its picture; "" if it is not DICOM."""
    if not is_dicom(content):
        return ""
    from stepcot_jax.data.images import dicom

    return dicom.read_projection(content, name=name)


def _open_and_load(image: ImageFile.ImageFile, content: bytes, *, name: str, max_pixels: int) -> Image.Image:
    with image:
        width, height = image.size
        if width * height > max_pixels or max(width, height) > MAX_SIDE:
            raise BadInput(
                f"{name}: {width} x {height} pixels in its header; "
                f"expected at most {max_pixels} pixels and sides of at most {MAX_SIDE}"
            )
        if image.tile and image.tile[0].args in _DEEP:
            return _load_deep(image, content)
        image.load()
        return _as_grey_or_rgb(_upright(image))


def _leave_long_texts_out(content: bytes, note: Note) -> bytes:
    """Return a PNG without the texts and colour profiles that Pillow refuses, since these may expand to any size."""
    if not any(kind in content for kind in _TEXTS):
        return content
    kept, position, memory = [content[:8]], 8, 0
    while position < len(content):
        length, kind = int.from_bytes(content[position : position + 4], "big"), content[position + 4 : position + 8]
        chunk = content[position : position + 12 + length]
        position += len(chunk)
        if kind in _TEXTS:
            keyword, _, text = chunk[8:-4].partition(b"\0")
            size = _measure_text(kind, text)
            if size is None or memory + size > PngImagePlugin.MAX_TEXT_MEMORY:
                if keyword.startswith((b"XML:com.adobe.xmp", b"Raw profile")):  # may hold an orientation
                    note("the EXIF or XMP text of its PNG is too long to be read: it may be turned")
                continue
            memory += size
        kept.append(chunk)
    return b"".join(kept)


def _measure_text(kind: bytes, text: bytes) -> int | None:
    """Return the bytes of a text, None if it expands to more than Pillow accepts."""
    packed = text[2:].split(b"\0", 2)[-1] if kind == b"iTXt" else text[1:]  # behind language and translated keyword
    if kind == b"tEXt" or (kind == b"iTXt" and text[:1] == b"\0"):
        return len(text)
    most = PngImagePlugin.MAX_TEXT_CHUNK
    with contextlib.suppress(zlib.error):
        size = len(zlib.decompressobj().decompress(packed, most))
        return size if size < most else None
    return len(text)


def _load_deep(image: ImageFile.ImageFile, content: bytes) -> Image.Image:
    """Return a 16-bit PNG in 8 bits, what is transparent on black."""
    level, (mode, *raw_modes) = image.info.get("transparency"), _DEEP[image.tile[0].args] or ("",)
    values: np.ndarray
    if not raw_modes:  # grey
        image.load()
        values = np.asarray(_upright(image)).astype(np.uint16)[..., None]
    else:
        parts = []
        for raw_mode in raw_modes:
            part = PngImagePlugin.PngImageFile(io.BytesIO(content))
            part._mode, part.tile = mode, [tile._replace(args=raw_mode) for tile in part.tile]
            part.load()
            parts.append(np.asarray(_upright(part)).astype(np.uint16))
        high, low = parts if len(parts) == 2 else (parts[0][..., ::2], parts[0][..., 1::2])
        values = high << 8 | low
    if level is not None and values.shape[-1] in (1, 3):
        values[(values == np.asarray(level)).all(axis=-1)] = 0
    if values.shape[-1] in (2, 4):
        alpha = values[..., -1:].astype(np.uint32)
        values = ((values[..., :-1] * alpha + 32767) // 65535).astype(np.uint16)
    return Image.fromarray(_scale_to_bytes(values if values.shape[-1] == 3 else values[..., 0]))


def _upright(image: Image.Image) -> Image.Image:
    try:
        if image.getexif().get(ExifTags.Base.Orientation, 1) not in _TURNED:
            return image  # Pillow would copy it: allocating costs as much as resizing
        return ImageOps.exif_transpose(image)
    except Exception:  # broken metadata of a good picture: keep the picture as stored
        return image


def _as_grey_or_rgb(image: Image.Image) -> Image.Image:
    if image.has_transparency_data:
        with_alpha = image.convert("RGBA")
        canvas = Image.new("RGB", image.size)
        canvas.paste(with_alpha.convert("RGB"), mask=with_alpha.getchannel("A"))
        return canvas
    wanted = "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == wanted else image.convert(wanted)


def _scale_to_bytes(values: UInt16[np.ndarray, "height width *channel"]) -> UInt8[np.ndarray, "height width *channel"]:
    """Scale by the full scale of the detector, which single hot pixels do not decide; larger values saturate."""
    position = int(_SHARE_BELOW * (values.size - 1))
    high = int(np.partition(values, position, axis=None)[position])
    full_scale = next(scale for scale in _FULL_SCALES if high <= scale * _TOLERANCE)
    # A table with one entry for each value avoids a picture of floats.
    table = np.round(np.minimum(np.arange(2**16), full_scale) * (255.0 / full_scale)).astype(np.uint8)
    return table[values]
