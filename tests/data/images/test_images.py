import dataclasses
import io
import json
import pathlib
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image
from refusals import refuse

from stepcot_jax.data.images.image_files import check_images
from stepcot_jax.data.images.preprocessing import (
    Preprocessing,
    decode_image,
    decode_image_bytes,
    normalise,
    normalise_grey,
    prepare_image,
    resize_image,
)
from stepcot_jax.data.records.records import read_records
from stepcot_jax.data.sources.intake import read_image_size
from stepcot_jax.host.errors import BadInput

GREY = np.array([[0, 50, 100], [150, 200, 255]], np.uint8)
COLOUR = np.stack([GREY, GREY[::-1], GREY[:, ::-1]], axis=2)
ALPHA = np.array([[255, 0, 128], [255, 255, 0]], np.uint8)


def save(tmp_path, image, kind="PNG", **options):
    path = tmp_path / f"image.{kind.lower()}"
    image.save(path, kind, **options)
    return path


def saved(image, kind, **options):
    stream = io.BytesIO()
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(stream, kind, **options)
    return stream.getvalue()


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(*, width, height, depth, colour_type, rows, extra=b""):
    """A PNG written by hand, for what Pillow does not write and for headers that lie."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + extra
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def refusal(path, **settings):
    message = refuse("", decode_image, path, **settings)
    assert str(path) in message
    return message


def palette():
    image = Image.frombytes("P", (3, 1), bytes([0, 1, 2]))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    return image


KINDS = {
    "grey": (Image.fromarray(GREY), {}, GREY),
    "one bit": (Image.fromarray(GREY > 120), {}, np.where(GREY > 120, 255, 0)),
    "two bits": (png(width=2, height=1, depth=2, colour_type=0, rows=b"\0\xc0"), {}, [[255, 0]]),
    "grey with a transparent level": (Image.fromarray(GREY), {"transparency": 200}, np.where(GREY == 200, 0, GREY)),
    "black of 16 bits": (Image.fromarray(np.zeros((2, 3), np.uint16)), {}, np.zeros((2, 3))),
    "colour": (Image.fromarray(COLOUR), {}, COLOUR),
    "palette": (palette(), {}, [[[10, 20, 30], [40, 50, 60], [70, 80, 90]]]),
    "transparent palette": (palette(), {"transparency": 1}, [[[10, 20, 30], [0, 0, 0], [70, 80, 90]]]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_png(kind):
    image, options, expected = KINDS[kind]
    content = image if isinstance(image, bytes) else saved(image, "PNG", **options)
    pixels = decode_image_bytes(content, name="x")
    assert (pixels.dtype, pixels.flags.writeable) == (np.uint8, True)
    np.testing.assert_array_equal(pixels, np.asarray(expected).reshape(*pixels.shape[:2], -1) + np.zeros(3))


FULL_SCALES = {255: 1023, 1024: 1023, 1025: 4095, 4096: 4095, 4100: 16383, 16384: 16383, 65535: 65535}


@pytest.mark.parametrize(("largest", "full_scale"), FULL_SCALES.items())
@pytest.mark.parametrize("colour_type", [0, 2, 4, 6], ids=["grey", "RGB", "grey with alpha", "RGBA"])
@pytest.mark.parametrize("transparent", [False, True])
def test_sixteen_bits_are_scaled_by_the_detectors_full_scale(largest, full_scale, colour_type, transparent):
    """By the 99.9th percentile within 0.1 %: one hot pixel saturates, with every colour type and with transparency."""
    num_samples = {0: 1, 2: 3, 4: 2, 6: 4}[colour_type]
    values = np.random.default_rng(0).integers(0, largest + 1, (40, 40, num_samples), np.uint16)
    values[2:4] = largest
    values[0, 0, :] = 65535
    extra, expected, num_colours = b"", values, min(num_samples, 3)
    if num_samples in (2, 4):
        num_colours -= num_samples == 2
        values[..., -1] = np.where(np.arange(40) % 2 == 0, 65535, 0)[:, None] if transparent else 65535
        expected = np.where(values[..., -1:] > 0, values, 0)
    elif transparent:
        extra = chunk(b"tRNS", values[1, 1].astype(">u2").tobytes())
        expected = np.where((values == values[1, 1]).all(axis=-1, keepdims=True), 0, values)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    content = png(width=40, height=40, depth=16, colour_type=colour_type, rows=rows, extra=extra)
    scaled = np.round(np.minimum(expected[..., :num_colours] / full_scale, 1) * 255).astype(np.uint8)
    np.testing.assert_array_equal(decode_image_bytes(content, name="x"), np.broadcast_to(scaled, (40, 40, 3)))


def test_what_is_transparent_lies_on_black(tmp_path):
    expected = np.round(COLOUR * (ALPHA[:, :, None] / 255.0))
    pixels = decode_image(save(tmp_path, Image.fromarray(np.dstack([COLOUR, ALPHA]))))
    np.testing.assert_allclose(pixels, expected, atol=1)
    pixels = decode_image(save(tmp_path, Image.fromarray(np.dstack([GREY, ALPHA]))))
    np.testing.assert_allclose(pixels, np.repeat(np.round(GREY * (ALPHA / 255.0))[:, :, None], 3, axis=2), atol=1)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_jpeg(tmp_path, mode):
    smooth = Image.fromarray(COLOUR).resize((64, 48), Image.Resampling.BICUBIC).convert(mode)
    path = save(tmp_path, smooth, "JPEG", quality=95, progressive=mode == "RGB")
    assert np.abs(decode_image(path) - np.asarray(smooth.convert("RGB"), np.float32)).mean() < 4


@pytest.mark.parametrize(("kind", "tolerance"), [("PNG", 0), ("JPEG", 12)])
def test_orientation_is_applied(tmp_path, kind, tolerance):
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.fromarray(GREY).resize((24, 16))
    pixels = decode_image(save(tmp_path, image, kind, exif=exif))
    np.testing.assert_allclose(pixels[:, :, 0].astype(int), np.rot90(np.asarray(image), -1).astype(int), atol=tolerance)


LONG = zlib.compress(b"x" * 2_000_000)
EXIF = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03" + bytes(12)
TURN = zlib.compress(b"\nexif\n      32\n" + EXIF.hex().encode())
COMMENTS = {
    "zTXt": [chunk(b"zTXt", b"Comment\0\0" + LONG)],
    "iTXt": [chunk(b"iTXt", b"Comment\0\1\0\0\0" + LONG)],
    "iCCP": [chunk(b"iCCP", b"sRGB\0\0" + LONG)],
    "many": [chunk(b"zTXt", b"C\0\0" + zlib.compress(bytes(10**6)))] * 80,
    "xmp": [chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + LONG)],
    "turned": [chunk(b"zTXt", b"Raw profile type exif\0\0" + TURN), chunk(b"zTXt", b"Comment\0\0" + LONG)],
}


@pytest.mark.parametrize("kind", COMMENTS)
def test_a_png_is_decoded_without_a_long_comment(tmp_path, kind):
    rows = b"".join(b"\0" + row.tobytes() for row in GREY)
    content, notes = png(width=3, height=2, depth=8, colour_type=0, rows=rows, extra=b"".join(COMMENTS[kind])), []
    pixels = decode_image_bytes(content, name="x", note=notes.append)[..., 0]
    np.testing.assert_array_equal(pixels, GREY[::-1, ::-1] if kind == "turned" else GREY)
    assert [note[:26] for note in notes] == ["a comment is too long to b"] * (kind == "xmp")
    (tmp_path / "a.png").write_bytes(content)
    assert kind == "xmp" or read_image_size(tmp_path / "a.png") == (3, 2)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        *((b"", "an empty file"), (b"abcdefgh__", "bytes 61 62 63 64 65 66"), (b"GIF89a__", "is a GIF file")),
        (saved(GREY, "BMP"), "is a BMP file, whatever its name says; convert it to PNG"),
        (b"\xef\xbb\xbf\n<!DOCTYPE html><html>", "is a web page (HTML), not the image"),
        (b"\0\0\0\x18ftypheic____", "is a HEIC, AVIF or MP4 file, whatever its name says; convert it to PNG"),
        (b"\x93NUMPY\x01\0", "is a NumPy array, whatever its name says; pass its pixels"),
        *((b"\x5c\x01\0\0" + bytes(344), "is a NIfTI volume"), (b"<svg xmlns=", "is an SVG drawing")),
        (b"7z\xbc\xaf'\x1c", "is a 7-Zip archive, whatever its name says; unpack it"),
        (b"<HTML>", "is a web page (HTML), not the image"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer, not the image, whatever its name"),
        (b"\x02\0\0\0UL\4\0\xba\0\0\0", "is a DICOM file without the preamble"),
        (b"DICM\x02\0\0\0UL\4\0", "re-save it with dcmconv (DCMTK), or with pydicom"),
        (b"\x08\0\x16\0UI\x1a\0" + bytes(30), "is a DICOM file without the preamble"),
        (b"\0\x08\0\x05CS\0\x0aISO_IR 100", "is a DICOM file without the preamble"),
        (b"\x08\0\x05\0\x0a\0\0\0ISO_IR 100", "is a DICOM file without the preamble"),
        (b"\r\n--b_1\r\nContent-Type: application/dicom\r\n\r\n", "is a multipart answer of DICOMweb: save its par"),
        (b"--b\nMIME-Version: 1.0\nContent-ID: <1>\n\n", "is a multipart answer of DICOMweb: save its parts"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: multipart/related; boundary=b\r\n", "is a multipart answer of DICOMweb"),
        (b"Content-Type: application/dicom\r\n\r\n" + bytes(128) + b"DICM", "is an answer with its head: save what"),
        (b'{ "00080005" : {}}', "is DICOM JSON, which has no pixels: fetch the instance"),
        (b'[\n{ "00080005" : {}}', "is DICOM JSON, which has no pixels: fetch the instance"),
        (b"<?xml version='1.0'?><NativeDicomModel>", "is DICOM XML, which has no pixels: fetch the instance"),
        *((b"[]", "is a JSON text"), (bytes(130) + b"DICM", "has DICM at byte 130 instead of 128: was it sent")),
        *((b"\x89PNG\n\x1a\n", "as text on its way"), (b"\xff\xd8\xff\xda" + b"a\r\n" * 4, "as text on its way")),
        *((b"\x89PNG\r\n\x1a\n", "cannot be decoded"), (b"\xff\xd8\xff\xe0", "cannot be decoded")),
    ],
)
def test_refuses_what_is_neither_png_nor_jpeg(tmp_path, content, found):
    path = tmp_path / "image.png"
    path.write_bytes(content)
    assert found in refusal(path)


@pytest.mark.parametrize(
    ("width", "height"), [(100_000, 100_000), (2**31 - 1, 2**31 - 1), (7000, 7200), (65_536, 1), (0, 4)]
)
def test_refuses_sizes_by_the_header_alone(tmp_path, width, height):
    path = tmp_path / "bomb.png"
    path.write_bytes(png(width=width, height=height, depth=8, colour_type=0, rows=b""))
    message = refusal(path)
    if width:
        assert f"{width} x {height} pixels in its header; expected at most 50000000" in message


def test_a_bomb_and_broken_metadata_leave_neither_memory_nor_warnings_behind(tmp_path):
    """In a process of its own, because pytest undoes what the package says about warnings."""
    path = save(tmp_path, Image.fromarray(GREY), exif=b"Exif\0\0MM\0*\xff\xff\xff\xff\x12\x34")
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(png(width=30_000, height=30_000, depth=8, colour_type=6, rows=bytes(1_000_000)))
    script = (
        "import resource, sys\n"
        "from stepcot_jax.data.images.preprocessing import decode_image\n"
        "print(decode_image(sys.argv[1])[..., 0].tolist())\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: decode_image(sys.argv[2])\n"
        "except ValueError as error: print(error)\n"
        "assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000\n"
    )
    root = pathlib.Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script, path, bomb], capture_output=True, text=True, cwd=root)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[0]) == (0, "", str(GREY.tolist()))
    assert "30000 x 30000 pixels" in done.stdout


SEEDS = [saved(COLOUR, "PNG"), saved(Image.fromarray(COLOUR).convert("P"), "PNG"), saved(COLOUR, "JPEG")]
DAMAGES = st.lists(st.tuples(st.integers(8, 10_000), st.integers(0, 255)), max_size=6)


@given(st.sampled_from(SEEDS), DAMAGES, st.integers(0, 50))
def test_any_damage_ends_in_pixels_or_a_message(tmp_path_factory, content, damages, num_cut):
    content = bytearray(content)
    for place, value in damages:
        content[place % len(content)] = value
    path = tmp_path_factory.mktemp("damaged") / "image"
    path.write_bytes(content[: len(content) - num_cut])
    try:
        pixels = decode_image(path)
    except BadInput:
        refusal(path)
    else:
        assert (pixels.dtype, pixels.shape[2]) == (np.uint8, 3)


SHAPES = st.tuples(st.integers(1, 90), st.integers(1, 90))
SORTS = st.sampled_from(["grey", "deep", "colour", "alpha", "transparent", "JPEG"])


@given(
    SHAPES, st.sampled_from(["crop", "pad", "stretch"]), st.sampled_from([1, 7, 24]), SORTS, st.integers(0, 2**32 - 1)
)
def test_preparing_in_one_go_is_decoding_then_resizing(shape, fit, size, kind, seed):
    rng = np.random.default_rng(seed)
    channels = {"colour": (3,), "alpha": (4,)}.get(kind, ())
    values = rng.integers(0, 4096 if kind == "deep" else 256, (*shape, *channels), np.uint16)
    values = values if kind == "deep" else values.astype(np.uint8)
    options = {"transparency": int(values[0, 0])} if kind == "transparent" else {}
    content = saved(values, "JPEG" if kind == "JPEG" else "PNG", **options)
    preprocessing = Preprocessing(size, fit=fit)
    expected = resize_image(decode_image_bytes(content, name="it"), preprocessing)
    prepared = prepare_image(content, name="it", preprocessing=preprocessing)
    if (expected == expected[..., :1]).all():
        np.testing.assert_array_equal(prepared, expected[..., 0])
        np.testing.assert_array_equal(normalise_grey(prepared, preprocessing), normalise(expected, preprocessing))
    else:
        np.testing.assert_array_equal(prepared, expected)


def test_jpeg_is_decoded_at_a_reduced_scale_only_where_asked_and_not_below_twice_the_size():
    """The mean of the blocks that a pixel at that scale stands for is computed here."""
    y, x = np.mgrid[:240, :320]
    pixels = np.round(127 + 60 * np.sin(x / 25) + 60 * np.cos(y / 18)).astype(np.uint8)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    content, turned = saved(pixels, "JPEG", quality=95), saved(pixels, "JPEG", quality=95, exif=exif)
    for size, scale in ((30, 4), (31, 2), (61, 1)):  # 240 / 4 >= 2 * 30, 240 / 2 >= 2 * 31
        plain = Preprocessing(size, fit="stretch")
        reduced = dataclasses.replace(plain, reduced_jpeg=True)
        blocks = pixels.reshape(240 // scale, scale, 320 // scale, scale).mean((1, 3))
        expected = resize_image(np.round(blocks).astype(np.uint8), plain).astype(int)
        found = prepare_image(content, name="it", preprocessing=reduced).astype(int)
        assert np.abs(found - expected).max() <= 4
        full = prepare_image(content, name="it", preprocessing=plain)
        assert np.array_equal(found, full) == (scale == 1)
        upright = prepare_image(turned, name="it", preprocessing=reduced)
        assert np.abs(np.rot90(found, -1) - upright).max() <= 2
        as_png = [prepare_image(saved(pixels, "PNG"), name="it", preprocessing=each) for each in (plain, reduced)]
        np.testing.assert_array_equal(*as_png)


@pytest.mark.parametrize("shape", [(31, 64), (64, 31), (50, 50), (1024, 333)])
def test_crop_is_resizing_the_short_side_and_cropping_the_centre(shape):
    pixels = np.random.default_rng(1).integers(0, 256, (*shape, 3), np.uint8)
    height, width = (int(48 * side / min(shape)) for side in shape)
    resized = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))
    top, left = (height - 48) // 2, (width - 48) // 2
    np.testing.assert_array_equal(resize_image(pixels, Preprocessing(48)), resized[top : top + 48, left : left + 48])
    grey = np.repeat(pixels[..., :1], 3, axis=-1)
    one, three = (resize_image(each, Preprocessing(48)) for each in (grey[..., 0], grey))
    np.testing.assert_array_equal(np.repeat(one[..., None], 3, axis=-1), three)


@pytest.mark.parametrize("shape", [(40, 80), (80, 40)])
def test_crop_agrees_with_clips_processor(shape):
    import transformers

    pixels = np.random.default_rng(2).integers(0, 256, (*shape, 3), np.uint8)
    ours = normalise(resize_image(pixels, Preprocessing(32)), Preprocessing(32))
    clip = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    theirs = clip(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(ours, theirs.transpose(1, 2, 0), atol=1e-5)


def test_pad_keeps_everything_between_black_bars():
    pixels, pad = np.full((20, 40, 3), 200, np.uint8), Preprocessing(16, fit="pad")
    expected = np.zeros((16, 16, 3), np.uint8)
    expected[4:12] = 200
    np.testing.assert_array_equal(resize_image(pixels, pad), expected)
    np.testing.assert_array_equal(resize_image(pixels.swapaxes(0, 1), pad), expected.swapaxes(0, 1))


@given(st.integers(1, 2000), st.integers(1, 3), st.sampled_from(["crop", "pad", "stretch"]), st.integers(1, 40))
def test_any_shape_comes_out_square(length, breadth, fit, size):
    for shape in ((length, breadth), (breadth, length)):
        resized = resize_image(np.full((*shape, 3), 77, np.uint8), Preprocessing(size, fit=fit))
        assert resized.shape == (size, size, 3)
        assert set(np.unique(resized)) <= ({0, 77} if fit == "pad" else {77})


SENSELESS = [{"size": 0}, {"std": (1.0, 0.0, 1.0)}, {"mean": (1.0, 2.0)}, {"mean": (float("nan"), 0, 0)}, {"fit": "x"}]


@pytest.mark.parametrize("settings", SENSELESS)
def test_refuses_preprocessing_that_makes_no_sense(settings):
    refuse(f"preprocessing {next(iter(settings))}: ", Preprocessing, **{"size": 8, **settings})


@pytest.fixture
def collection(tmp_path):
    entry = {"step": "Step 1", "question": "?", "options": ["no", "yes"], "answer": "no", "reasoning": ""}
    fields = {"origin": "", "report": "", "vqa_chain": [entry]}
    records = [{"patient_id": f"p{number}", "image_path": f"{number}.png", **fields} for number in range(7)]
    (tmp_path / "data.json").write_text(json.dumps(records))
    for number in range(7):
        Image.new("L", (4, 6), number).save(tmp_path / f"{number}.png")
    (tmp_path / "3.png").unlink()
    collection = read_records(tmp_path, step_names=["Only"], on_bad_record="skip")
    assert [aside.record for aside in collection.set_aside] == [3]
    return collection


def test_check_images_visits_all_but_what_is_known_and_stops_or_sets_aside_at_unreadable_ones(collection):
    visited, watched, known = [], [], (collection.root / "2.png").read_bytes()

    def watch(cases):
        for case in cases:
            watched.append(case.image)
            yield case

    def is_known(_, content):
        return content == known

    visit = lambda *seen: visited.append(seen)  # noqa: E731
    assert check_images(collection, is_known=is_known, visit=visit, progress=watch, num_threads=3) == collection
    assert [(index, int(pixels.max())) for index, pixels in visited] == [(0, 0), (1, 1), (3, 4), (4, 5), (5, 6)]
    assert watched == [case.image for case in collection.cases]
    for number in (1, 5):
        (collection.root / f"{number}.png").write_bytes(b"")
    refuse(r"data\.json, record 1 \(image_path '1\.png'\).*; 1 more of the 6 records are", check_images, collection)
    indices = []
    checked = check_images(collection, on_bad_record="skip", visit=lambda index, _: indices.append(index))
    assert ([case.image for case in checked.cases], indices) == (["0.png", "2.png", "4.png", "6.png"], [0, 1, 2, 3])
    assert [(aside.record, aside.image_path) for aside in checked.set_aside] == [(n, f"{n}.png") for n in (1, 3, 5)]
    assert check_images(checked) == checked
