import itertools

import numpy as np
from matplotlib.text import Text

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.host.text import plain_text_style
from stepcot_jax.reading.explain import GRID, Claim
from stepcot_jax.reading.readings import ChainReading, StepAnswer
from stepcot_jax.tools.explain.drawing import draw_explanation


def test_texts_of_an_explanation_do_not_run_into_each_other():
    """With the longest answers, and claims as long as they get."""
    answers = []
    for step in DEFAULT_CHAIN.steps:
        label = max(range(len(step.options)), key=lambda label: len(step.options[label]))
        probabilities = np.eye(len(step.options))[label].tolist()
        answers.append(StepAnswer(step, label, tuple(probabilities), (), None))
    reading = ChainReading("chest.png", "student, joint reading", True, None, tuple(answers))
    maps = np.random.default_rng(0).random((7, GRID, GRID))
    maps /= maps.sum(axis=(1, 2), keepdims=True)
    picture = np.zeros((64, 64, 3), np.uint8)
    with plain_text_style():
        figure = draw_explanation(picture, maps, reading, [Claim(0.999, 0.999, 0.999, 0.999)] * 7, note="A note")
        figure.set_dpi(130)
        figure.draw_without_rendering()
        # Ticks beyond an axis are not drawn.
        texts = [text for text in figure.findobj(Text) if len(text.get_text()) > 4]
        boxes = [text.get_window_extent() for text in texts]
    assert sum("brightest tenth blurred" in text.get_text() for text in texts) == 7
    for one, other in itertools.combinations(range(len(texts)), 2):
        assert not boxes[one].overlaps(boxes[other]), (texts[one].get_text(), texts[other].get_text())
    assert min(box.x0 for box in boxes) > 0
    assert max(box.x1 for box in boxes) < figure.bbox.width
    title = figure.get_suptitle().splitlines()
    assert title[1:] == ["Bright: without this part the answer loses most", "A note"]
