import numpy as np

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.demo.sessions import write_reading_view
from stepcot_jax.predict.answer_changes import Flip, Shift
from stepcot_jax.predict.answers import ChainReading, StepAnswer

PICTURE = np.full((32, 32, 3), 128, np.uint8)


def make_reading(given, flipped):
    steps = []
    for place, step in enumerate(DEFAULT_CHAIN.steps):
        shares = [0.0] * step.num_answers
        shares[1] = 1.0
        steps.append(StepAnswer(step, 1, tuple(shares), place == given, None))
    shifted = () if given is None else (Shift("Lesion distribution", 0.25), Shift("Diagnosis", 0.004))
    facts = {"source": "<image>", "model": "teacher", "calibrated": False, "coverage": None}
    return ChainReading(**facts, steps=tuple(steps), flipped=flipped, shifted=shifted)


def test_a_correction_shows_what_it_changed():
    maps = np.ones((7, 4, 4))
    plain = write_reading_view(PICTURE, maps=maps, reading=make_reading(None, ()))
    assert plain.count("<figure") == 8
    assert "correction" not in plain
    nothing = write_reading_view(PICTURE, maps=maps, reading=make_reading(0, ()))
    assert "The correction changed no other answer; largest change of a later probability: 25.0 points (" in nothing
    assert nothing.count('class="given"') == 1
    flipped = write_reading_view(
        PICTURE, maps=maps, reading=make_reading(0, (Flip("Diagnosis", "<Normal>", "Nodule"),))
    )
    assert "Changed by the correction: Diagnosis: &lt;Normal&gt; → Nodule." in flipped
    assert flipped.count('class="flipped"') == 1
    assert "was &lt;Normal&gt;" in flipped
