import jax.numpy as jnp
import numpy as np
import pytest
from oracles.quick_jit import quick_jit
from oracles.random_params import declare, normal, randomise

from stepcot_jax.models.student import Baseline

COUNTS = (3, 2)
IMAGES, TEXT = normal(1, 4, 6), normal(2, 2, 5)
BASELINE = Baseline(answers_per_step=COUNTS, hidden=7)


def test_logits_are_those_of_the_equations():
    params = randomise(declare(BASELINE, image_features=IMAGES, text_features=TEXT))

    def apply(images, text):
        return BASELINE.apply({"params": params}, image_features=images, text_features=text)

    logits = np.asarray(quick_jit(apply)(IMAGES, TEXT))
    for case, image in enumerate(np.float64(IMAGES)):
        for step, num_answers in enumerate(COUNTS):
            pair = np.concatenate([image, np.float64(TEXT[step])])
            hidden = np.maximum(pair @ np.float64(params["hidden"]["kernel"]) + np.float64(params["hidden"]["bias"]), 0)
            head = params[f"head_{step}"]
            expected = hidden @ np.float64(head["kernel"]) + np.float64(head["bias"])
            np.testing.assert_allclose(logits[case, step, :num_answers], expected, rtol=2e-5, atol=2e-5)
    with pytest.raises(ValueError, match=r"must have shape \[2, width\]"):
        apply(jnp.asarray(IMAGES), jnp.asarray(TEXT[:1]))
