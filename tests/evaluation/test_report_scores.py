"""Scores of reports by hand, and their resampling by patient."""

import numpy as np
import pytest

from stepcot_jax.evaluation.report_scores import BLEU, ROUGE, score_reports

SAME = "FINDINGS: The lungs are clear and expanded. IMPRESSION: No active disease."
OTHER = "Large heart, no edema."


def test_heads_do_not_count_and_scores_are_of_the_corpus():
    bare = "the lungs are clear and expanded no active disease"
    scores = score_reports([SAME], [bare], ["p"])
    assert (scores[BLEU].value, scores[ROUGE].value) == (1, 1)
    both = score_reports([SAME, OTHER], [bare, "Small heart."], ["p", "q"], num_resamples=20)
    # of 13 words 10 match, of 11 pairs 8, of 9 triples 7, of 7 quadruples 6, and the references have 11 words
    assert both[BLEU].value == pytest.approx((10 / 13 * 8 / 11 * 7 / 9 * 6 / 7) ** 0.25)
    assert both[ROUGE].value == pytest.approx((1 + 2 * 1 / 6) / 2)


def test_intervals_are_by_patient():
    """Two patients: a resample has both, or one of them twice, in whose figures the interval ends."""
    texts, references = [SAME, SAME, OTHER], [SAME, SAME, "Small heart."]
    scores = score_reports(texts, references, ["p", "p", "q"], num_resamples=400, seed=1)
    assert (scores[ROUGE].low, scores[ROUGE].high) == (pytest.approx(1 / 3), 1)
    assert (scores[BLEU].low, scores[BLEU].high) == (0, pytest.approx(1))
    assert np.isnan(score_reports([SAME], [SAME], ["p"])[BLEU].low)


def test_nothing_in_common_is_worth_nothing():
    scores = score_reports(["", "edema"], ["clear", "clear"], ["p", "q"])
    assert (scores[BLEU].value, scores[ROUGE].value) == (0, 0)
