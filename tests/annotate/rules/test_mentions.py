"""Findings of a sentence and whether it asserts them."""

import pytest

from stepcot_jax.annotate.rules.mentions import Status, read_report

ABSENT, ASKED, PAST, POSSIBLE, LIKELY, STATED = Status


def statuses(report):
    return {mention.finding: mention.status for mention in read_report(report).mentions}


@pytest.mark.parametrize(
    ("sentence", "finding", "status"),
    [
        ("No focal consolidation, effusion, or nodule.", "Nodule", ABSENT),
        ("Lungs are free of mass and effusion.", "Effusion", ABSENT),
        ("Neither infiltrate nor effusion is seen.", "Effusion", ABSENT),
        ("No effusion, but there is a nodule.", "Nodule", STATED),
        ("No pneumothorax, stable cardiomegaly.", "Cardiomegaly", STATED),
        ("No evidence of pneumothorax, cardiomegaly, or effusion.", "Cardiomegaly", ABSENT),
        ("No opacity in the lungs to suggest pneumonia.", "Pneumonia", ABSENT),
        ("A pneumothorax is not seen.", "Pneumothorax", ABSENT),
        ("The nodule is not seen on the lateral view.", "Nodule", STATED),
        ("The effusion has resolved.", "Effusion", ABSENT),
        ("Interval resolution of the effusion.", "Effusion", ABSENT),
        *(("No change in the effusion.", "Effusion", STATED), ("No cardiac enlargement.", "Cardiomegaly", ABSENT)),
        ("The heart is not enlarged.", "Cardiomegaly", ABSENT),
        ("Interval removal of the catheter.", "Device", ABSENT),
        ("A small effusion cannot be excluded.", "Effusion", POSSIBLE),
        ("This may represent atelectasis.", "Atelectasis", POSSIBLE),
        ("Pneumonia in the appropriate clinical setting: mass.", "Pneumonia", STATED),
        ("In the appropriate clinical setting this is pneumonia.", "Pneumonia", POSSIBLE),
        *(("Less likely pneumonia.", "Pneumonia", POSSIBLE), ("This suggests atelectasis.", "Atelectasis", LIKELY)),
        *(("A nodular opacity.", "Nodule", LIKELY), ("Evaluate for pneumonia.", "Pneumonia", ASKED)),
        ("If there is concern for pneumonia, repeat.", "Pneumonia", ASKED),
        *(("A nodule could be missed.", "Nodule", ASKED), ("Bones could obscure a nodule.", "Nodule", ASKED)),
        ("History of pneumonia and now effusion.", "Pneumonia", PAST),
        ("History of pneumonia and now effusion.", "Effusion", STATED),
        ("Previously noted nodule measures 8 mm.", "Nodule", STATED),
        ("Status post bypass with cardiomegaly.", "Cardiomegaly", STATED),
        ("Prior granulomatous disease.", "Granuloma", STATED),
        ("The effusion has not resolved.", "Effusion", STATED),
        ("Near-complete resolution of the effusion.", "Effusion", LIKELY),
        ("The effusion has partially resolved.", "Effusion", LIKELY),
        *(("No resolution of the effusion.", "Effusion", LIKELY), ("No emphysematous change.", "Emphysema", ABSENT)),
        ("No increase in interstitial markings.", "Markings", ABSENT),
        ("No significant interval change in the effusion.", "Effusion", STATED),
        ("No edema, small effusion, or mass.", "Effusion", ABSENT),
        ("No edema, small left effusion.", "Effusion", STATED),
        *(("No edema and a small effusion.", "Effusion", STATED), ("Effusion: None.", "Effusion", ABSENT)),
        ("Heart: enlarged. Lungs: no effusion.", "Cardiomegaly", STATED),
        *(("There isn't any effusion.", "Effusion", ABSENT), ("Films fail to demonstrate a mass.", "Mass", ABSENT)),
        ("A normal radiograph does not exclude pneumonia.", "Pneumonia", ASKED),
        ("Limited for evaluation of pneumoperitoneum.", "Free air", ASKED),
        ("Pneumonia should be considered.", "Pneumonia", POSSIBLE),
        ("Pneumonia remains a possibility.", "Pneumonia", POSSIBLE),
        *(("Atelectasis is likely.", "Atelectasis", LIKELY), ("New nodule not present previously.", "Nodule", STATED)),
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
        *(("No effusion and multiple nodules.", "Nodule", STATED), ("Pleural effusion - none.", "Effusion", ABSENT)),
        *(("Pleural effusion: no change.", "Effusion", STATED), ("Non-enlarged heart.", "Cardiomegaly", ABSENT)),
        ("Heart size is above normal.", "Cardiomegaly", STATED),
    ],
)
def test_status(sentence, finding, status):
    assert statuses(sentence)[finding] is status


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


def test_denied_wholly_and_alternative():
    assert [read_report(text).mentions[0].denied_wholly for text in ("No large effusion.", "No effusion.")] == [
        False,
        True,
    ]
    first, second = read_report("Atelectasis versus early infiltrate.").mentions
    assert (first.alternative, second.alternative) == (False, True)
