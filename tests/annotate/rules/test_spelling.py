"""Slips of the pen are found, and nothing else is."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.annotate.rules import terms
from stepcot_jax.annotate.rules.mentions import find_terms
from stepcot_jax.annotate.rules.terms import find_slips, match_slips

WORDS = ("pneumothorax", "effusion", "infiltrate", "pneumonia", "atelectasis", "cardiomegaly", "nodule")


def test_one_letter_left_out_doubled_or_swapped_is_a_slip_and_other_words_are_none():
    assert {"efusion", "efffusion", "effsuion", "effusoin", "effusino", "effusionn"} < find_slips("effusion")
    for other in ("effusion", "infusion", "fusion", "effusio", "effuion s", "efuson", "effusive"):
        assert re.fullmatch(match_slips("effusion", "effusions"), other) is None


@given(st.sets(st.text("abc", min_size=6, max_size=8), min_size=1, max_size=3), st.text("abc", max_size=9))
def test_the_expression_matches_the_slips_and_nothing_else(words, text):
    slips = set().union(*map(find_slips, words)) - words
    expression = re.compile(match_slips(*words))
    assert all(expression.fullmatch(slip) for slip in slips)
    assert (expression.fullmatch(text) is not None) == (text in slips)


@pytest.mark.parametrize("word", WORDS)
def test_every_diagnosis_is_known_by_its_slips(word):
    (finding,) = {finding for finding, _, _ in find_terms(word)}
    assert finding in terms.DIAGNOSIS_OPTIONS
    for slip in find_slips(word):
        assert {named for named, _, _ in find_terms(f"Small {slip} again.")} == {finding}, slip
