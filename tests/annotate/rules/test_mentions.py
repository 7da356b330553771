"""Sections and sentences of a report, findings of a sentence and whether it asserts them, and slips of the pen."""

import re

import pytest
from annotate.rules.tables import read_table
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.annotate.rules import terms
from stepcot_jax.annotate.rules.mentions import Status, find_sections, find_terms, read_report, split_sentences
from stepcot_jax.annotate.rules.terms import find_slips, match_slips

STATUSES = """
ABSENT Nodule: No focal consolidation, effusion, or nodule.
ABSENT Effusion: Lungs are free of mass and effusion. | Neither infiltrate nor effusion is seen.
ABSENT Effusion: The effusion has resolved. | Interval resolution of the effusion. | No edema, small effusion, or mass.
ABSENT Effusion: Effusion: None. | There isn't any effusion. | No pneumothorax and pleural effusion is seen.
ABSENT Effusion: The heart is normal and effusion is no longer seen. | Pleural effusion - none.
ABSENT Cardiomegaly: No evidence of pneumothorax, cardiomegaly, or effusion. | No cardiac enlargement.
ABSENT Cardiomegaly: The heart is not enlarged. | Non-enlarged heart.
ABSENT Pneumonia: No opacity in the lungs to suggest pneumonia.
ABSENT Pneumothorax: A pneumothorax is not seen. | There is no pneumothorax and bibasilar atelectasis is present.
ABSENT Device: Interval removal of the catheter.
ABSENT Emphysema: No emphysematous change.
ABSENT Markings: No increase in interstitial markings.
ABSENT Mass: Films fail to demonstrate a mass.
ABSENT Granuloma: No mass or effusion, granuloma, or edema.
ASKED Pneumonia: Evaluate for pneumonia. | If there is concern for pneumonia, repeat.
ASKED Pneumonia: A normal radiograph does not exclude pneumonia.
ASKED Nodule: A nodule could be missed. | Bones could obscure a nodule.
ASKED Free air: Limited for evaluation of pneumoperitoneum.
ASKED Effusion: An effusion could not be seen.
LIKELY Atelectasis: This suggests atelectasis. | Atelectasis is likely.
LIKELY Nodule: A nodular opacity.
LIKELY Effusion: Near-complete resolution of the effusion. | The effusion has partially resolved.
LIKELY Effusion: No resolution of the effusion.
PAST Pneumonia: History of pneumonia and now effusion.
POSSIBLE Effusion: A small effusion cannot be excluded. | A small effusion may be present.
POSSIBLE Atelectasis: This may represent atelectasis.
POSSIBLE Pneumonia: In the appropriate clinical setting this is pneumonia. | Less likely pneumonia.
POSSIBLE Pneumonia: Pneumonia should be considered. | Pneumonia remains a possibility.
POSSIBLE Pneumonia: Pneumonia is difficult to exclude. | Pneumonia could have this appearance.
POSSIBLE Pneumonia: This can be seen with pneumonia.
STATED Nodule: No effusion, but there is a nodule. | The nodule is not seen on the lateral view.
STATED Nodule: Previously noted nodule measures 8 mm. | New nodule not present previously.
STATED Nodule: No effusion and multiple nodules.
STATED Cardiomegaly: No pneumothorax, stable cardiomegaly. | Status post bypass with cardiomegaly.
STATED Cardiomegaly: Heart: enlarged. Lungs: no effusion. | Heart size is above normal.
STATED Effusion: No change in the effusion. | History of pneumonia and now effusion. | The effusion has not resolved.
STATED Effusion: No significant interval change in the effusion. | No edema, small left effusion.
STATED Effusion: No edema and a small effusion. | Pleural effusion: no change.
STATED Pneumonia: Pneumonia in the appropriate clinical setting: mass.
STATED Granuloma: Prior granulomatous disease. | No mass or effusion, scattered granulomas.
STATED Atelectasis: There is no pneumothorax and bibasilar atelectasis is present.
"""  # status and finding: sentences


@pytest.mark.parametrize(("name", "sentence"), read_table(STATUSES))
def test_status(name, sentence):
    status, _, finding = name.partition(" ")
    assert {mention.finding: mention.status for mention in read_report(sentence).mentions}[finding] is Status[status]


@pytest.mark.parametrize(
    ("sentence", "findings"),
    [
        *((sentence, []) for sentence in ("Mass effect upon the trachea.", "Massive.")),
        *(("Heart size is normal with enlarged hila.", []), ("Pericardial effusion.", ["Pericardial effusion"])),
        *(("Nodular infiltrate.", ["Infiltration"]), ("Right atrial enlargement.", ["Heart or great vessel"])),
        *(("Hydropneumothorax.", ["Pneumothorax"]), ("Atherosclerotic calcification of the aorta.", ["Vessel"])),
        *(("Calcified granuloma.", ["Granuloma"]), ("Enlarged cardiac silhouette.", ["Cardiomegaly"])),
        *(("Calcified hilar lymph nodes.", ["Calcified node"]), ("Air-fluid level in a small hernia.", ["Hernia"])),
        ("Vertebral collapse.", ["Age change of bone"]),
        *(("Pnuemothorax and effussion.", ["Pneumothorax", "Effusion"]), ("Calcified aorta.", ["Vessel"])),
        ("Calcified aortopulmonary node.", ["Calcification"]),
        ("Increased density with reticular markings.", ["Opacity"]),
    ],
)
def test_terms(sentence, findings):
    assert [mention.finding for mention in read_report(sentence).mentions] == findings


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
