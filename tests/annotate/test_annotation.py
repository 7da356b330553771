import pickle

import pytest

from stepcot_jax.annotate.annotation import NO_REPORT, REASONS, Annotation, CannotAnnotate


def test_a_refusal_has_a_known_reason_and_shows_it():
    error = CannotAnnotate(NO_REPORT, "nothing there")
    assert (error.reason, error.detail, str(error)) == (NO_REPORT, "nothing there", "no report: nothing there")
    assert str(CannotAnnotate(NO_REPORT)) == "no report"
    with pytest.raises(ValueError, match="bad mood"):
        CannotAnnotate("bad mood")


def test_every_reason_is_explained_in_words():
    assert len(REASONS) == 10
    assert all(len(text.split()) > 3 and not text.endswith(".") for text in REASONS.values())


def test_an_annotation_has_one_reasoning_a_label():
    assert pickle.loads(pickle.dumps(Annotation((1,), ("a",)))) == Annotation((1,), ("a",))  # noqa: S301
    with pytest.raises(ValueError, match="1 labels do not match 2 reasonings"):
        Annotation((1,), ("a", "b"))
