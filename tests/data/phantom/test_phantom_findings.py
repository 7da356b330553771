"""Every box of a phantom lies where its answers say: on the side, in the zone, over the mask.

Tolerances, each of what the drawing allows:

- Fluid, air and confined lesions end where the lung ends, so their boxes lie in the box of the lung that they are drawn
  into, widened by the blur's margin: no further tolerance.
- Other lesions (hilar, pleural, lymph nodes) are centred on their side: within one pixel of the midline.
- A lesion's centre lies in the third of its lung's box that step 4 names, up to 0.12 of the box's height: lesions are
  placed in shares of the distance from apex to dome (0.72 to 0.86 for the lower zone), and the lung's box reaches 1.09
  to 1.22 times as far (0.72 / 1.22 is 0.077 above the third); a rotation of 0.07 rad adds at most 0.04.
- The box of a large heart holds the heart mask up to a pixel. It exceeds it by at most 0.12 of the picture: half of the
  edge's ramp (0.06 of at least 1.76) and the rotation of its box (0.07 of 0.5). Below it may be 0.3: the mask ends at
  the diaphragm, which volume loss may lift to 0.24, and the ellipse at 0.8 of a picture of 1.76 to 2.2.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom import findings as phantom_findings
from stepcot_jax.data.phantom import phantom
from stepcot_jax.data.phantom.anatomy import Frame, render_anatomy
from stepcot_jax.data.phantom.findings import Air

SPREAD = ("Pneumonia", "Infiltration", "Pneumothorax")
THIRDS = {"Upper lung zone": 0, "Middle lung zone": 1, "Lower lung zone": 2}


def _limits(mask):
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])


def _draw(index, seed, size):
    shot = phantom.plan_case(index, seed=seed, prevalence="flat")
    drawn = phantom.draw_planned(shot, size=size)
    frame = Frame.of(shot.pose, size)
    answers = [step.options[label] for step, label in zip(DEFAULT_CHAIN.steps, drawn.case.answers, strict=True)]
    return shot, drawn, frame, render_anatomy(shot.scene.anatomy, frame), answers


def _holds(outer, inner, by=0.0):
    return bool((inner[:2] >= outer[:2] - by).all() and (inner[2:] <= outer[2:] + by).all())


@pytest.mark.slow
@settings(max_examples=80)
@given(index=st.integers(0, 10_000), seed=st.integers(0, 60), size=st.sampled_from([64, 128]))
def test_every_box_lies_where_the_answers_say(index, seed, size):
    shot, drawn, frame, chest, answers = _draw(index, seed, size)
    _, distribution, _, location, _, secondary, diagnosis = answers
    margin = round(1.2 * shot.style.blur * size)
    for mark in drawn.marks:
        corners = np.array([mark.box.x1, mark.box.y1, mark.box.x2, mark.box.y2])
        centre = (corners[:2] + corners[2:]) / 2
        assert mark.box.label in {diagnosis, secondary, "Emphysema"}
        if mark.side == 0:
            _check_middle(mark, corners, drawn, size)
            continue
        if mark.box.label not in ("Emphysema", "Lymphadenopathy"):
            assert mark.side in {"right": {-1}, "left": {1}, "bilateral": {-1, 1}}[drawn.side]
        assert (frame.x[int(centre[1]), int(centre[0])] - shot.scene.anatomy.midline) * mark.side > -frame.pixel
        is_lesion = mark.kind == "focus" and mark.box.label == diagnosis
        peripheral = location in ("Hilar/Mediastinal", "Pleura/Chest wall") and diagnosis not in SPREAD
        lung = _limits(chest.lungs[mark.side] > 0.5)
        if mark.kind in ("fluid", "air"):
            assert _holds(_limits(chest.lungs[mark.side] > 0), corners, margin)
        elif mark.box.label == "Emphysema" or (is_lesion and not peripheral):
            assert _holds(_limits(chest.overlaid[mark.side] > 0), corners, margin)
        if mark.box.label == diagnosis and location in THIRDS and diagnosis != "Effusion":
            third = lung[1] + (lung[3] - lung[1]) * (THIRDS[location] + np.array([0, 1])) / 3
            if mark.kind == "air":
                assert corners[1] < third[1]
                assert corners[3] > third[0]
            else:
                by = 0.12 * (lung[3] - lung[1])
                assert third[0] - by <= centre[1] <= third[1] + by
        if is_lesion and location == "Pleura/Chest wall" and diagnosis in ("Nodule", "Mass"):
            inside = (chest.overlaid[mark.side] > 0.5)[corners[1] : corners[3], corners[0] : corners[2]]
            assert inside.any()
            assert not inside.all()
        if is_lesion and location == "Hilar/Mediastinal" and distribution != "Diffuse":
            hilum = np.array(frame.to_pixels(shot.scene.anatomy.midline + mark.side * 0.195, -0.01))
            assert np.abs(centre - hilum).max() < 0.15 / frame.pixel + 1  # planned within 0.035 and 0.09, then confined
        if mark.box.label == "Volume loss":
            assert corners[1] < lung[3] < corners[3]


def _check_middle(mark, corners, drawn, size):
    heart = _limits(drawn.heart_mask)
    if mark.kind == "focus":  # a calcified valve
        assert _holds(heart, corners, 1)
    else:
        assert mark.box.label in ("Cardiomegaly", "Mediastinal shift")
        assert _holds(corners, heart, 1)
    if mark.box.label == "Cardiomegaly":
        assert _holds(heart, corners, np.array([0.12, 0.3]) * size)


def test_air_on_one_side_leaves_the_other_lung_as_it_is():
    size = 64
    planned = [phantom.plan_case(index, seed=0, prevalence="flat") for index in range(200)]
    sides = [{layer.side for layer in shot.scene.pleural if isinstance(layer, Air)} for shot in planned]
    found = [(shot, own) for shot, own in zip(planned, sides, strict=True) if len(own) == 1]
    assert len(found) > 15
    for shot, (side,) in found:
        frame = Frame.of(shot.pose, size)
        chest = render_anatomy(shot.scene.anatomy, frame)
        for layer in shot.scene.pleural:
            if isinstance(layer, Air):
                change = phantom_findings._air(layer, chest, frame)
                assert not change[chest.lungs[-side] > 0].any()
                assert change[chest.lungs[side] > 0].any()
        drawn = phantom.draw_planned(shot, size=size)
        other = _limits(chest.lungs[-side] > 0.5)
        for mark in drawn.marks:
            if mark.kind == "air":
                assert mark.box.x2 <= other[0] + 2 if side < 0 else mark.box.x1 >= other[2] - 2
