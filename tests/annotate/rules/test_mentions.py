"""Sections, sentences, findings and whether they are asserted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.annotate.rules.assertions import Status
from stepcot_jax.annotate.rules.mentions import read_report
from stepcot_jax.annotate.rules.sentences import find_sections, split_sentences


def texts(report):
    return [sentence.text for sentence in split_sentences(report)]


def statuses(report):
    return {mention.finding: mention.status for mention in read_report(report).mentions}


def test_sections_keep_their_roles_and_their_places():
    report = "INDICATION: rule out mass. FINDINGS: Clear lungs.\nImpression: Normal.\nHISTORY: pneumonia"
    found = [(role, report[start:end].strip()) for role, start, end in find_sections(report)]
    assert found == [
        ("context", "rule out mass."),
        ("findings", "Clear lungs."),
        ("impression", "Normal."),
        ("context", "pneumonia"),
    ]


def test_a_heading_within_a_sentence_opens_no_section():
    assert [role for role, *_ in find_sections("No effects; impression: mass.")] == ["findings"]
    assert [role for role, *_ in find_sections("Clear. IMPRESSION: mass.")] == ["findings", "impression"]


def test_a_section_ends_a_sentence_without_a_full_stop():
    assert texts("FINDINGS: Clear lungs IMPRESSION: Normal") == ["Clear lungs", "Normal"]


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
        (
            "No effusion is seen Small nodule in the apex. End.",
            ["No effusion is seen", "Small nodule in the apex.", "End."],
        ),
        ("No effusion\nThe heart is normal", ["No effusion", "The heart is normal"]),
        ("No focal Right base opacity and no Old scar. See Kerley lines.", 2),
        ("No acute disease vs. scar. End.", ["No acute disease vs. scar.", "End."]),
        ("  \n .", []),
    ],
)
def test_sentences(report, expected):
    found = texts(report)
    assert (len(found) if isinstance(expected, int) else found) == expected


def test_a_sentence_is_quoted_as_it_is_and_searched_on_one_line():
    (sentence,) = split_sentences("No free\n  intraperitoneal air.")
    assert sentence.text == "No free\n  intraperitoneal air."
    assert sentence.line == "No free intraperitoneal air."
    assert statuses("The heart is\n  mildly\nenlarged.") == {"Cardiomegaly": STATED}


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


ABSENT, ASKED, PAST, POSSIBLE, LIKELY, STATED = Status


@pytest.mark.parametrize(
    ("sentence", "finding", "status"),
    [
        ("There is a small nodule.", "Nodule", STATED),
        ("No focal consolidation, effusion, or nodule.", "Nodule", ABSENT),
        ("Lungs are free of mass and effusion.", "Effusion", ABSENT),
        ("Negative for pneumothorax.", "Pneumothorax", ABSENT),
        ("Neither infiltrate nor effusion is seen.", "Effusion", ABSENT),
        ("No effusion, but there is a nodule.", "Nodule", STATED),
        ("No effusion; a nodule.", "Nodule", STATED),
        ("No pneumothorax, stable cardiomegaly.", "Cardiomegaly", STATED),
        ("No evidence of pneumothorax, cardiomegaly, or effusion.", "Cardiomegaly", ABSENT),
        ("No opacity in the lungs to suggest pneumonia.", "Pneumonia", ABSENT),
        ("A pneumothorax is not seen.", "Pneumothorax", ABSENT),
        ("The nodule is not seen on the lateral view.", "Nodule", STATED),
        ("A nodule not previously seen is in the apex.", "Nodule", STATED),
        ("The effusion has resolved.", "Effusion", ABSENT),
        ("Interval resolution of the effusion.", "Effusion", ABSENT),
        ("No change in the effusion.", "Effusion", STATED),
        ("No increase in the effusion.", "Effusion", STATED),
        ("No cardiac enlargement.", "Cardiomegaly", ABSENT),
        ("The heart is not enlarged.", "Cardiomegaly", ABSENT),
        ("The heart is mildly enlarged.", "Cardiomegaly", STATED),
        ("Interval removal of the catheter.", "Device", ABSENT),
        ("A small effusion cannot be excluded.", "Effusion", POSSIBLE),
        ("Cannot exclude a mass.", "Mass", POSSIBLE),
        ("This may represent atelectasis.", "Atelectasis", POSSIBLE),
        ("Possible pneumonia.", "Pneumonia", POSSIBLE),
        ("Pneumonia in the appropriate clinical setting: mass.", "Pneumonia", STATED),
        ("In the appropriate clinical setting this is pneumonia.", "Pneumonia", POSSIBLE),
        ("Less likely pneumonia.", "Pneumonia", POSSIBLE),
        ("Probable effusion.", "Effusion", LIKELY),
        ("This suggests atelectasis.", "Atelectasis", LIKELY),
        ("A nodular opacity.", "Nodule", LIKELY),
        ("Evaluate for pneumonia.", "Pneumonia", ASKED),
        ("If there is concern for pneumonia, repeat.", "Pneumonia", ASKED),
        ("A nodule could be missed.", "Nodule", ASKED),
        ("Bones could obscure a nodule.", "Nodule", ASKED),
        ("History of pneumonia and now effusion.", "Pneumonia", PAST),
        ("History of pneumonia and now effusion.", "Effusion", STATED),
        ("Previously noted nodule measures 8 mm.", "Nodule", STATED),
        ("Status post bypass with cardiomegaly.", "Cardiomegaly", STATED),
        ("Prior granulomatous disease.", "Granuloma", STATED),
        ("The effusion has not resolved.", "Effusion", STATED),
        ("Near-complete resolution of the effusion.", "Effusion", LIKELY),
        ("The effusion has partially resolved.", "Effusion", LIKELY),
        ("No resolution of the effusion.", "Effusion", LIKELY),
        ("No emphysematous change.", "Emphysema", ABSENT),
        ("No increase in interstitial markings.", "Markings", ABSENT),
        ("No significant interval change in the effusion.", "Effusion", STATED),
        ("No edema, small effusion, or mass.", "Effusion", ABSENT),
        ("No edema, small left effusion.", "Effusion", STATED),
        ("No edema and a small effusion.", "Effusion", STATED),
        ("Effusion: None.", "Effusion", ABSENT),
        ("Heart: enlarged. Lungs: no effusion.", "Cardiomegaly", STATED),
        ("There isn't any effusion.", "Effusion", ABSENT),
        ("Films fail to demonstrate a mass.", "Mass", ABSENT),
        ("A normal radiograph does not exclude pneumonia.", "Pneumonia", ASKED),
        ("Limited for evaluation of pneumoperitoneum.", "Hernia", ASKED),
        ("Pneumonia should be considered.", "Pneumonia", POSSIBLE),
        ("Pneumonia remains a possibility.", "Pneumonia", POSSIBLE),
        ("Atelectasis is likely.", "Atelectasis", LIKELY),
        ("New nodule not present previously.", "Nodule", STATED),
        ("A small effusion may be present.", "Effusion", POSSIBLE),
        ("An effusion could not be seen.", "Effusion", ASKED),
        ("Pneumonia is difficult to exclude.", "Pneumonia", POSSIBLE),
        ("Pneumonia could have this appearance.", "Pneumonia", POSSIBLE),
        ("This can be seen with pneumonia.", "Pneumonia", POSSIBLE),
        ("There is no pneumothorax and bibasilar atelectasis is present.", "Atelectasis", STATED),
        ("There is no pneumothorax and bibasilar atelectasis is present.", "Pneumothorax", ABSENT),
        ("No pneumothorax and pleural effusion is seen.", "Effusion", ABSENT),
        ("The heart is normal and effusion is no longer seen.", "Effusion", ABSENT),
        ("No mass or effusion, scattered granulomas.", "Granuloma", STATED),
        ("No mass or effusion, granuloma, or edema.", "Granuloma", ABSENT),
        ("No effusion and multiple nodules.", "Nodule", STATED),
        ("Pleural effusion - none.", "Effusion", ABSENT),
        ("Pleural effusion: no change.", "Effusion", STATED),
        ("Non-enlarged heart.", "Cardiomegaly", ABSENT),
        ("Negative XXXX pneumothorax.", "Pneumothorax", ABSENT),
        ("Heart size is above normal.", "Cardiomegaly", STATED),
    ],
)
def test_status(sentence, finding, status):
    assert statuses(sentence)[finding] is status


@pytest.mark.parametrize(
    ("sentence", "findings"),
    [
        ("Mass effect upon the trachea.", []),
        ("Pericardial effusion.", ["Pericardial effusion"]),
        ("Right atrial enlargement.", ["Heart or great vessel"]),
        ("Heart size is normal with enlarged hila.", []),
        ("Nodular infiltrate.", ["Infiltration"]),
        ("Hydropneumothorax.", ["Pneumothorax"]),
        ("Atherosclerotic calcification of the aorta.", ["Vessel"]),
        ("Calcified granuloma.", ["Granuloma"]),
        ("Enlarged cardiac silhouette.", ["Cardiomegaly"]),
        ("Massive.", []),
        ("Calcified hilar lymph nodes.", ["Calcified node"]),
        ("Air-fluid level in a small hernia.", ["Hernia"]),
        ("Pnuemothorax and effussion.", ["Pneumothorax", "Effusion"]),
        ("Vertebral collapse.", ["Age change of bone"]),
        ("Calcified aorta.", ["Vessel"]),
        ("Calcified aortopulmonary node.", ["Calcification"]),
        ("Increased density with reticular markings.", ["Opacity"]),
    ],
)
def test_terms(sentence, findings):
    assert [mention.finding for mention in read_report(sentence).mentions] == findings


def test_a_large_effusion_denied_is_not_every_effusion_denied():
    wholly = {text: read_report(text).mentions[0].denied_wholly for text in ("No large effusion.", "No effusion.")}
    assert wholly == {"No large effusion.": False, "No effusion.": True}


def test_the_second_of_two_is_the_alternative():
    first, second = read_report("Atelectasis versus early infiltrate.").mentions
    assert (first.alternative, second.alternative) == (False, True)
