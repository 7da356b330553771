"""The loss of direct preference optimisation against NumPy, its gradient, and shares of a batch."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from oracles.random_params import assert_close, normal, with_arrays

from stepcot_jax.losses import preference as tested

dpo_loss = with_arrays(tested.dpo_loss)
NAMES = ("chosen", "rejected", "reference_chosen", "reference_rejected")
COUNTED = np.array([True, False, True, True, False])


def draw(seed=3):
    return {name: 3 * normal(seed + place, len(COUNTED)) - 9 for place, name in enumerate(NAMES)}


def oracle(given, counted, beta):
    """Pair by pair in float64."""
    losses, margins = [], []
    for pair in np.flatnonzero(counted):
        chosen, rejected, of_chosen, of_rejected = (float(given[name][pair]) for name in NAMES)
        margins.append(chosen - rejected - (of_chosen - of_rejected))
        losses.append(-np.log(1 / (1 + np.exp(-beta * margins[-1]))))
    return np.mean(losses), np.mean(margins), np.mean(np.array(margins) > 0)


@pytest.mark.parametrize("beta", [0.1, 2.0])
def test_the_loss_is_that_of_each_pair_and_what_does_not_count_may_be_nan(beta):
    given = draw()
    expected = oracle(given, COUNTED, beta)
    given = {name: np.where(COUNTED, values, np.nan) for name, values in given.items()}
    found = dpo_loss(**given, counted=COUNTED, beta=beta)
    for one, other in zip((found.total, found.margin, found.accuracy), expected, strict=True):
        assert_close(one, other, 1e-5)
    assert 0 < expected[2] < 1
    slopes = jax.grad(lambda chosen: tested.dpo_loss(**{**arrays(given), "chosen": chosen}, beta=beta).total)
    slope = slopes(jnp.asarray(given["chosen"], jnp.float32))
    assert np.isfinite(slope).all()
    assert (np.asarray(slope)[~COUNTED] == 0).all()
    assert (np.asarray(slope)[COUNTED] < 0).all()


def arrays(given, counted=COUNTED):
    return {name: jnp.asarray(values, jnp.float32) for name, values in given.items()} | {
        "counted": jnp.asarray(counted)
    }


def test_gradients():
    given = arrays(draw())

    def loss(chosen, rejected):
        return dpo_loss(**given | {"chosen": chosen, "rejected": rejected}, beta=0.5).total

    jax.test_util.check_grads(loss, (given["chosen"], given["rejected"]), order=1, modes=["rev"], rtol=1e-2)


def test_at_the_reference_the_loss_is_log_two_and_without_a_pair_nothing():
    given = draw()
    given |= {"reference_chosen": given["chosen"], "reference_rejected": given["rejected"]}
    assert_close(dpo_loss(**given, counted=COUNTED).total, np.log(2), 1e-6)
    none = dpo_loss(**given, counted=np.zeros_like(COUNTED))
    assert (float(none.total), float(none.margin)) == (0, 0)
