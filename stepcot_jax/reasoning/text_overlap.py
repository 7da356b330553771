"""Overlap of words between two texts: ROUGE-L (Lin 2004) and BLEU (Papineni et al. 2002)."""

import collections
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

_WORD = re.compile(r"[a-z0-9]+(?:\.[0-9]+)?")
MOST_WORDS = 4  # of an n-gram of BLEU-4


def split_words(text: str) -> list[str]:
    """Return the words and numbers of a text, in lower case and without punctuation."""
    return _WORD.findall(text.lower())


def similarity(first: Sequence[str], second: Sequence[str]) -> float:
    """Return ROUGE-L's F1 of two lists of words: twice their longest common subsequence over their lengths' sum.

    >>> similarity("the left lung".split(), "the lung".split())
    0.8
    """
    if not first or not second:
        return 0.0
    # Bit i of `ahead` is 0 where the subsequence grows at word i (Hyyrö 2004): one integer operation a word.
    places: dict[str, int] = {}
    for place, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << place
    ahead = full = (1 << len(first)) - 1
    for word in second:
        matched = ahead & places.get(word, 0)
        ahead = (ahead + matched | ahead - matched) & full
    return 2 * (len(first) - ahead.bit_count()) / (len(first) + len(second))


def count_ngrams(candidate: Sequence[str], reference: Sequence[str]) -> Float64[np.ndarray, " count"]:
    """Return what `bleu` adds up over texts: matched n-grams and all of the candidate, by n, and both lengths.

    An n-gram matches at most as often as the reference has it.
    """
    matched, total = [], []
    for n in range(1, MOST_WORDS + 1):
        ours, theirs = (
            collections.Counter(zip(*(words[start:] for start in range(n)), strict=False))
            for words in (candidate, reference)
        )
        matched.append((ours & theirs).total())
        total.append(ours.total())
    return np.array([*matched, *total, len(candidate), len(reference)], np.float64)


def bleu(counts: Float64[np.ndarray, "*resample count"]) -> Float64[np.ndarray, "*resample"]:
    """Return BLEU-4 of a corpus from the sums of its counts; 0 where some n has no match, without smoothing.

    The geometric mean of the shares of matched n-grams for n from 1 to 4, times exp(1 - r / c) where the candidates'
    c words are fewer than the references' r.
    """
    matched, total = counts[..., :MOST_WORDS], counts[..., MOST_WORDS : 2 * MOST_WORDS]
    candidate, reference = counts[..., -2], counts[..., -1]
    is_matched = np.asarray((matched > 0).all(axis=-1))
    shares = np.where(is_matched[..., None], matched, 1) / np.where(is_matched[..., None], total, 1)
    brevity = np.minimum(0, 1 - reference / np.where(candidate > 0, candidate, 1))
    return np.where(is_matched, np.exp(np.log(shares).mean(axis=-1) + brevity), 0.0)
