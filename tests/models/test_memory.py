import jax.numpy as jnp
import numpy as np
import pytest
from oracles import reference_numpy as oracle
from oracles.random_params import assert_close, declare, normal, randomise

from stepcot_jax.models.layers import MemoryCell

CASES, WIDTH = 4, 6
X, H = normal(1, CASES, WIDTH), normal(2, CASES, WIDTH)
PARAMS = randomise(declare(MemoryCell(), conclusion=X, memory=H))


def run(params, x=X, h=H):
    return MemoryCell().apply({"params": params}, jnp.asarray(x), jnp.asarray(h))


def test_cell_agrees_with_the_oracle():
    assert_close(run(PARAMS), oracle.gru_cell(np.float64(X), np.float64(H), oracle.as_float64(PARAMS)))


def test_cell_agrees_with_torch():
    torch = pytest.importorskip("torch")
    cell = torch.nn.GRUCell(WIDTH, WIDTH)
    ours = {"weight_ih": "input", "weight_hh": "hidden", "bias_ih": "input", "bias_hh": "hidden"}
    with torch.no_grad():
        for name, part in ours.items():
            value = PARAMS[part]["kernel"].T if name.startswith("weight") else PARAMS[part]["bias"]
            getattr(cell, name).copy_(torch.tensor(np.asarray(value)))
        expected = cell(torch.tensor(X), torch.tensor(H)).numpy()
    assert_close(run(PARAMS), expected)
