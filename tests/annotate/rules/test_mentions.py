"""Findings of a sentence and whether it asserts them."""

import pytest
from annotate.rules.tables import read_table

from stepcot_jax.annotate.rules.mentions import Status, read_report

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


def test_denied_wholly_and_alternative():
    assert [read_report(text).mentions[0].denied_wholly for text in ("No large effusion.", "No effusion.")] == [
        False,
        True,
    ]
    first, second = read_report("Atelectasis versus early infiltrate.").mentions
    assert (first.alternative, second.alternative) == (False, True)
