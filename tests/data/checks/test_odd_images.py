import io
import json
import pathlib

import numpy as np
import pytest
from data.checked import check, load
from data.images.test_dicom import make, write
from PIL import Image
from refusals import refuse

from stepcot_jax.data.images.preprocessing import decode_image
from stepcot_jax.data.sources.layouts import read_source

FIRST_CONTACT = pathlib.Path(__file__).parents[4] / "shared/data/first_contact"
needs_shared = pytest.mark.skipif(not FIRST_CONTACT.is_dir(), reason="needs ../shared")


def png(pixels, kind="PNG"):
    stream = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(stream, kind)
    return stream.getvalue()


def noise(seed):
    return np.random.default_rng(seed).integers(0, 256, (32, 32), np.uint8)


def make_root(root, images, views=None):
    """A table with one image a row; image and view of each."""
    rows = ["image,patient_id,view,diagnosis"]
    for number, content in enumerate(images):
        (root / f"{number}.png").write_bytes(content)
        view = views[number] if views else ""
        rows.append(f"{number}.png,p{number},{view},{('Normal', 'Nodule', 'Effusion')[number % 3]}")
    (root / "cases.csv").write_text("\n".join(rows) + "\n")
    return root


def test_pictures_that_show_nothing_are_counted_and_named(tmp_path, caplog):
    images = [png(noise(number)) for number in range(9)]
    images[1] = png(np.zeros((32, 32)), "JPEG")
    images[2], images[4] = png(np.full((32, 32, 3), 255)), png(np.zeros((40, 32)))
    images[5], images[6] = png([[77]]), png(np.arange(320).reshape(8, 40) % 256)
    images[7] = write(make(noise(0).astype(np.uint16), WindowCenter="40000", WindowWidth="10"))
    facts = check(make_root(tmp_path, images))
    found = {fact["reason"]: (fact["count"], fact["examples"][0]["image_path"]) for fact in facts["odd_images"]}
    missed = "a window or VOI LUT of its DICOM header misses the pixels: the next one, or their range, is used"
    assert found == {
        "the picture is all black": (2, "1.png"),
        "the picture is all white": (1, "2.png"),
        "the picture is all of one grey": (1, "5.png"),
        "a side of the picture is under 16 pixels": (2, "5.png"),
        missed: (1, "7.png"),
    }
    assert "2 images: the picture is all black (1.png, 4.png)" in facts["notes"]
    assert f"1 image: {missed} (7.png)" in facts["notes"]
    assert (facts["stops"], facts["cases"]) == ([], 9)
    load(tmp_path)  # a run decodes every picture too
    assert f"cases.csv: 1 image: {missed} (7.png)" in caplog.text


def as_published(root, views):
    entry = {"step": "Step 1", "question": "?", "options": ["no", "yes"], "answer": "no", "reasoning": ""}
    shared = {"origin": "", "report": "", "vqa_chain": [entry]}
    records = [
        {"patient_id": f"p{number}", "image_path": f"{number}.png", **shared, "stepcot_jax": {"view": view}}
        for number, view in enumerate(views)
    ]
    (root / "data.json").write_text(json.dumps(records))
    (root / "cases.csv").unlink()


VIEWS = ["PA", "LATERAL", "LL", "AP", "", "Lateral", "AP_horizontal", "PA LATERAL", "PA", "PA", "PA", "PA"]


@pytest.mark.parametrize("layout", ["csv", "published", "dicom"])
def test_lateral_views_are_set_aside_in_a_frontal_task_and_kept_in_a_lateral_one(tmp_path, layout):
    images = [png(noise(number)) for number in range(12)]
    if layout == "dicom":
        images = [write(make(noise(number), ViewPosition=view)) for number, view in enumerate(VIEWS)]
    make_root(tmp_path, images, None if layout == "dicom" else VIEWS)
    options = {"step_names": ("Only",)} if layout == "published" else {}
    if options:
        as_published(tmp_path, VIEWS)
    facts = check(tmp_path, **options)
    assert (facts["set_aside"], facts["cases"], facts["images_unreadable"], facts["stops"]) == (3, 9, 0, [])
    (reason,) = facts["set_aside_reasons"]
    assert "is a lateral view; expected frontal ones" in reason["reason"]
    assert [example["record"] for example in reason["examples"]] == [1, 2, 5]
    loaded = read_source(tmp_path, **options) if options else load(tmp_path)
    assert [case.image for case in loaded.cases] == [f"{number}.png" for number in (0, 3, 4, 6, 7, 8, 9, 10, 11)]
    assert [item.record for item in loaded.set_aside] == [1, 2, 5]
    views = ["LL", "LATERAL"] * 6
    make_root(tmp_path, [write(make(noise(number), ViewPosition="LL")) for number in range(12)], views)
    if options:
        as_published(tmp_path, views)
    facts = check(tmp_path, **options)
    assert (facts["cases"], facts["set_aside"], facts["stops"]) == (12, 0, [])
    assert len((read_source(tmp_path, **options) if options else load(tmp_path)).cases) == 12


def test_lateral_views_do_not_hide_bad_records(tmp_path):
    make_root(tmp_path, [png(noise(number)) for number in range(12)], VIEWS)
    (tmp_path / "3.png").write_bytes(b"<!DOCTYPE html>")
    assert len(check(tmp_path)["stops"]) == 1
    refuse(r"record 3 .* is a web page", load, tmp_path)
    as_published(tmp_path, VIEWS)
    text = (tmp_path / "data.json").read_text().replace('"p4"', '""')
    (tmp_path / "data.json").write_text(text)
    refuse(r"record 4 .*patient_id", read_source, tmp_path, step_names=("Only",))
    (stop,) = check(tmp_path, step_names=("Only",), images="none")["stops"]
    assert "1 of 12 records are bad" in stop


RIGHT = {  # grey values, and the accepted difference
    "dicom/d02_voi_lut_12_in_16.dcm": ([255, 20, 148], 0),
    "dicom/d02b_voi_lut_2065_736_16.dcm": ([255, 0, 203], 0),
    "dicom/d20d_j2k_14_header12.dcm": ([255, 20, 148], 0),
    "dicom/d10_ok.dcm": ([255, 20, 148], 0),
    "png/i02_grey16_12bit.png": ([255, 20, 148], 0),
    "png/i03_grey16_12bit_one_hot.png": ([255, 20, 148], 2),
    "png/i03b_grey16_max4096.png": ([255, 20, 148], 2),
    "png/i07_grey16_alpha_12bit.png": ([255, 20, 148], 0),
    "more/dicom/two_windows_second.dcm": ([255, 25, 63, 108], 0),
    "more/dicom/off_data.dcm": ([255, 6, 48, 96], 2),
    "more/dicom/intercept_win_stored.dcm": ([255, 6, 48, 96], 2),
    "more/dicom/eight_in_16win.dcm": ([255, 6, 48, 96], 8),
    "more/dicom/burned.dcm": ([255, 6, 48, 96], 10),
    "more/dicom/plain.dcm": ([255, 25, 63, 108], 0),
    "more/dicom/plut_inverse_m2.dcm": ([255, 25, 63, 108], 0),
    "../first_contact_4/dicom/shared_window.dcm": ([255, 31, 230, 255], 0),
    "../first_contact_4/dicom/root_window.dcm": ([255, 31, 230, 255], 0),
}
REFUSED = {
    "dicom/d07_bits_stored_10_values_4095.dcm": "BitsStored: 10, but 61.23% of the pixels have higher bits",
    "dicom/d10_no_preamble.dcm": "is a DICOM file without the preamble .* re-save it with dcmconv",
    "dicom/d10b_bare_dataset.dcm": "is a DICOM file without the preamble .* re-save it with dcmconv",
    "dicom/d11_no_transfer_syntax.dcm": "TransferSyntaxUID is missing",
    "more/dicom/for_processing.dcm": "is FOR PROCESSING",
    "png/i14_bmp_named.png": "is a BMP file, whatever its name says; convert it to PNG",
    "png/i16_html.png": "is a web page .HTML., not the image",
    "png/i17_lfs.png": "is a Git LFS pointer, .* run `git lfs pull`",
}


@needs_shared
@pytest.mark.parametrize("name", [*RIGHT, *REFUSED])
def test_the_pictures_of_first_contact(name):
    if name in REFUSED:
        refuse(REFUSED[name], decode_image, FIRST_CONTACT / name)
        return
    expected, tolerance = RIGHT[name]
    grey = decode_image(FIRST_CONTACT / name)[..., 0].astype(int)
    found = [grey[row, column] for row, column in ((16, 16), (16, 4), (16, 30), (40, 60))[: len(expected)]]
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)
