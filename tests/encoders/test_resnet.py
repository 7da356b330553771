import math

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
    cells = [cell for rows in np.split(hidden, 2, axis=1) for cell in np.split(rows, 2, axis=2)]
    return np.concatenate([cell.mean(axis=(1, 2)) for cell in cells], axis=1)


@pytest.mark.parametrize("images", [IMAGES, IMAGES[:, :, :16]], ids=["convolved", "maps of 2 x 2 as one product"])
def test_network_agrees_with_the_oracle(encode, images):
    found = encode(images)
    assert found.shape == (3, 2 * 2 * 8)
    assert found.dtype == np.float32
    assert_close(found, expect(images))


def test_features_of_a_case_do_not_depend_on_its_batch(encode):
    others = IMAGES.copy()
    others[1:] = 7 * normal(2, 2, 16, 32, 3) + 3
    found, plain = encode(others), encode(IMAGES)
    assert_close(found[0], plain[0], 0)
    assert np.abs(np.asarray(found - plain)[1:]).max() > 1e-2
    assert_close(encode(IMAGES[::-1]), plain[::-1], 0)


@pytest.mark.parametrize(
    ("name", "side", "features", "parameters"),
    [("resnet18", 224, 512, 11_176_512), ("resnet_small", 128, 512, 308_304)],
)
def test_published_networks_have_their_sizes(name, side, features, parameters):
    network, images = make_resnet(name), jax.ShapeDtypeStruct((2, side, side, 3), np.float32)
    shapes = jax.eval_shape(lambda images: network.init(jax.random.key(0), images)["params"], images)
    found = jax.eval_shape(lambda params, images: network.apply({"params": params}, images), shapes, images)
    assert found.shape == (2, features)
    assert found.dtype == np.float32
    assert count_parameters(shapes) == parameters
    with pytest.raises(ValueError, match="'resnet50' is not one of 'resnet18', 'resnet_small'"):
        make_resnet("resnet50")


@pytest.mark.parametrize(("height", "width", "grid"), [(4, 8, 1), (4, 8, 4), (3, 1, 2)])
def test_cells_are_averages_in_reading_order_and_overlap_where_the_grid_does_not_divide(height, width, grid):
    hidden = normal(3, 2, height, width, 3)
    found = np.asarray(average_cells(jnp.asarray(hidden), grid)).reshape(2, grid, grid, 3)
    for row, column in np.ndindex(grid, grid):
        rows = slice(math.floor(row * height / grid), math.ceil((row + 1) * height / grid))
        columns = slice(math.floor(column * width / grid), math.ceil((column + 1) * width / grid))
        assert_close(found[:, row, column], hidden[:, rows, columns].mean(axis=(1, 2)), 1e-6)
