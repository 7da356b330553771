"""Host organs against counts pixel by pixel, masks in every layout, and the atlas where there are none."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refuse

from stepcot_jax.annotate.recipes.items import Question, TaskSettings
from stepcot_jax.annotate.recipes.medclm import plan_views, write_view
from stepcot_jax.annotate.recipes.organs import ORGAN_FROM, Hosts, find_hosts, read_masks
from stepcot_jax.box import Box
from stepcot_jax.data.questions.making import ground_phantom
from stepcot_jax.data.questions.vocabulary import find_regions
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
        assert found == ""
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
    assert find_hosts([(17.0, 0.0, 19.0, 2.0)], {"large": large}, method="coverage") == ""
    assert find_hosts([box], {}, method="coverage") == ""
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
    record = ask("case_1.png", (0, 0, 2, 2), size=(4, 4))
    if not is_own and not linked:  # the folder that the user names may itself be a link
        assert Hosts(settings, {"case_1.png"}).find(record) == ("right lung", "masks")
        return
    refuse("link out of", Hosts(settings, {"case_1.png"}).find, record)


def ask(image, box, *, size=(10, 8), **more):
    asked = {"id": "q", "patient": "p", "kind": "closed", "question": "Is it?", "answer": "Yes"}
    return Record(image=image, image_size=size, references=(Box("Mass", box),), **asked, **more)


def test_masks_of_jsrt_and_by_the_sides_of_the_picture(tmp_path):
    """SCR's folders of GIF files; a lung on the other side is a mask by the picture's sides, or a mirrored picture."""
    masks = {name: np.zeros((8, 10)) for name in ("right lung", "left lung", "heart")}
    masks["right lung"][2:6, 1:4], masks["left lung"][2:6, 7:9], masks["heart"][4:6, 4:7] = 255, 255, 255
    for fold, image in (("fold1", "JPCLN001"), ("fold2", "JPCLN002")):
        for name, mask in masks.items():
            save(tmp_path / "SCR" / fold / "masks" / name / f"{image}.gif", mask)
    hosts = Hosts(TaskSettings(root=tmp_path, folder=tmp_path, masks=tmp_path / "SCR"), {"JPCLN002.png"})
    assert hosts.find(ask("JPCLN002.png", (7, 2, 9, 6))) == ("left lung", "masks")
    assert hosts.find(ask("JPCLN002.png", (40, 40, 70, 60), size=(100, 80))) == ("heart", "masks")
    assert hosts.find(ask("JPCLN002.png", (0, 0, 1, 1))) == ("", "")
    for name, other in (("right lung", "left lung"), ("left lung", "right lung")):
        save(tmp_path / "turned" / name / "a.bmp", masks[other])
    refuse("'left lung' lies left in the picture", read_masks, tmp_path / "turned", "a.png")
    (tmp_path / "turned" / "left lung" / "a.bmp").write_bytes(b"BM not a picture")
    refuse("a.bmp: cannot be decoded", read_masks, tmp_path / "turned", "a.png")


def run_length(mask):
    """Runs as CheXmask writes them, pixel by pixel: pairs of start from 1 and length, along the rows."""
    runs, before = [], 0
    for place, value in enumerate(mask.ravel().tolist(), start=1):
        if value and not before:
            runs += [place, 0]
        if value:
            runs[-1] += 1
        before = value
    return " ".join(map(str, runs))


def test_chexmask_is_read_as_it_was_written(tmp_path):
    rng = np.random.default_rng(0)
    masks = {name: rng.random((8, 10)) < 0.6 for name in ("Left Lung", "Right Lung", "Heart")}
    masks["Left Lung"][:, :6], masks["Right Lung"][:, 4:] = False, False
    header = "Path,Dice RCA (Mean),Landmarks," + ",".join(masks) + ",Height,Width\n"
    runs = ",".join(map(run_length, masks.values()))
    row = lambda name, dice, written=runs: f'{name},{dice},"1,2",{written},8,10\n'  # noqa: E731
    names = ("train/p1/view1.jpg", "train/p2/view1.jpg", "train/p3/view1.jpg")
    table = tmp_path / "CheXpert.csv"
    dices = zip(names, (0.9, 0.69, 0.7), strict=True)
    table.write_text(header + "".join(row(name, dice) for name, dice in dices) + row("x", 1, "1,2,3"))
    images = {f"CheXpert/{name}" for name in names}
    hosts = Hosts(TaskSettings(root=tmp_path, folder=tmp_path, masks=table), images)
    organs = {"left lung": masks["Left Lung"], "right lung": masks["Right Lung"], "heart": masks["Heart"]}
    for box in ((0, 0, 4, 8), (6, 1, 10, 7), (3, 2, 7, 6)):
        shares = {name: count(box, mask, "coverage") for name, mask in organs.items()}
        for number, image in enumerate(sorted(images)):
            found = hosts.find(ask(image, box))
            assert found == (("", "") if number == 1 else (max(shares, key=shares.get), "masks"))
    for written, words in (("1 2 3,4 1,4 1", "a start without"), ("79 3,4 1,4 1", "80 pixels"), ("0 3,,", "80 pixels")):
        table.write_text(header + row(names[0], 0.9, written))
        broken = Hosts(TaskSettings(root=tmp_path, folder=tmp_path, masks=table), images)
        refuse(words, broken.find, ask(f"CheXpert/{names[0]}", (0, 0, 4, 8)))


def test_the_atlas_names_the_organs_of_radiographs_without_masks_alone(tmp_path):
    _, drawn = ground_phantom(2, seed=5, size=128)
    Image.fromarray(drawn.image).save(tmp_path / "a.png")
    settings = TaskSettings(root=tmp_path, folder=tmp_path)
    lung = find_regions(drawn.lung_mask, drawn.heart_mask)
    box = next(region.corners for region in lung if region.label == "left upper lung zone")
    shown = ask("a.png", box, size=(128, 128), modality="xray")
    organ, source = Hosts(settings, {"a.png"}).find(shown)
    assert (organ, source.split(",")[0]) == ("left lung", "atlas")
    for other in (
        msgspec.structs.replace(shown, modality="CT"),
        msgspec.structs.replace(shown, references=(Box("Mass", (0.0, 0.0, 5.0, 5.0)),)),
        msgspec.structs.replace(shown, references=(*shown.references, Box("Mass", (0.0, 0.0, 5.0, 5.0)))),
    ):
        assert Hosts(settings, {"a.png"}).find(other) == ("", "")
    without = TaskSettings(root=tmp_path, folder=tmp_path, organ_prior="none")
    assert Hosts(without, {"a.png"}).find(shown) == ("", "")
    assert Hosts(without, {"a.png"}).find(msgspec.structs.replace(shown, organ="chest")) == ("chest", "source")


def test_what_is_unknown_is_in_no_text(tmp_path):
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8))
    picture.save(tmp_path / "a.png")
    question = Question(ask("a.png", (4, 4, 20, 20), size=(64, 64), modality="xray", lesion="Mass"), ())
    easy, medium, _ = plan_views([question], TaskSettings(root=tmp_path, folder=tmp_path))
    for view in (easy, medium):
        written = json.dumps([write_view(view), view.data(), view.record.organ])
        assert "organ" not in written
        assert "unknown" not in written
        assert ORGAN_FROM not in view.record.provenance
    assert "where" not in write_view(medium)["question"]
