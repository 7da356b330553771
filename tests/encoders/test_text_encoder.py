"""Prompts from templates, and hashed prompt vectors."""

import numpy as np
import pytest

from stepcot_jax.chain import Chain, Step
from stepcot_jax.encoders.text_encoder import hash_prompts, write_prompts
from stepcot_jax.host.errors import BadInput

QUESTIONS = [f"Question {letter}?" for letter in "ABCDEFG"]
PINNED = [[0.1546, -1.188814, 1.292558, -1.437743], [-0.946393, -0.491607, 1.655869, 0.153881]]
CHAIN = Chain((Step("Size", "How large?", ("Small", "Large")), Step("Side", "Which side?", ("Left", "Right", "N/A"))))


@pytest.mark.parametrize(
    ("template", "prompts"),
    [
        ("{question}", ("How large?", "Which side?")),
        (
            "{name}: {question} [{options}]",
            ("Size: How large? [A. Small; B. Large]", "Side: Which side? [A. Left; B. Right; N/A]"),
        ),
        ("{{{name}}}", ("{Size}", "{Side}")),
    ],
)
def test_fields_are_filled_in(template, prompts):
    assert write_prompts(CHAIN, template) == prompts


@pytest.mark.parametrize(
    "template", ["{answer}", "{question} {answer}", "{}", "{0}", "{question.x}", "no field", "", "{{}}"]
)
def test_other_fields_or_none_are_refused(template):
    with pytest.raises(BadInput) as caught:
        write_prompts(CHAIN, template)
    message = str(caught.value)
    assert message.startswith("config.prompts.template: ")
    assert repr(template) in message
    assert "expected text with fields among {name}, {question}, {options}" in message


@pytest.mark.parametrize("template", ["{question", "question}", "{question:d}", "{question!z}", "{question:{width}}"])
def test_texts_that_are_no_format_are_refused(template):
    with pytest.raises(BadInput, match=r"config\.prompts\.template: "):
        write_prompts(CHAIN, template)


def test_vectors_are_pinned():
    found = hash_prompts(["Is there an abnormality?", "What is the diagnosis?"], 768)
    np.testing.assert_allclose(found[:, :4], PINNED, atol=1e-6)


def test_vectors_have_mean_zero_and_variance_one():
    found = hash_prompts(QUESTIONS, 64)
    assert found.shape == (len(QUESTIONS), 64)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(found.var(axis=1), 1, atol=1e-5)


def test_vectors_of_other_prompts_are_unrelated():
    found = hash_prompts(QUESTIONS, 768)
    correlation = found @ found.T / 768
    assert np.abs(correlation - np.eye(len(QUESTIONS))).max() < 0.2


def test_a_vector_is_a_function_of_its_text_alone():
    alone = hash_prompts([QUESTIONS[2]], 32)[0]
    assert (hash_prompts(QUESTIONS, 32)[2] == alone).all()
    twice = hash_prompts(["same", "same", "Same"], 32)
    assert (twice[0] == twice[1]).all()
    assert (twice[0] != twice[2]).any()


@pytest.mark.parametrize("prompt", ["", "Qu'est-ce que c'est ? é中"])
def test_any_text_has_a_finite_vector(prompt):
    assert np.isfinite(hash_prompts([prompt], 8)).all()
