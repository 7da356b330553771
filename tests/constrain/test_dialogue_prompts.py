import json

import pytest
from refusals import refuse

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain, Step
from stepcot_jax.reasoning.levels import VARIANTS, make_dialogue
from stepcot_jax.tools.constrain import command
from stepcot_jax.tools.constrain.constraints import list_constraints
from stepcot_jax.tools.constrain.levels import PROMPT_VERSION, choose_levels, write_messages, write_prompt

TRUTH = (1, 0, 2, 3, 1, 5, 4)


def prompt_of(variant, level, *, own=(), chain=DEFAULT_CHAIN, truth=TRUTH, **how):
    dialogue = make_dialogue((variant, level), answers=dict(own), truth=truth)
    system, user = write_messages(chain, dialogue, **how)
    return system["content"], user["content"], dialogue


@pytest.mark.parametrize("level", range(8))
def test_a_level_shows_its_steps_and_no_later_one(level):
    _, text, _ = prompt_of("constraints", level)
    for position, step in enumerate(DEFAULT_CHAIN.steps[:-1]):
        assert (step.question in text, "; ".join(step.lettered_options) in text) == (position < level, position < level)
    assert text.count("; ".join(DEFAULT_CHAIN.steps[-1].lettered_options)) == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_shape_is_the_one_that_is_verified(variant):
    for level in (0, 1, 4, 7):
        _, text, dialogue = prompt_of(variant, level, own=enumerate(TRUTH))
        assert list(json.loads(text.rsplit("\n", 1)[1])) == list(dialogue.fields)
        kinds = {each.kind for each in list_constraints(DEFAULT_CHAIN, dialogue)}
        assert ("do not contradict" in text) == ("consistent" in kinds) == (level > 0)
        assert ("in this order" in text) == ("order" in kinds)


def test_given_answers_are_quoted_data_with_their_questions():
    _, text, _ = prompt_of("true", 3)
    start = text.index("{", text.index("as data:"))
    data, _ = json.JSONDecoder().raw_decode(text, start)
    first, second, third = DEFAULT_CHAIN.steps[:3]
    options = ["; ".join(step.lettered_options) for step in (first, second)]
    assert data == {
        "step_1": {"question": first.question, "options": options[0], "answer": "B. Increased opacity"},
        "step_2": {"question": second.question, "options": options[1], "answer": "A. Focal"},
    }
    assert "; ".join(third.lettered_options) in text[text.index("Step 3") : start]
    _, text, _ = prompt_of("own", 3, own={1: 0})
    data, _ = json.JSONDecoder().raw_decode(text, text.index("{", text.index("as data:")))
    assert ["answer" in each for each in data.values()] == [False, True]
    assert data["step_1"]["options"] == "; ".join(DEFAULT_CHAIN.steps[0].lettered_options)
    assert "as data:" not in prompt_of("own", 1)[1]
    steps = (Step("First", "Which?", ("Round [INST] one", "Flat")), Step("Diagnosis", "What?", ("Cat", "Dog")))
    _, text, _ = prompt_of("true", 2, chain=Chain(steps), truth=(0, 1))
    given = text[text.index("as data:") : text.index("The object above")]
    assert "[INST]" not in given
    assert "\\u005bINST\\u005d" in given


def test_an_open_diagnosis_lists_no_options_and_has_a_digest_of_its_own():
    listed = "; ".join(DEFAULT_CHAIN.steps[-1].lettered_options)
    for level in range(8):
        _, text, _ = prompt_of("constraints", level, lists_diagnoses=False)
        assert (listed in text) == (level == 7)
    prompt = write_prompt(DEFAULT_CHAIN)
    assert prompt.schema == {}
    other = Chain((Step("One", "Which?", ("a", "b")),))
    digests = {prompt.digest, write_prompt(DEFAULT_CHAIN, lists_diagnoses=False).digest, write_prompt(other).digest}
    assert (len(digests), prompt.version, write_prompt(DEFAULT_CHAIN).digest) == (3, PROMPT_VERSION, prompt.digest)


PARTLY = (1, 0, 2, 3, 1, NOT_ANNOTATED, 4)
OWN = {0: 3, 2: 1, 4: 0}


def test_each_variant_asks_its_steps_and_gives_the_known_earlier_ones():
    assert command._VARIANTS == VARIANTS
    for level in range(8):
        dialogue = make_dialogue(("constraints", level), answers=OWN, truth=PARTLY)
        assert (dialogue.asked, dialogue.given) == (tuple(range(level)), ())
        assert dialogue.fields == (*(f"step_{number}" for number in range(1, level + 1)), "diagnosis")
    true = make_dialogue(("true", 7), answers=OWN, truth=PARTLY)
    assert (true.asked, true.given) == ((6,), ((0, 1), (1, 0), (2, 2), (3, 3), (4, 1)))
    own = make_dialogue(("own", 4), answers=OWN, truth=PARTLY)
    assert (own.asked, own.given) == ((3,), ((0, 3), (2, 1)))


@pytest.mark.parametrize("text", ["8", "-1", "1,,2", "1000000", "²"])
def test_levels_that_are_none(text):
    refuse(r"--levels: .* is not a list of levels from 0 to 7", choose_levels, text, 7)
