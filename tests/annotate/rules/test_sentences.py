"""Sections and sentences of a report, as ranges of its text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.annotate.rules.mentions import Status, find_sections, read_report, split_sentences


def texts(report):
    return [sentence.text for sentence in split_sentences(report)]


def test_sections_and_sentences_keep_their_places():
    report = "INDICATION: rule out mass. FINDINGS: Clear lungs.\nImpression: Normal.\nHISTORY: pneumonia"
    found = [(role, report[start:end].strip()) for role, start, end in find_sections(report)]
    assert found == [
        *(("context", "rule out mass."), ("findings", "Clear lungs."), ("impression", "Normal.")),
        ("context", "pneumonia"),
    ]
    # A heading within a sentence opens no section.
    assert [role for role, *_ in find_sections("No effects; impression: mass.")] == ["findings"]
    (sentence,) = split_sentences("No free\n  intraperitoneal air.")
    assert (sentence.text, sentence.line) == ("No free\n  intraperitoneal air.", "No free intraperitoneal air.")
    (mention,) = read_report("The heart is\n  mildly\nenlarged.").mentions
    assert (mention.finding, mention.status) == ("Cardiomegaly", Status.STATED)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ("1. A 2.0 cm mass. 2. No effusion.", ["A 2.0 cm mass.", "No effusion."]),
        ("Seen by Dr. Miller today. Clear.", ["Seen by Dr. Miller today.", "Clear."]),
        ("Mass measures 1.1 x 2.3 cm at T10. Stable.", ["Mass measures 1.1 x 2.3 cm at T10.", "Stable."]),
        ("Concerning for<BR>metastases", ["Concerning for", "metastases"]),
        ("In the left apex.There is a mass.", ["In the left apex.", "There is a mass."]),
        ("Seen XXXX. XXXX. Stable. .", ["Seen XXXX.", "XXXX.", "Stable."]),
        ("- Clear lungs\n- Normal heart", ["Clear lungs", "Normal heart"]),
        ("A line that\ngoes on. End", ["A line that\ngoes on.", "End"]),
        ("FINDINGS: Clear lungs IMPRESSION: Normal", ["Clear lungs", "Normal"]),
        ("No effusion is seen Small nodule in the apex.", ["No effusion is seen", "Small nodule in the apex."]),
        ("No effusion\nThe heart is normal", ["No effusion", "The heart is normal"]),
        ("No focal Right base opacity and no Old scar. See Kerley lines.", 2),
        *(("No acute disease vs. scar. End.", ["No acute disease vs. scar.", "End."]), ("  \n .", [])),
    ],
)
def test_sentences(report, expected):
    found = texts(report)
    assert (len(found) if isinstance(expected, int) else found) == expected


@given(st.text(alphabet="ab1. \n-:;XI<BR>FINDGS", max_size=200))
def test_sentences_stand_in_the_report_in_order_without_overlap(report):
    end = 0
    for sentence in split_sentences(report):
        assert sentence.start >= end
        end = sentence.start + len(sentence.text)
        assert report[sentence.start : end] == sentence.text


@given(st.lists(st.sampled_from(["mass", "aaaa" * 300, "is", "clear"]), max_size=400))
def test_a_text_without_full_stops_is_cut_and_loses_no_word(words):
    parts = texts(" ".join(words))
    assert "".join("".join(parts).split()) == "".join(words)
    assert all(len(part) <= 600 for part in parts)
