"""The residual networks that are trained along."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import reference_numpy as oracle
from oracles.quick_jit import quick_jit
from oracles.random_params import assert_close, declare, normal, randomise

from stepcot_jax.encoders.resnet import ResNet, average_cells, make_resnet
from stepcot_jax.training.state import count_parameters

IMAGES = normal(1, 3, 16, 32, 3)
TINY = ResNet(widths=(4, 8), blocks_per_stage=1, stem_kernel=5, grid=2)
PARAMS = randomise(declare(TINY, images=IMAGES))


@pytest.fixture(scope="module")
def encode():
    return quick_jit(lambda images: TINY.apply({"params": PARAMS}, images))


def expect(images):
    params = oracle.as_float64(PARAMS)
    hidden = oracle.convolve(np.float64(images), params["Conv_0"]["kernel"], 2, 2)
    hidden = oracle.max_pool(oracle.relu(oracle.group_norm(hidden, params["stem_norm"], 1)))
    hidden = oracle.residual_block(hidden, params["stage_0_block_0"], 1, 1)
    hidden = oracle.residual_block(hidden, params["stage_1_block_0"], 2, 2)
    _, height, width, channels = hidden.shape
    cells = [
        hidden[:, y : y + height // 2, x : x + width // 2].reshape(len(images), -1, channels).mean(axis=1)
        for y in (0, height // 2)
        for x in (0, width // 2)
    ]
    return np.concatenate(cells, axis=1)


def test_network_agrees_with_the_oracle(encode):
    found = encode(IMAGES)
    assert found.shape == (3, 2 * 2 * 8)
    assert found.dtype == np.float32
    assert_close(found, expect(IMAGES))


def test_features_of_a_case_do_not_depend_on_its_batch(encode):
    others = IMAGES.copy()
    others[1:] = 7 * normal(2, 2, 16, 32, 3) + 3
    found, plain = encode(others), encode(IMAGES)
    assert_close(found[0], plain[0], 0)
    assert np.abs(np.asarray(found - plain)[1:]).max() > 1e-2
    assert_close(encode(IMAGES[::-1]), plain[::-1], 0)


@pytest.mark.parametrize(
    ("name", "side", "features", "parameters"),
    # torchvision's resnet18 without its classifier has 11,176,512 parameters.
    [("resnet18", 224, 512, 11_176_512), ("resnet_small", 128, 512, None)],
)
def test_published_networks_have_their_sizes(name, side, features, parameters):
    network, images = make_resnet(name), jax.ShapeDtypeStruct((2, side, side, 3), np.float32)
    shapes = jax.eval_shape(lambda images: network.init(jax.random.key(0), images)["params"], images)
    found = jax.eval_shape(lambda params, images: network.apply({"params": params}, images), shapes, images)
    assert found.shape == (2, features)
    assert found.dtype == np.float32
    if parameters is None:
        assert 250_000 < count_parameters(shapes) < 350_000
    else:
        assert count_parameters(shapes) == parameters


def test_unknown_name_is_refused():
    with pytest.raises(ValueError, match="'resnet50' is not one of 'resnet18', 'resnet_small'"):
        make_resnet("resnet50")


@pytest.mark.parametrize("grid", [1, 2, 4])
def test_cells_are_averages_in_reading_order(grid):
    hidden = normal(3, 2, 4, 8, 3)
    found = np.asarray(quick_jit(average_cells, static_argnums=1)(hidden, grid)).reshape(2, grid, grid, 3)
    for row in range(grid):
        for column in range(grid):
            rows, columns = (
                slice(row * 4 // grid, (row + 1) * 4 // grid),
                slice(column * 8 // grid, (column + 1) * 8 // grid),
            )
            assert_close(found[:, row, column], hidden[:, rows, columns].mean(axis=(1, 2)), 1e-6)


def test_cells_of_a_map_that_the_grid_does_not_divide_overlap():
    hidden = np.random.default_rng(0).standard_normal((2, 3, 1, 5)).astype(np.float32)
    found = np.asarray(average_cells(jnp.asarray(hidden), 2)).reshape(2, 2, 2, 5)
    for row, rows in enumerate((slice(0, 2), slice(1, 3))):
        for column in range(2):
            assert_close(found[:, row, column], hidden[:, rows].mean(axis=(1, 2)), 1e-6)
