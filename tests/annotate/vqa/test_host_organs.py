"""Host organs against counts pixel by pixel, and masks in both layouts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refuse

from stepcot_jax.annotate.recipes.items import TaskSettings
from stepcot_jax.annotate.recipes.pictures import UNKNOWN, find_hosts, name_host, read_masks
from stepcot_jax.box import Box
from stepcot_jax.record import Record


def count(box, mask, method):
    """The share of one organ, pixel by pixel."""
    inside = {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}
    organ = {(x, y) for y, x in zip(*np.nonzero(mask), strict=True)}
    if method == "iou_box" and organ:
        xs, ys = [x for x, _ in organ], [y for _, y in organ]
        organ = {(x, y) for x in range(min(xs), max(xs) + 1) for y in range(min(ys), max(ys) + 1)}
    shared = len(inside & organ)
    return shared / (len(inside) if method == "coverage" else len(inside | organ))


@given(st.integers(0, 10_000), st.sampled_from(["coverage", "iou_mask", "iou_box"]))
def test_the_host_is_the_organ_with_the_greatest_share(seed, method):
    rng = np.random.default_rng(seed)
    masks = {name: rng.random((12, 10)) < rng.choice([0.0, 0.1, 0.5]) for name in "abc"}
    x1, y1 = rng.integers(0, 8, 2)
    box = (int(x1), int(y1), int(rng.integers(x1 + 1, 11)), int(rng.integers(y1 + 1, 13)))
    shares = {name: count(box, mask, method) for name, mask in masks.items()}
    found = find_hosts([box], masks, method=method)
    if max(shares.values()) == 0:
        assert found == UNKNOWN
    else:
        assert shares[found] == pytest.approx(max(shares.values()))


def test_methods_differ_as_the_facts_say():
    large, small = np.zeros((20, 20), bool), np.zeros((20, 20), bool)
    large[:, :10] = True
    small[8:12, 8:12] = True
    box = (6.0, 8.0, 10.0, 12.0)  # wholly in the large organ, half in the small one
    assert find_hosts([box], {"large": large, "small": small}, method="coverage") == "large"
    assert find_hosts([box], {"large": large, "small": small}, method="iou_box") == "small"
    assert find_hosts([box, (17.0, 0.0, 19.0, 2.0)], {"large": large}, method="coverage") == "large"
    assert find_hosts([(17.0, 0.0, 19.0, 2.0)], {"large": large}, method="coverage") == UNKNOWN
    assert find_hosts([box], {}, method="coverage") == UNKNOWN
    boxes = [(8.0, 8.0, 12.0, 12.0), (0.0, 0.0, 2.0, 2.0)]  # the order of the boxes does not matter
    assert find_hosts(boxes, {"small": small, "large": large}, method="iou_mask") == "large and small"
    refuse("--host-organ", find_hosts, [box], {"large": large}, method="guess")


def save(path, mask):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(mask.astype(np.uint8)).save(path)


def test_masks_are_read_in_both_layouts(tmp_path):
    grey = np.array([[0, 127, 128, 255]] * 4)
    save(tmp_path / "organs" / "liver" / "case_1.png", grey)
    save(tmp_path / "organs" / "heart" / "case_1.jpg.png", grey)  # another image's name
    save(tmp_path / "cases" / "case_1" / "left lung.png", grey)
    (liver,) = read_masks(tmp_path / "organs", "x/case_1.png").items()
    assert (liver[0], liver[1].tolist()[0]) == ("liver", [False, False, True, True])
    assert list(read_masks(tmp_path / "cases", "case_1.dcm")) == ["left lung"]
    assert (read_masks(tmp_path / "organs", "case_2.png"), read_masks(tmp_path / "nowhere", "case_1.png")) == ({}, {})
    save(tmp_path / "cases" / "case_1" / "heart.png", grey[:2])
    refuse("differ in size", read_masks, tmp_path / "cases", "case_1.png")
    (tmp_path / "cases" / "case_1" / "heart.png").write_bytes(b"no picture")
    refuse(r"heart\.png", read_masks, tmp_path / "cases", "case_1.png")


@pytest.mark.parametrize("linked", ["lung/case_1.png", "lung", ""])
@pytest.mark.parametrize("is_own", [True, False], ids=["masks of the source", "--masks"])
def test_a_mask_outside_of_the_root_is_never_read(tmp_path, linked, is_own):
    outside = tmp_path / "outside" / "lung" / "case_1.png"
    save(outside, np.full((4, 4), 255))
    root = tmp_path / "root"
    link = root / "masks" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "outside" / linked)
    settings = TaskSettings(root=root, folder=tmp_path, masks=None if is_own else root / "masks")
    record = Record(
        id="q", image="case_1.png", image_size=(4, 4), patient="p", kind="closed", question="Is it?",
        answer="Yes", references=(Box("Mass", (0, 0, 2, 2)),),
    )  # fmt: skip
    if not is_own and not linked:  # the folder that the user names may itself be a link
        assert name_host(record, settings) == "right lung"
        return
    refuse("link out of", name_host, record, settings)
