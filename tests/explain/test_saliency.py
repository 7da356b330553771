import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refuse
from trained_workdir import SIDE, make_trained_workdir

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.encoders.torchvision_networks import FrozenDenseNet, FrozenResNet
from stepcot_jax.encoders.transformer import TransformerSizes, VisionTransformer
from stepcot_jax.reading import explain as tested
from stepcot_jax.reading.programs import Reader
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.systems.networks import init_params

VIT = VisionTransformer(TransformerSizes(8, 2, 2, 16, "quick_gelu", 1e-5, True), 32, 8, projected_width=6)
IMAGES = jnp.asarray(np.random.default_rng(0).standard_normal((2, SIDE, SIDE, 3)).astype(np.float32))


def random_params(network):
    """Random parameters from NumPy, because compiling the real init would dominate the time of these tests."""
    shapes = jax.eval_shape(network.init, jax.random.key(0), IMAGES)["params"]
    generator = np.random.default_rng(1)
    draw = lambda leaf: generator.normal(0.3, 0.3, leaf.shape) * (8 / max(leaf.shape[0], 8)) ** 0.5  # noqa: E731
    return jax.tree.map(lambda leaf: jnp.asarray(draw(leaf), jnp.float32), shapes)


def follow(network, params, read, images=IMAGES, least_rows=4, labels=None):
    labels = jnp.full((len(images), 2), -1, jnp.int32) if labels is None else labels
    choose = tested.choose_modules(network)
    tapped = tested.choose_taps(network, tested.find_values(network, params, images, choose), least_rows=least_rows)

    @jax.jit
    def run(params, images):
        found = tested.step_gradients(
            network=network, params=params, images=images, read=read, labels=labels, choose=choose, tapped=tapped
        )
        return found, tested.normalise_maps(jnp.moveaxis(tested.make_maps(network, *found[2:]), 0, 1))

    return run(params, jnp.asarray(images))


def read_two_steps(features):
    """Two steps of two answers; the steps' logits depend on different features."""
    first = jnp.stack([features[:, 0], features[:, 1]], axis=-1)
    second = jnp.stack([features[:, 2] * features[:, 3], features[:, 4]], axis=-1)
    return jnp.stack([first, second], axis=1), None


def test_the_map_points_at_the_only_patch_that_counts():
    """A transformer whose class token attends to patches by brightness and copies the result to feature 0."""
    network = VisionTransformer(TransformerSizes(8, 1, 1, 16, "quick_gelu", 1e-5, True), 32, 8, projected_width=6)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), random_params(network))
    kernel, block = params["patch_embedding"]["kernel"], params["blocks"]["layer_0"]
    kernel[:, 0], kernel[:, 1] = 1 / 192, -1 / 192  # brightness with both signs, so that LayerNorm preserves it
    for norm in (params["pre_norm"], params["post_norm"], block["attention_norm"]):
        norm["scale"][:] = 1.0
    block["attention"]["qkv"]["kernel"][0, 16] = 1.0  # the value is the normalized brightness
    block["attention"]["out"]["kernel"][0, 3] = params["projection"]["kernel"][3, 0] = 1.0
    params = jax.tree.map(jnp.asarray, params)
    for row, column in ((0, 0), (2, 3)):
        images = np.zeros((1, 32, 32, 3), np.float32)
        images[0, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 1.0
        (_, _, _, gradients), maps = follow(network, params, read_two_steps, images)
        assert maps[0, 0, row, column] > 0.999
        assert all(np.isfinite(gradient).all() for gradient in gradients.values())
        # Step 2 reads features that do not depend on the image: a uniform map.
        np.testing.assert_allclose(maps[0, 1], 1 / 16, rtol=1e-6)


NETWORKS = {
    "transformer": VIT,
    "resnet": FrozenResNet((1,), bottleneck=False, stem_width=8),
    "densenet": FrozenDenseNet((1,), growth=4, stem_width=8),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_finite_differences(name):
    network = NETWORKS[name]
    params = random_params(network)
    if name != "transformer":
        params = jax.tree.map(jnp.abs, params)  # far from the kinks of the ReLUs
    choose = tested.choose_modules(network)
    labels = jnp.zeros((2, 2), jnp.int32)
    shapes = tested.find_values(network, params, IMAGES, choose)
    tapped = tested.choose_taps(network, shapes, least_rows=1)
    ((logits, _), followed, values, gradients), maps = follow(
        network, params, read_two_steps, labels=labels, least_rows=1
    )
    assert set(gradients) == set(tapped)
    np.testing.assert_array_equal(followed, labels)
    np.testing.assert_allclose(maps.sum(axis=(2, 3)), 1, atol=1e-5)
    generator = np.random.default_rng(3)
    at = sorted(gradients)[-1]
    direction = jnp.asarray(generator.standard_normal(values[at].shape).astype(np.float32))

    @jax.jit
    def logits_at(amount):
        with nn.intercept_methods(tested.TappedModules(choose, {at: amount * direction})):
            return read_two_steps(tested.encode(network, params, IMAGES))[0]

    step = 2e-3 * float(np.abs(values[at]).mean())
    numeric = (logits_at(step) - logits_at(-step))[:, :, 0] / (2 * step)
    exact = jnp.einsum("sc...,c...->cs", gradients[at], direction)
    np.testing.assert_allclose(numeric, exact, rtol=0.03, atol=0.01 * float(np.abs(exact).max()))
    np.testing.assert_allclose(logits_at(0.0), logits, rtol=1e-5, atol=1e-5)


def test_transformer_maps_follow_the_rule_written_out():
    """An independent implementation of Chefer et al.: gradients by the attention weights, full matrices."""
    params = random_params(VIT)

    def features(weights, image):
        """The network with `weights` [block, head, token, token] added to its attention weights."""

        def norm(p, x):
            scaled = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
            return scaled * p["scale"][None] + p["bias"][None]

        def dense(p, x):
            return x @ p["kernel"] + p["bias"][None]

        def heads(x):
            return x.reshape(17, 2, 4).transpose(1, 0, 2)

        patches = image.reshape(4, 8, 4, 8, 3).transpose(0, 2, 1, 3, 4).reshape(16, -1)
        x = jnp.concatenate([params["class_token"][None], patches @ params["patch_embedding"]["kernel"]])
        x = norm(params["pre_norm"], x + params["positions"])
        kept = []
        for block in range(2):
            p = params["blocks"][f"layer_{block}"]
            q, k, v = jnp.split(dense(p["attention"]["qkv"], norm(p["attention_norm"], x)), 3, axis=-1)
            kept.append(jax.nn.softmax(heads(q) @ heads(k).transpose(0, 2, 1) / 2, axis=-1))
            mixed = ((kept[-1] + weights[block]) @ heads(v)).transpose(1, 0, 2).reshape(17, 8)
            x = x + dense(p["attention"]["out"], mixed)
            up = dense(p["up"], norm(p["mlp_norm"], x))
            x = x + dense(p["down"], up * jax.nn.sigmoid(1.702 * up))
        return norm(params["post_norm"], x[:1])[0] @ params["projection"]["kernel"], kept

    @jax.jit
    def differentiate(zeros, image):
        logits = (lambda f: f[0], lambda f: f[2] * f[3])
        gradients = [jax.grad(lambda w, logit=logit: logit(features(w, image)[0]))(zeros) for logit in logits]
        return features(zeros, image)[1], *gradients

    _, maps = follow(VIT, params, read_two_steps, labels=jnp.zeros((2, 2), jnp.int32))
    zeros = jnp.zeros((2, 2, 17, 17))
    for case, image in enumerate(IMAGES):
        attention, *gradients = differentiate(zeros, image)
        for step, gradient in enumerate(gradients):
            relevance = np.eye(17)
            for block in range(2):
                weights = np.maximum(np.asarray(gradient[block] * attention[block]), 0).mean(axis=0)
                relevance = relevance + weights @ relevance
            expected = relevance[0, 1:].reshape(4, 4)
            np.testing.assert_allclose(maps[case, step], expected / expected.sum(), atol=2e-4)


def test_the_last_map_that_is_fine_enough_is_taken():
    found = {
        name: jax.ShapeDtypeStruct((1, rows, rows, 4), np.float32) for name, rows in zip("abc", (8, 7, 4), strict=True)
    }
    network = NETWORKS["resnet"]
    assert list(tested.choose_taps(network, found, least_rows=7)) == ["b"]
    assert list(tested.choose_taps(network, found, least_rows=9)) == ["a"]
    refuse("no known feature maps", tested.choose_taps, network, {}, least_rows=7, error=TypeError)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, small_encoder):
    folder = tmp_path_factory.mktemp("explain") / "run"
    make_trained_workdir(folder)
    return load_trained(folder)


@pytest.fixture(scope="module")
def teacher(trained):
    return tested.Explainer(trained, model="teacher", batch_size=2)


def test_an_explainer_reads_as_a_reader_does(trained, teacher):
    given = np.full((3, 7), -1)
    given[:, 0] = 3
    images = np.concatenate([IMAGES, IMAGES[:1]])
    explained = teacher.explain(images, given_answers=given, labels=given)
    expected = Reader(trained, model="teacher", batch_size=2).read(images, given)
    np.testing.assert_allclose(explained.reading.probabilities, expected.probabilities, atol=1e-5)
    np.testing.assert_allclose(explained.reading.attention, expected.attention, atol=1e-5)
    assert (explained.labels[:, 0] == 3).all()
    np.testing.assert_array_equal(explained.labels[:, 1:], expected.logits[:, 1:].argmax(axis=-1))
    np.testing.assert_allclose(explained.maps.sum(axis=(2, 3)), 1, atol=1e-5)
    np.testing.assert_allclose(explained.maps[0], explained.maps[2], atol=1e-6)
    assert (explained.maps >= 0).all()
    refuse("must be labels of shape", teacher.explain, images, given_answers=given[:2])
    others = teacher.explain(IMAGES, labels=np.full((2, 7), 1)).maps
    assert np.abs(others - teacher.explain(IMAGES, labels=np.full((2, 7), 0)).maps).max() > 1e-3

    class Foreign:
        name, width, preprocessing, digest = "x", 6, Preprocessing(32), ""

    refuse("runs in PyTorch", tested.Explainer, dataclasses.replace(trained, frozen_encoder=Foreign()), model="teacher")


def test_a_frozen_transformer_is_explained(trained):
    params = random_params(VIT)
    frozen = ImageEncoder(
        name="vit", width=6, digest="", num_parameters=0, network=VIT, read_params=lambda: params,
        preprocessing=Preprocessing(32),
    )  # fmt: skip
    networks = trained.networks.replace(image_encoder=None)
    batch = {"image_features": jax.ShapeDtypeStruct((1, 6), np.float32)}
    make = lambda batch: init_params(networks, key=jax.random.key(0), batch=batch, text_features=trained.text_features)  # noqa: E731
    shapes = jax.eval_shape(make, batch)
    generator = np.random.default_rng(2)
    random = jax.tree.map(lambda leaf: generator.standard_normal(leaf.shape).astype(np.float32), shapes)
    own = dataclasses.replace(trained, networks=networks, frozen_encoder=frozen, params={"student": random})
    explained = tested.Explainer(own, model="student", batch_size=2).explain(IMAGES)
    expected = Reader(own, model="student", batch_size=2).read(IMAGES)
    np.testing.assert_allclose(explained.reading.logits, expected.logits, rtol=1e-5, atol=1e-5)
    assert explained.maps.shape == (2, 7, 4, 4)
