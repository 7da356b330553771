"""Scores of written reports against radiologists': BLEU-4 of the corpus, mean ROUGE-L, and intervals by patient."""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepcot_jax.evaluation.statistics import Interval, Weights, bootstrap, divide
from stepcot_jax.reasoning.text_overlap import bleu, count_ngrams, similarity, split_words

BLEU, ROUGE = "BLEU-4", "ROUGE-L"
_HEAD = re.compile(r"\b(?:findings|impression)\s*:", re.IGNORECASE)


def score_reports(
    generated: Sequence[str],
    references: Sequence[str],
    patients: Sequence[str],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return both scores of reports, whose heads "FINDINGS:" and "IMPRESSION:" do not count; both from 0 to 1."""
    words = [[split_words(_HEAD.sub(" ", text)) for text in texts] for texts in (generated, references)]
    pairs = list(zip(*words, strict=True))
    counts = np.array([count_ngrams(*pair) for pair in pairs])
    overlaps = np.array([similarity(*pair) for pair in pairs])

    def compute(weights: Weights) -> dict[str, npt.NDArray[np.float64]]:
        number = weights.sum(axis=-1)
        scores = np.where(number > 0, bleu(weights @ counts), np.nan)
        return {BLEU: scores, ROUGE: divide(weights @ overlaps, number)}

    return bootstrap(compute, np.array(patients, np.str_), num_resamples=num_resamples, seed=seed)
