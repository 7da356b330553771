import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refuse
from trained_workdir import SIDE, make_trained_workdir

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.encoders.transformer import TransformerSizes, VisionTransformer
from stepcot_jax.reading.explain import (
    GRID,
    TENTH,
    Explainer,
    blur,
    normalise_maps,
    random_masks,
    replace_cells,
)
from stepcot_jax.reading.programs import Reader
from stepcot_jax.reading.radiographs import to_input
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.run.stored import NormalPicture, write_normal_picture
from stepcot_jax.systems.networks import init_params

IMAGES = np.random.default_rng(0).standard_normal((3, SIDE, SIDE, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, small_encoder):
    folder = tmp_path_factory.mktemp("explain") / "run"
    make_trained_workdir(folder)
    pixels = np.random.default_rng(1).integers(0, 255, (SIDE, SIDE, 3), np.uint8)
    write_normal_picture(folder / "normal_picture.npz", NormalPicture(pixels, 40))
    return load_trained(folder)


@pytest.mark.parametrize("size", [16, 32, 50, 64, 224])
def test_the_masked_cells_alone_are_replaced(size):
    image, filler = np.zeros((size, size, 3), np.float32), np.ones((size, size, 3), np.float32)
    masks = random_masks(5, num_cells=TENTH)
    shown = replace_cells(image, filler, masks)
    assert shown.dtype == np.float32
    for mask, copy in zip(masks, shown, strict=True):
        for row in range(size):
            cells = mask[int((row + 0.5) * GRID / size)]
            expected = [cells[int((column + 0.5) * GRID / size)] for column in range(size)]
            np.testing.assert_array_equal(copy[row, :, 0], expected)


def test_random_tenths_are_connected_tenths_and_always_the_same():
    from scipy import ndimage

    masks = random_masks(50, num_cells=TENTH)
    assert (masks.sum(axis=(1, 2)) == TENTH).all()
    np.testing.assert_array_equal(masks, random_masks.__wrapped__(50, num_cells=TENTH))
    assert np.mean([ndimage.label(mask)[1] for mask in masks]) < 6  # scattered cells would have twenty parts
    assert masks.mean(axis=0).max() < 0.4  # no cell is preferred


def test_a_map_without_any_fall_is_even():
    maps = normalise_maps(np.array([[[1.0, 3.0]], [[0.0, 0.0]]]))
    np.testing.assert_allclose(maps, [[[0.25, 0.75]], [[0.5, 0.5]]])


def test_a_blur_keeps_the_mean_and_no_detail():
    image = np.random.default_rng(0).standard_normal((64, 64, 3)).astype(np.float32)
    blurred = blur(image)
    np.testing.assert_allclose(blurred.mean(axis=(0, 1)), image.mean(axis=(0, 1)), atol=0.02)
    assert blurred.std() < 0.1 * image.std()
    assert np.abs(blurred[..., 0] - blurred[..., 1]).max() > 0.01  # channels stay apart


def explain_by_hand(trained, model, image, given, labels):
    """Maps and claims with a loop over windows and pixels, one picture read at a time."""
    reader = Reader(trained, model=model, batch_size=1)
    normal = to_input([trained.normal_picture.pixels], trained.preprocessing)[0]
    side = SIDE // GRID

    def read(picture):
        probabilities = reader.read(picture[None], given[None]).probabilities[0]
        return np.array([row[label] for row, label in zip(probabilities, labels, strict=True)])

    before, sums, counts = read(image), np.zeros((7, GRID, GRID)), np.zeros((GRID, GRID))
    for row in range(GRID - 2):
        for column in range(GRID - 2):
            changed = image.copy()
            window = slice(row * side, (row + 3) * side), slice(column * side, (column + 3) * side)
            changed[window] = normal[window]
            fall = np.log(before) - np.log(read(changed))
            sums[:, row : row + 3, column : column + 3] += fall[:, None, None]
            counts[row : row + 3, column : column + 3] += 1
    maps = np.maximum(sums / counts, 0)
    maps /= maps.sum(axis=(1, 2), keepdims=True)
    claims = []
    for step in range(7):
        brightest = np.sort(maps[step].ravel())[-TENTH]
        hidden = np.kron(maps[step] >= brightest, np.ones((side, side)))[..., None] > 0
        claims.append(read(np.where(hidden, blur(image), image))[step])
    return before, maps, claims


@pytest.mark.parametrize("model", ["student", "teacher"])
def test_maps_and_claims_are_those_of_a_loop_over_windows(trained, model):
    given = np.zeros((7, 9), np.float32)
    if model == "teacher":
        given[0, 3] = 1.0
    labels = np.array([3, -1, 0, -1, 1, -1, -1])
    explained = Explainer(trained, model=model).explain(IMAGES[:1], given_answers=given[None], labels=labels[None])
    expected = Reader(trained, model=model, batch_size=1).read(IMAGES[:1], given[None])
    np.testing.assert_allclose(explained.reading.logits, expected.logits, atol=1e-4)
    followed = np.where(labels >= 0, labels, expected.logits[0].argmax(axis=-1))
    np.testing.assert_array_equal(explained.labels[0], followed)
    before, maps, brightest = explain_by_hand(trained, model, IMAGES[0], given, followed)
    # A batch rounds otherwise than one picture: where an answer hardly depends on the picture its falls are as small.
    np.testing.assert_allclose(explained.maps[0], maps, atol=1e-3)
    correlations = [
        np.corrcoef(one.ravel(), other.ravel())[0, 1] for one, other in zip(explained.maps[0], maps, strict=True)
    ]
    assert min(correlations) > 0.999
    claims = explained.claims[0]
    np.testing.assert_allclose([claim.probability for claim in claims], before, atol=1e-4)
    np.testing.assert_allclose([claim.brightest for claim in claims], brightest, atol=1e-3)
    assert all(0 < claim.random < 1 for claim in claims)
    if model == "teacher":
        np.testing.assert_allclose(explained.reading.attention, expected.attention, atol=1e-4)


def test_each_case_is_explained_by_itself(trained):
    explainer = Explainer(trained, model="student")
    together = explainer.explain(IMAGES)
    alone = explainer.explain(IMAGES[2:])
    np.testing.assert_allclose(together.maps[2], alone.maps[0], atol=1e-6)
    assert all(claim.other is None for claim in alone.claims[0])
    assert tuple(dataclasses.replace(claim, other=None) for claim in together.claims[2]) == alone.claims[0]
    np.testing.assert_allclose(together.maps.sum(axis=(2, 3)), 1, atol=1e-5)
    assert together.maps.shape == (3, 7, GRID, GRID)
    assert explainer.explain(IMAGES, with_claims=False).claims == ()
    refuse("must be labels of shape", explainer.explain, IMAGES, given_answers=np.full((2, 7), -1))


def test_the_rival_of_a_claim_is_the_brightest_tenth_of_the_image_before(trained):
    explainer, none = Explainer(trained, model="student"), np.zeros((7, 9), np.float32)
    together = explainer.explain(IMAGES)
    follows = explainer.explain(IMAGES[:1], before=together.maps[2])
    for claims, case, before in ((together.claims[0], 0, 2), (together.claims[2], 2, 1), (follows.claims[0], 0, 2)):
        for step, claim in enumerate(claims):
            cells = np.argsort(-together.maps[before, step].ravel(), kind="stable")[:26]  # of 256
            mask = np.isin(np.arange(GRID * GRID), cells).reshape(1, GRID, GRID)
            read = explainer.read_replaced(IMAGES[case], mask, none, filler=blur(IMAGES[case]))
            assert claim.other == pytest.approx(read.probabilities[0, step, together.labels[case, step]], abs=1e-4)


def test_what_replaces_a_window_is_named(trained, tmp_path):
    explainer = Explainer(trained)
    assert explainer.filled_with == "the mean of 40 normal training pictures"
    image, everything = IMAGES[0], np.ones((1, GRID, GRID), bool)
    none = np.zeros((7, 9), np.float32)
    normal = to_input([trained.normal_picture.pixels], trained.preprocessing)
    replaced = explainer.read_replaced(image, everything, none)
    np.testing.assert_allclose(replaced.logits, explainer.reader.read(normal).logits, atol=1e-5)
    bare = Explainer(dataclasses.replace(trained, workdir=tmp_path))
    assert bare.filled_with.startswith("a blurred copy (the run stored no mean picture")
    blurred = bare.read_replaced(image, everything, none)
    np.testing.assert_allclose(blurred.logits, bare.reader.read(blur(image)[None]).logits, atol=1e-5)
    np.testing.assert_allclose(
        explainer.read_replaced(image, everything, none, filler=image).logits,
        explainer.reader.read(image[None]).logits,
        atol=1e-5,
    )


def test_a_frozen_transformer_and_a_foreign_encoder_are_explained(trained):
    network = VisionTransformer(TransformerSizes(8, 2, 2, 16, "quick_gelu", 1e-5, True), 32, 8, projected_width=6)
    shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, SIDE, SIDE, 3)))["params"]
    generator = np.random.default_rng(2)
    params = jax.tree.map(lambda leaf: generator.normal(0, 0.2, leaf.shape).astype(np.float32), shapes)
    frozen = ImageEncoder(
        name="vit", width=6, digest="", num_parameters=0, network=network, read_params=lambda: params,
        preprocessing=Preprocessing(32),
    )  # fmt: skip
    networks = trained.networks.replace(image_encoder=None)
    batch = {"image_features": jax.ShapeDtypeStruct((1, 6), np.float32)}
    make = lambda batch: init_params(networks, key=jax.random.key(0), batch=batch, text_features=trained.text_features)  # noqa: E731
    random = jax.tree.map(
        lambda leaf: generator.standard_normal(leaf.shape).astype(np.float32), jax.eval_shape(make, batch)
    )
    own = dataclasses.replace(trained, networks=networks, frozen_encoder=frozen, params={"student": random})

    class Foreign:  # as an encoder of another framework: features, and no gradients
        name, width, preprocessing, digest = "x", 6, Preprocessing(32), ""

        def encode(self, images):
            return np.asarray(network.apply({"params": params}, jnp.asarray(images))[0])

    maps = [
        Explainer(dataclasses.replace(own, frozen_encoder=encoder)).explain(IMAGES[:1]).maps
        for encoder in (frozen, Foreign())
    ]
    assert maps[0].std() > 0
    np.testing.assert_allclose(maps[0], maps[1], atol=1e-5)
