"""Datasets of policies: phantoms in memory and from their folder, scaled boxes, splits, digests and bad images."""

import collections
import logging

import hypothesis
import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from PIL import Image
from reasoning_records import make_record, records
from refusals import refuse

from stepcot_jax.box import Box, Point
from stepcot_jax.data.questions.record_files import FILE_NAME, write_vqa_records
from stepcot_jax.data.questions.vqa_dataset import scale_record
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.settings import load_settings
from stepcot_jax.tools.data.command import main

SIZE = 48


def _settings(root="", **changes):
    chosen = {"job": "sft", "phantom.num_cases": 36, "phantom.image_size": SIZE, "phantom.prevalence": "flat"}
    chosen |= {"phantom.seed": 3, "image_encoder.image_size": SIZE, "data.cache_megabytes": 1.0}
    if root:
        chosen |= {"vqa.source": "folder", "vqa.root": str(root)}
    return load_settings("base", **chosen | changes)


@pytest.fixture(scope="module")
def phantoms():
    return load_vqa_dataset(_settings())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What `data vqa` writes with the same seed."""
    out = tmp_path_factory.mktemp("vqa") / "out"
    main(["vqa", str(out), "--num-cases=36", f"--size={SIZE}", "--seed=3"])
    return out


@pytest.mark.parametrize("check", ["ahead", "on_use"])
def test_a_folder_of_phantoms_loads_as_phantoms_in_memory(phantoms, folder, check):
    found = load_vqa_dataset(_settings(folder, **{"data.check_images": check}))
    assert found.records == phantoms.records
    assert np.array_equal(found.image_of, phantoms.image_of)
    assert (found.digest == phantoms.digest) == (check == "ahead")  # on_use: of paths and sizes
    assert found.splits == phantoms.splits
    pixels = phantoms.load_images(range(36))
    assert (pixels.shape, pixels.dtype) == ((36, SIZE, SIZE, 3), np.uint8)
    assert np.array_equal(found.load_images(range(36)), pixels)


@pytest.mark.parametrize("source", ["phantom", "folder"])
def test_one_split_alone_is_that_part_of_all(phantoms, folder, source):
    watched = []

    def watch(items):
        watched.extend(items)
        return iter(watched)

    settings = _settings(folder if source == "folder" else "")
    test = load_vqa_dataset(settings, splits=("test",), progress=watch)
    chosen = phantoms.splits.test
    assert test.records == tuple(phantoms.records[place] for place in chosen)
    assert test.splits == Splits(train=(), val=(), test=tuple(range(len(chosen))))
    assert np.array_equal(test.load_images(test.image_of), phantoms.load_images(phantoms.image_of[list(chosen)]))
    assert len(watched) == test.num_images < 12  # nothing else is drawn or decoded
    assert test.digest != phantoms.digest


def _write(root, *, records, sizes=None, seed=0):
    """Write records with images of random pixels, of (width, height) by path."""
    rng = np.random.default_rng(seed)
    for path in dict.fromkeys(record.image for record in records):
        width, height = (sizes or {}).get(path, (24, 32))
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(root / path)
    write_vqa_records(root / FILE_NAME, records)
    return root


def _records(number=12, split="", **changes):
    found = []
    for place in range(number):
        image = place // 2
        fields = {"id": f"record {place}", "image": f"files/p1000{image}/{image}.png", "patient": f"1000{image}"}
        fields["split"] = split if isinstance(split, str) else split[image]
        found.append(make_record(("open", "closed", "single", "multi")[place % 4], **(fields | changes)))
    return found


def test_splits_are_made_by_patient_unless_records_name_them(tmp_path):
    root = _write(tmp_path / "made", records=_records(40))
    dataset = load_vqa_dataset(_settings(root))
    of_patient = collections.defaultdict(set)
    for record in dataset.records:
        of_patient[record.patient].add(record.split)
    assert all(len(found) == 1 for found in of_patient.values())
    assert [len(places) for places in dataset.splits.by_name().values()] == [28, 6, 6]
    other = load_vqa_dataset(_settings(root, **{"data.split_seed": 5}))
    assert [record.split for record in other.records] != [record.split for record in dataset.records]
    named = ["train", "test", "val", "train", "val", "test"]
    kept = load_vqa_dataset(_settings(_write(tmp_path / "named", records=_records(split=named))))
    assert [record.split for record in kept.records[::2]] == named
    records = _records(40, split=["train"] * 16 + ["test"] * 4)
    dataset = load_vqa_dataset(_settings(_write(tmp_path, records=records)))
    splits = [record.split for record in dataset.records]
    assert (splits[32:], collections.Counter(splits[:32])) == (["test"] * 8, {"train": 28, "val": 4})
    assert splits[:32:2] == splits[1:32:2]  # both records of an image


CONTRADICTING = [
    ({0: {"split": "val"}, 1: {"split": "val"}}, r"10 of 12 records have no split; expected all or none$"),
    ({1: {"split": "val"}}, r"line 2: split differs from that of 'record 0', which has the same image$"),
    ({1: {"patient": "7"}}, r"line 2: patient differs from that of 'record 0', which has the same image$"),
    ({n: {"patient": "secret", "split": "train" if n < 6 else "val"} for n in range(12)}, "1 of 1 patients are in"),
]


@pytest.mark.parametrize(("changes", "message"), CONTRADICTING)
def test_splits_that_contradict_each_other_are_refused(tmp_path, changes, message):
    records = [msgspec.structs.replace(record, **changes.get(at, {})) for at, record in enumerate(_records())]
    assert "secret" not in refuse(message, lambda: load_vqa_dataset(_settings(_write(tmp_path, records=records))))


def test_boxes_scale_by_the_stated_size_whatever_the_image_has(tmp_path):
    box, thin = Box("heart", (21.6, 20, 30, 90)), Box("line", (99.9999999, 0, 100, 200))
    text = "I look at the **heart** ([22, 20, 30, 90]), ([1, 50, 3, 60]) and **unit** ([0.1, 0.2, 0.3, 0.4])."
    records = _records(split=["train"] * 6, image_size=(100, 200), references=(box, thin), thinking=text)
    root = _write(tmp_path, records=records, sizes={records[0].image: (200, 40)})
    dataset = load_vqa_dataset(_settings(root), splits=("train",))
    for record in dataset.records:
        first, second = record.references
        assert first.corners == pytest.approx((21.6 * 0.48, 20 * 0.24, 30 * 0.48, 90 * 0.24))
        assert 0 < second.corners[0] < second.corners[2] == SIZE
        # 21.6 * 0.48 = 10.4 as the reference is written, and not 22 * 0.48 = 10.6; halves go up
        assert "([10, 5, 14, 22]), ([0, 12, 1, 14])" in record.thinking
        assert "([0.1, 0.2, 0.3, 0.4])" in record.thinking
    with Image.open(root / records[0].image) as picture:
        expected = np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC))
    assert np.array_equal(dataset.load_images([0])[0], expected)


@pytest.mark.parametrize("change", ["nothing", "pixels", "answer", "split", "box"])
def test_the_digest_tells_every_change(tmp_path, change):
    splits = ["train", "val", "test"] * 2
    records = _records(split=splits)
    dataset = load_vqa_dataset(_settings(_write(tmp_path / "a", records=records)))
    box = (Box("bilateral lung", (64, 42, 257, 261)),)
    changes = {"answer": {"answer": "Another text"}, "box": {"references": box}}.get(change, {})
    other = [msgspec.structs.replace(records[0], **changes), *records[1:]]
    root = _write(tmp_path / "c", records=_records(split=splits[::-1]) if change == "split" else other)
    if change == "pixels":
        with Image.open(root / records[0].image) as picture:
            pixels = np.array(picture)
        pixels[5, 5] ^= 255
        Image.fromarray(pixels).save(root / records[0].image)
    assert (load_vqa_dataset(_settings(root)).digest == dataset.digest) == (change == "nothing")


FAULTS = {"missing": "does not exist", "broken": "cannot be decoded", "large": "400 x 300 pixels"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_image_stops_or_is_set_aside(tmp_path, fault, caplog):
    records, limits = _records(40), {"data.max_megapixels": 0.1}
    root = _write(tmp_path, records=records, sizes={records[4].image: (400, 300)} if fault == "large" else None)
    bad = root / records[4].image
    if fault == "missing":
        bad.unlink()
    elif fault == "broken":
        bad.write_bytes(bad.read_bytes()[:60])
    message = rf"line 5, image of record 'record 4': .*{FAULTS[fault]}.*on_bad_record=skip"
    with pytest.raises(BadInput, match=message) as caught:
        load_vqa_dataset(_settings(root, **limits))
    whole = load_vqa_dataset(_settings(_write(tmp_path / "whole", records=records)))
    with caplog.at_level(logging.DEBUG):
        kept = load_vqa_dataset(_settings(root, **limits, **{"data.on_bad_record": "skip"}))
    assert [(item.record, item.image_path, item.patient_id) for item in kept.set_aside] == [(5, "", ""), (6, "", "")]
    assert "10002" not in str(caught.value) + caplog.text + "".join(aside.reason for aside in kept.set_aside)
    left = [place for place in range(40) if place not in (4, 5)]
    assert kept.records == tuple(whole.records[place] for place in left)  # the same splits
    if fault != "large":
        assert np.array_equal(kept.load_images(kept.image_of), whole.load_images(whole.image_of[left]))


def test_a_missing_image_is_found_at_once_and_a_broken_one_at_its_use(tmp_path):
    records = _records(split=["train", "val", "test"] * 2)
    root = _write(tmp_path, records=records)
    settings = _settings(root, **{"data.check_images": "on_use"})
    bad = root / records[4].image
    bad.write_bytes(bad.read_bytes()[:60])
    dataset = load_vqa_dataset(settings)
    assert "10002" not in refuse("image of record 'record 4': cannot be decoded", dataset.load_images, [2])
    bad.unlink()
    assert "10002" not in refuse(r"image of record 'record 4': .*does not exist", load_vqa_dataset, settings)


@pytest.mark.parametrize("edge", [15, 30, 60, 63])
def test_a_box_that_rounding_would_close_stays_open(edge):
    left = float(np.nextafter(edge, 0))
    assert left * 48 / 78 == edge * 48 / 78
    record = make_record(image_size=(78, 78), references=(Box("line", (left, 0, edge, 5)),))
    record = msgspec.structs.replace(record, points=(Point("end", (39.0, 78.0)),))
    assert scale_record(record, (48, 48)).points == (Point("end", (24.0, 48.0)),)
    (reference,) = scale_record(record, (48, 48)).references
    assert reference.corners[0] < reference.corners[2] == edge * 48 / 78


@hypothesis.given(record=records(), side=st.integers(1, 512))
def test_scaled_records_are_valid_and_their_boxes_keep_their_shares(record, side):
    scaled = scale_record(record, (side, side))
    width, height = record.image_size
    for new, old in zip(scaled.references, record.references, strict=True):
        assert np.divide(new.corners, side) == pytest.approx(np.divide(old.corners, [width, height] * 2), abs=1e-5)
    assert scale_record(scaled, (side, side)) is scaled
