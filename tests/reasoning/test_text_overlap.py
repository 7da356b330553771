"""BLEU against hand values and a plain computation, n-gram by n-gram."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.reasoning.text_overlap import bleu, count_ngrams, split_words


def plain_bleu(pairs):
    """Papineni et al. (2002), Section 2.3, with lists in place of counters."""
    shares = []
    for n in range(1, 5):
        matched = total = 0
        for candidate, reference in pairs:
            left = [tuple(reference[start : start + n]) for start in range(len(reference) - n + 1)]
            for start in range(len(candidate) - n + 1):
                total += 1
                gram = tuple(candidate[start : start + n])
                if gram in left:
                    left.remove(gram)
                    matched += 1
        if not matched:
            return 0.0
        shares.append(matched / total)
    c, r = (sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    penalty = 1.0 if c > r else math.exp(1 - r / c)
    return penalty * math.prod(shares) ** 0.25


sentences = st.lists(st.sampled_from("abc"), max_size=9)


@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=4))
def test_bleu_of_a_corpus(pairs):
    counts = sum(count_ngrams(*pair) for pair in pairs)
    assert bleu(counts) == pytest.approx(plain_bleu(pairs))


def test_bleu_by_hand():
    candidate = ["the", "the", "the", "cat", "sat", "down"]
    reference = ["the", "cat", "sat", "down", "on", "the", "mat"]
    # matched: the x 2, cat, sat, down = 5 of 6; the cat, cat sat, sat down = 3 of 5; 2 of 4; 1 of 3; 6 words for 7
    expected = (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25 * math.exp(1 - 7 / 6)
    counts = count_ngrams(candidate, reference)
    assert counts.tolist() == [5, 3, 2, 1, 6, 5, 4, 3, 6, 7]
    assert bleu(counts) == pytest.approx(expected)
    same = count_ngrams(reference, reference)
    assert bleu(np.stack([same, 2 * same, counts, 0 * counts])).tolist() == pytest.approx([1, 1, expected, 0])


def test_words_are_letters_and_numbers_in_lower_case():
    words = split_words("FINDINGS: A 2.5 cm nodule, well-defined.")
    assert words == ["findings", "a", "2.5", "cm", "nodule", "well", "defined"]
