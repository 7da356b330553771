import numpy as np
import pytest

from stepcot_jax.chain import Chain, Step
from stepcot_jax.encoders.prompts import hash_prompts, write_prompts
from stepcot_jax.host.errors import BadInput

QUESTIONS = [f"Question {letter}?" for letter in "ABCDEFg"]
PINNED = [[0.1546, -1.188814, 1.292558, -1.437743], [-0.946393, -0.491607, 1.655869, 0.153881]]
CHAIN = Chain((Step("Size", "How large?", ("Small", "Large")), Step("Side", "Which side?", ("Left", "Right", "N/A"))))


@pytest.mark.parametrize(
    ("template", "prompts"),
    [
        ("{question}", ("How large?", "Which side?")),
        ("{name}: [{options}]", ("Size: [A. Small; B. Large]", "Side: [A. Left; B. Right; N/A]")),
        ("{{{name}}}", ("{Size}", "{Side}")),
    ],
)
def test_fields_are_filled_in(template, prompts):
    assert write_prompts(CHAIN, template) == prompts


def test_other_fields_none_and_texts_that_are_no_format_are_refused():
    fields = ("{answer}", "{question} {answer}", "{}", "{0}", "{question.x}", "no field", "", "{{}}")
    formats = ("{question", "question}", "{question:d}", "{question!z}", "{question:{width}}")
    for template in (*fields, *formats):
        with pytest.raises(BadInput, match=r"fields among \{name\}, \{question\}, \{options\}") as caught:
            write_prompts(CHAIN, template)
        assert str(caught.value).startswith(f"config.prompts.template: {template!r}")


def test_vectors_are_pinned_normalised_unrelated_and_functions_of_their_texts_alone():
    found = hash_prompts(["Is there an abnormality?", "What is the diagnosis?"], 768)
    np.testing.assert_allclose(found[:, :4], PINNED, atol=1e-6)
    found = hash_prompts(QUESTIONS, 768)
    assert (found.shape, found.dtype) == ((len(QUESTIONS), 768), np.float32)
    np.testing.assert_allclose(found.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(found.var(axis=1), 1, atol=1e-5)
    assert np.abs(found @ found.T / 768 - np.eye(len(QUESTIONS))).max() < 0.2
    np.testing.assert_array_equal(hash_prompts([QUESTIONS[2]], 768)[0], found[2])
    assert np.isfinite(hash_prompts(["", "Qu'est-ce que c'est ? é中"], 8)).all()
