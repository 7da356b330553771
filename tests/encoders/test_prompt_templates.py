"""Writing the prompts that a text encoder reads."""

import pytest

from stepcot_jax.chain import Chain, Step
from stepcot_jax.encoders.prompts import write_prompts
from stepcot_jax.host.errors import BadInput

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
    assert "accepted are texts with fields of {name}, {question}, {options}" in message


@pytest.mark.parametrize("template", ["{question", "question}", "{question:d}", "{question!z}", "{question:{width}}"])
def test_texts_that_are_no_format_are_refused(template):
    with pytest.raises(BadInput, match=r"config\.prompts\.template: found"):
        write_prompts(CHAIN, template)
