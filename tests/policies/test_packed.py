"""Texts packed in one row score as they do alone."""

import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import assert_close
from policies.test_rollouts import CASES, IMAGES, MODEL, PROMPT, WORDS, params

pytestmark = pytest.mark.slow


def test_a_packed_text_scores_as_it_does_alone():
    rng = np.random.default_rng(3)
    texts = [[rng.integers(0, WORDS, length) for length in (3, 5)] for _ in range(CASES)]
    rows = {name: np.zeros((CASES, 10), np.int32) for name in ("tokens", "segments", "places")}
    for case, pair in enumerate(texts):
        start = 0
        for segment, text in enumerate(pair, start=1):
            part = slice(start, start + len(text))
            rows["tokens"][case, part], rows["segments"][case, part] = text, segment
            rows["places"][case, part] = np.arange(len(text))
            start += len(text)
    variables = {"params": params()}
    packed = MODEL.apply(variables, jnp.asarray(IMAGES), *map(jnp.asarray, rows.values()), method="score_packed")
    for case, pair in enumerate(texts):
        start = 0
        for text in pair:
            prompts = np.zeros((1, PROMPT), np.int32)
            prompts[0, 0] = text[0]
            alone = MODEL.apply(
                variables,
                jnp.asarray(IMAGES[case : case + 1]),
                jnp.asarray(prompts),
                jnp.ones(1, jnp.int32),
                jnp.asarray(text[None, 1:]),
            )
            assert_close(packed[case, start : start + len(text) - 1], alone[0], 1e-5)
            start += len(text)
    spoiled = {**rows, "tokens": np.where(rows["segments"] == 0, WORDS - 1, rows["tokens"])}
    other = MODEL.apply(variables, jnp.asarray(IMAGES), *map(jnp.asarray, spoiled.values()), method="score_packed")
    for part in (packed, other):
        assert np.isfinite(part).all()
    real = rows["segments"] > 0
    np.testing.assert_array_equal(np.asarray(packed)[real], np.asarray(other)[real])
