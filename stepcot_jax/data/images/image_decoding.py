"""Decode PNG, JPEG and DICOM to upright grey or RGB pictures, without trusting the files."""

import contextlib
import functools
import io
import warnings
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import UInt8, UInt16
from PIL import ExifTags, Image, ImageFile, ImageOps, JpegImagePlugin, PngImagePlugin

from stepcot_jax.data.images import file_formats
from stepcot_jax.data.images.file_formats import Note, describe_other, ignore_note, is_dicom
from stepcot_jax.data.projections import Projection
from stepcot_jax.host.errors import BadInput

MAX_PIXELS = 50_000_000  # default limit of width times height; the largest detectors write about 20 million pixels
MAX_SIDE = 65_535  # longest side in pixels (JPEG's own limit): the memory of resampling is proportional to it
EXPECTED = "expected a PNG (8- or 16-bit grey, palette, RGB, RGBA), JPEG (grey, RGB, CMYK) or DICOM image"

_OPENERS: dict[bytes, Callable[[BinaryIO], ImageFile.ImageFile]] = {
    b"\x89PNG\r\n\x1a\n": PngImagePlugin.PngImageFile,
    b"\xff\xd8\xff": JpegImagePlugin.JpegImageFile,
}
_SCAN = b"\xff\xda"  # begins a JPEG's pixels
_COMMENTS, _TURNING = (b"tEXt", b"zTXt", b"iTXt", b"iCCP"), (b"Raw profile type exif", b"XML:com.adobe.xmp")
_TURNED = range(2, 9)  # values of the EXIF orientation
_FULL_SCALES = tuple(2**bits - 1 for bits in (10, 12, 14, 16))
_HOUNSFIELD, _WINDOW, _SHARE_OF_CT = (2**15 - 2048, 2**15 + 4096), (2**15 - 1024, 2**15 + 1050), 0.9
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


def decode_picture(
    content: bytes, *, name: str, max_pixels: int, note: Note = ignore_note, least_side: int | None = None
) -> Image.Image:
    """Decode a file's content to an upright picture of mode "L" or "RGB", as `decode_image_bytes` does.

    `note` gets what is odd about a readable DICOM file, such as a window that misses the pixels. With `least_side` a
    JPEG is decoded at 1/2, 1/4 or 1/8 of its sides, of which the shorter keeps at least so many pixels.
    """
    opener = next((opener for magic, opener in _OPENERS.items() if content.startswith(magic)), None)
    try:
        if (
            opener is JpegImagePlugin.JpegImageFile
            and _SCAN in content
            and file_formats.looks_like_text(content[content.find(_SCAN) :])
        ):
            raise BadInput(f"{name}: is {'; '.join(file_formats.SENT_AS_TEXT)}")
        if opener is not None:
            load = functools.partial(_open_and_load, name=name, max_pixels=max_pixels, least_side=least_side)
            return _decode_common(opener, content, load, note)
        if is_dicom(content):
            from stepcot_jax.data.images.dicom import read_dicom  # a thousand lines, for this format alone

            return Image.fromarray(read_dicom(content, name=name, max_pixels=max_pixels, note=note))
    except BadInput as error:
        if opener is None and file_formats.looks_like_text(content):
            words = "; ".join(file_formats.SENT_AS_TEXT)
            raise BadInput(f"{name}: is {words}: {str(error).removeprefix(f'{name}: ')}") from None
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


def _decode_common(
    opener: Callable[[BinaryIO], ImageFile.ImageFile], content: bytes, load: Callable[..., Image.Image], note: Note
) -> Image.Image:
    """Decode a PNG or JPEG; a PNG whose comments or colour profile exceed Pillow's limits without them."""
    try:
        return load(opener(io.BytesIO(content)), content)
    except BadInput:
        raise
    except Exception:
        for keeps_turns in (True, False):
            kept = drop_comments(content, keeps_turns=keeps_turns)
            with contextlib.suppress(ValueError, SyntaxError):
                picture = load(opener(io.BytesIO(kept)), kept)
                if not keeps_turns:
                    note("a comment is too long to be read: if it turns the picture, this is not applied")
                return picture
        raise


def drop_comments(content: bytes, *, keeps_turns: bool = True) -> bytes:
    """Return a PNG without its texts and colour profile; `keeps_turns`: with texts that may hold an orientation."""
    kept, position = [content[:8]], 8
    while content.startswith(b"\x89PNG") and position < len(content):
        end = position + 12 + int.from_bytes(content[position : position + 4], "big")
        kind, text = content[position + 4 : position + 8], content[position + 8 : position + 40]
        if kind not in _COMMENTS or (keeps_turns and text.startswith(_TURNING)):
            kept.append(content[position:end])
        position = end
    return b"".join(kept)


def _open_and_load(
    image: ImageFile.ImageFile, content: bytes, *, name: str, max_pixels: int, least_side: int | None
) -> Image.Image:
    with image:
        width, height = image.size
        if width * height > max_pixels or max(width, height) > MAX_SIDE:
            raise BadInput(
                f"{name}: {width} x {height} pixels in its header; "
                f"expected at most {max_pixels} pixels and sides of at most {MAX_SIDE}"
            )
        if image.tile and image.tile[0].args in _DEEP:
            return _load_deep(image, content)
        if least_side is not None:
            image.draft(None, (least_side, least_side))  # of formats other than JPEG it changes nothing
        image.load()
        return _as_grey_or_rgb(_upright(image))


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
    """Scale by the full scale of the detector, which single hot pixels do not decide; larger values saturate.

    Values that lie around 2^15 are Hounsfield units, to which DeepLesion adds so much: of them -1024 to 1050 are shown.
    """
    if ((values >= _HOUNSFIELD[0]) & (values <= _HOUNSFIELD[1])).mean() >= _SHARE_OF_CT:
        low, high = _WINDOW
        shown = np.clip(np.arange(2**16), low, high) - low
        return np.round(shown * (255.0 / (high - low))).astype(np.uint8)[values]
    position = int(_SHARE_BELOW * (values.size - 1))
    high = int(np.partition(values, position, axis=None)[position])
    full_scale = next(scale for scale in _FULL_SCALES if high <= scale * _TOLERANCE)
    # A table with one entry for each value avoids a picture of floats.
    table = np.round(np.minimum(np.arange(2**16), full_scale) * (255.0 / full_scale)).astype(np.uint8)
    return table[values]
