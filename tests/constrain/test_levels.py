import pytest
from refusals import refuse

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.reasoning.levels import VARIANTS, make_dialogue
from stepcot_jax.tools.constrain import command
from stepcot_jax.tools.constrain.levels import choose_levels

TRUTH = (1, 0, 2, 3, 1, NOT_ANNOTATED, 4)
OWN = {0: 3, 2: 1, 4: 0}


def test_each_variant_asks_its_steps_and_gives_the_known_earlier_ones():
    assert command._VARIANTS == VARIANTS
    for level in range(8):
        dialogue = make_dialogue(("constraints", level), answers=OWN, truth=TRUTH)
        assert (dialogue.asked, dialogue.given) == (tuple(range(level)), ())
        assert dialogue.fields == (*(f"step_{number}" for number in range(1, level + 1)), "diagnosis")
    true = make_dialogue(("true", 7), answers=OWN, truth=TRUTH)
    assert (true.asked, true.given) == ((6,), ((0, 1), (1, 0), (2, 2), (3, 3), (4, 1)))
    own = make_dialogue(("own", 4), answers=OWN, truth=TRUTH)
    assert (own.asked, own.given) == ((3,), ((0, 3), (2, 1)))


@pytest.mark.parametrize("text", ["8", "-1", "1,,2", "1000000", "²"])
def test_levels_that_are_none(text):
    refuse(r"--levels: .* is not a list of levels from 0 to 7", choose_levels, text, 7)
