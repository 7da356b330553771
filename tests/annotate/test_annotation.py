"""The reasons for setting a report aside."""

from stepcot_jax.annotate.annotation import CannotAnnotate, Reason


def test_a_refusal_shows_its_reason():
    error = CannotAnnotate(Reason.NO_REPORT, "nothing there")
    assert (error.reason, error.detail, str(error)) == (Reason.NO_REPORT, "nothing there", "no report: nothing there")
    assert str(CannotAnnotate(Reason.NO_REPORT)) == "no report"
