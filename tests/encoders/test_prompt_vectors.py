"""Deterministic prompt vectors."""

import numpy as np
import pytest

from stepcot_jax.encoders.prompt_vectors import encode_prompts

QUESTIONS = [f"Question {letter}?" for letter in "ABCDEFG"]
PINNED = [[0.1546, -1.188814, 1.292558, -1.437743], [-0.946393, -0.491607, 1.655869, 0.153881]]


def test_vectors_are_pinned():
    found = encode_prompts(["Is there an abnormality?", "What is the diagnosis?"], 768)
    np.testing.assert_allclose(found[:, :4], PINNED, atol=1e-6)


def test_vectors_have_mean_zero_and_variance_one():
    found = encode_prompts(QUESTIONS, 64)
    assert found.shape == (len(QUESTIONS), 64)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(found.var(axis=1), 1, atol=1e-5)


def test_vectors_of_other_prompts_are_unrelated():
    found = encode_prompts(QUESTIONS, 768)
    correlation = found @ found.T / 768
    assert np.abs(correlation - np.eye(len(QUESTIONS))).max() < 0.2


def test_a_vector_is_a_function_of_its_text_alone():
    alone = encode_prompts([QUESTIONS[2]], 32)[0]
    assert (encode_prompts(QUESTIONS, 32)[2] == alone).all()
    twice = encode_prompts(["same", "same", "Same"], 32)
    assert (twice[0] == twice[1]).all()
    assert (twice[0] != twice[2]).any()


@pytest.mark.parametrize("prompt", ["", "Qu'est-ce que c'est ? é中"])
def test_any_text_has_a_finite_vector(prompt):
    assert np.isfinite(encode_prompts([prompt], 8)).all()
