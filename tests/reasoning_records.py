"""Reasoning records for tests: one of each kind by hand, and random ones."""

import string

import hypothesis.strategies as st

from stepcot_jax.box import GRID_1000, UNIT_SQUARE, Box
from stepcot_jax.data.sources.layouts import read_vqa_source
from stepcot_jax.record import Record, Stages

STAGES = Stages("The lower zone of the right lung.", "A hazy opacity.", "Haze over fluid.", "Fluid it is.")
SPACES = {"lvkc": GRID_1000, "medclm": UNIT_SQUARE}
WITHOUT_NAMES = ("gemex_plain", "lvkc_released")
ANSWERS = {"open": "Pleural effusion", "closed": "Yes", "single": "B", "multi": ("A", "C")}


def make_record(kind="closed", **changes):
    """A valid record with thinking, stages and one reference."""
    fields = {
        "id": "case-1",
        "image": "images/1.png",
        "image_size": (336, 336),
        "patient": "patient-1",
        "kind": kind,
        "question": "What is seen?",
        "options": ("Nodule", "Effusion", "Normal", "Mass") if kind in ("single", "multi") else (),
        "answer": ANSWERS[kind],
        "references": (Box("bilateral lung", (64, 42, 257, 262)),),
        "thinking": "I look at the **bilateral lung** ([64, 42, 257, 262]). It is hazy.",
        "stages": STAGES,
    }
    return Record(**fields | changes)


names = st.text(min_size=1, max_size=20).filter(
    lambda text: text.strip() and text.isprintable() and not set(text) & set("<>[](){}*\"'`|\\")
)
texts = st.one_of(
    st.text(min_size=1, max_size=60),
    st.text(alphabet="<>/[](){}*,.:;\"' \n019aesthinkANSWERboxrf", min_size=1, max_size=60),
).filter(str.strip)
words = texts.filter(lambda text: text.strip(" .").casefold() not in ("y", "n"))


@st.composite
def corners(draw, width, height):
    number = st.integers if draw(st.booleans()) else st.floats
    x1 = float(draw(number(0, width - 1)))
    y1 = float(draw(number(0, height - 1)))
    return (x1, y1, x1 + (width - x1) * draw(st.floats(0.01, 1)), y1 + (height - y1) * draw(st.floats(0.01, 1)))


@st.composite
def records(draw, thinking=texts):
    """Any valid record with thinking, stages and at least one reference."""
    width, height = draw(st.integers(2, 5000)), draw(st.integers(2, 5000))
    kind = draw(st.sampled_from(("open", "closed", "single", "multi")))
    choices = ()
    if kind in ("single", "multi"):
        folded = st.text(alphabet="abc ÄéЖ字", min_size=2, max_size=8).map(str.strip).filter(lambda text: len(text) > 1)
        choices = tuple(
            draw(st.lists(folded, min_size=2, max_size=26, unique_by=lambda text: " ".join(text.split()).casefold()))
        )
    letters = string.ascii_uppercase[: len(choices)]
    answer = {
        "open": lambda: draw(texts),
        "closed": lambda: draw(st.one_of(st.sampled_from(("Yes", "No")), words)),
        "single": lambda: draw(st.sampled_from(letters)),
        "multi": lambda: tuple(sorted(draw(st.sets(st.sampled_from(letters), min_size=1)))),
    }[kind]()
    boxes = draw(st.lists(corners(width, height), min_size=1, max_size=draw(st.sampled_from((1, 3, 40)))))
    fitting = [(x1, y1, min(x2, width), min(y2, height)) for x1, y1, x2, y2 in boxes]
    return make_record(
        kind,
        image_size=(width, height),
        options=choices,
        answer=answer,
        references=tuple(Box(draw(names), box) for box in fitting if box[0] < box[2] and box[1] < box[3]),
        thinking=draw(thinking),
        preamble=draw(st.one_of(st.just(""), texts)),
        stages=Stages(*(draw(texts) for _ in range(4))),
    )


def read_records(root, **how):
    """Read the questions of a source as a list; `set_aside` is a list that gets those set aside."""
    return list(read_vqa_source(root, **how))
