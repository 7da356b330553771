"""Encoders of Table 11 with random weights: their known sizes, and multiply-adds counted by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stepcot_jax.encoders.load import count_parameters
from stepcot_jax.tools.tables import cost_table
from stepcot_jax.tools.tables.cost_table import count_multiply_adds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters", "billions"),
    [
        # torchvision's counts, less the classifier to 1,000 classes; its multiply-adds, of CLIP those of its ViT-B/32.
        ("ResNet18", 11_689_512 - 513_000, 1.81),
        ("ResNet50", 25_557_032 - 2_049_000, 4.09),
        ("DenseNet121", 7_978_856 - 1_025_000, 2.83),
        ("CLIP", 151_277_313, 4.41),
    ],
)
def test_reference_encoders_have_the_known_sizes(name, parameters, billions):
    architecture = cost_table.recognise_reference(name)
    shapes = architecture.shapes()
    assert count_parameters(shapes) == parameters
    inputs_of = jax.ShapeDtypeStruct((1, 224, 224, 3), np.float32)
    encode = lambda params, images: architecture.image.apply({"params": params}, images)[0]  # noqa: E731
    assert count_multiply_adds(encode, shapes["image"], inputs_of) / 1e9 == pytest.approx(billions, abs=0.006)


@pytest.mark.slow
def test_a_reference_encoder_runs():
    reference = cost_table.make_reference("ResNet18")
    images = np.random.default_rng(0).standard_normal((2, 64, 64, 3)).astype(np.float32)
    features = np.asarray(reference.run(images))
    assert features.shape == (2, 512)
    assert np.abs(features[0] - features[1]).max() > 0
    assert reference.num_parameters == 11_176_512


def test_multiply_adds_leave_out_what_nothing_uses_and_count_loops_as_often_as_they_run():
    def function(x):
        _ = x @ jnp.ones((5, 1000))
        kept, _ = jax.jit(lambda x: (x @ jnp.ones((5, 5)), x @ jnp.ones((5, 500))))(x)
        kept, each = jax.lax.scan(lambda carry, row: (carry @ jnp.ones((5, 5)), row), kept, jnp.zeros((7, 2)))
        return kept, each

    assert count_multiply_adds(function, jax.ShapeDtypeStruct((3, 5), np.float32)) == 3 * 5 * 5 * (1 + 7)
    images, kernel = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2, 8, 8, 4), (3, 3, 2, 6)))
    grouped = functools.partial(
        jax.lax.conv_general_dilated, window_strides=(2, 2), padding="SAME", feature_group_count=2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
    assert count_multiply_adds(grouped, images, kernel) == 2 * 4 * 4 * 6 * (3 * 3 * 2)
