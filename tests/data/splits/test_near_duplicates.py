import io
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refuse
from scipy.fft import dctn
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from stepcot_jax.data.images.preprocessing import decode_image
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.data.splits import near_duplicates
from stepcot_jax.data.splits.near_duplicates import find_near_duplicates, perceptual_hash

RADIUS = 4


def distance(one, other):
    return int(one ^ other).bit_count()


def copies(pixels):
    """What happens to radiographs between one collection and another."""
    image = Image.fromarray(pixels).convert("L")
    for quality in (90, 50):
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=quality)
        yield np.asarray(Image.open(stream))
    for size in ((224, 224), (128, 128), (image.width * 3, image.height * 3)):
        yield np.asarray(image.resize(size, Image.Resampling.BICUBIC))
    yield np.clip(np.asarray(image).astype(int) + 10, 0, 255).astype(np.uint8)
    yield (np.asarray(image) * 0.9).astype(np.uint8)


def test_the_hash_is_the_signs_of_the_cosine_transform():
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8)
    coefficients = dctn(pixels.astype(float), norm="ortho")[1:9, 1:9].ravel()
    bits = "".join("1" if value > np.median(coefficients) else "0" for value in coefficients)
    assert (int(perceptual_hash(pixels)), perceptual_hash(pixels).dtype) == (int(bits, 2), np.uint64)
    assert perceptual_hash(np.full((300, 7, 3), 200, np.uint8)) == 0


def test_copies_are_near_and_other_findings_are_not():
    for index in range(6):
        pixels = draw_case(index, seed=0, size=256).image
        assert all(distance(perceptual_hash(pixels), perceptual_hash(copy)) <= RADIUS for copy in copies(pixels))
        assert distance(perceptual_hash(pixels), perceptual_hash(pixels[:, ::-1])) > RADIUS


def test_real_radiographs_of_different_patients_are_farther_apart_than_copies(shared):
    paths = sorted((shared / "data" / "nih_sample" / "images").iterdir())
    pixels = [decode_image(path) for path in paths]
    hashes = np.array([perceptual_hash(each) for each in pixels])
    assert len(find_near_duplicates(hashes, radius=7)) == 0
    assert len(find_near_duplicates(hashes, radius=8)) > 0
    for each, hashed in zip(pixels[::60], hashes[::60], strict=True):
        assert all(distance(hashed, perceptual_hash(copy)) <= RADIUS for copy in copies(each))


def components(num, pairs):
    rows, columns = np.asarray(pairs, int).reshape(-1, 2).T
    return connected_components(coo_array((np.ones(len(rows)), (rows, columns)), shape=(num, num)), directed=False)[1]


def draw_hashes(rng, num):
    """Hashes with many near others: some bits of a few are flipped."""
    centres = rng.integers(0, 2**64, max(1, num // 4), np.uint64)
    hashes = centres[rng.integers(0, len(centres), num)]
    for _ in range(8):
        flipped = rng.random(num) < 0.5
        hashes = np.where(flipped, hashes ^ (np.uint64(1) << rng.integers(0, 64, num, np.uint64)), hashes)
    return hashes


@given(st.integers(0, 2**32), st.integers(0, 80), st.integers(0, 16))
def test_all_near_pairs_are_found(seed, num, radius):
    hashes = draw_hashes(np.random.default_rng(seed), num)
    expected = [
        (one, other)
        for one, other in itertools.combinations(range(num), 2)
        if distance(hashes[one], hashes[other]) <= radius
    ]
    found = find_near_duplicates(hashes, radius=radius)
    assert set(map(tuple, found.tolist())) <= set(expected)
    np.testing.assert_array_equal(components(num, found), components(num, expected))
    if len(set(hashes.tolist())) == num:
        assert list(map(tuple, found.tolist())) == expected


@pytest.mark.parametrize(("radius", "most"), [(1, 20), (2, 13), (4, 9), (8, 11)])
@pytest.mark.parametrize("num_bands", [1, 2, 3, 5, 6, 8, 9, 11, 13, 20])
def test_any_number_of_bands_finds_the_same(monkeypatch, radius, most, num_bands):
    hashes = np.unique(draw_hashes(np.random.default_rng(2), 60))
    apart = np.bitwise_count(hashes[:, None] ^ hashes)
    monkeypatch.setattr(near_duplicates, "_choose_num_bands", lambda *_, **__: min(max(num_bands, radius), most))
    np.testing.assert_array_equal(
        find_near_duplicates(hashes, radius=radius), np.argwhere(np.triu(apart <= radius, k=1))
    )


def test_equal_images_are_joined_without_all_their_pairs_and_all_images_are_not(monkeypatch):
    pairs = find_near_duplicates(np.zeros(100_000, np.uint64), radius=4)
    np.testing.assert_array_equal(pairs, np.stack([np.zeros(99_999, int), np.arange(1, 100_000)], axis=1))
    monkeypatch.setattr(near_duplicates, "MAX_PAIRS", 50 * 49 // 2)
    hashes = np.uint64(1) << np.arange(50, dtype=np.uint64)
    assert len(find_near_duplicates(hashes, radius=2)) == 50 * 49 // 2
    monkeypatch.setattr(near_duplicates, "MAX_PAIRS", 100)
    refuse("2 gives more than 100 pairs of 50 images", find_near_duplicates, hashes, radius=2)
