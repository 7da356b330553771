"""What is said of a lesion, be it a diagnosis of the chain or not."""

import pytest
from annotate.rules.tables import read_table
from annotate.rules.test_annotator import report
from answers import name_answers

from stepcot_jax.annotate.annotation import CannotAnnotate
from stepcot_jax.annotate.rules.annotator import annotate_report, describe_report


def described(text, describe=describe_report):
    return name_answers(describe(report(text)).labels)


def test_a_lesion_outside_the_taxonomy_can_be_described_and_nothing_else_changes():
    found = described("FINDINGS: Calcified granuloma, right apex.")
    assert found == ["Increased opacity", "Focal", "Nodular", "Upper lung zone", "Calcified", "N/A", None]
    with pytest.raises(CannotAnnotate):
        describe_report(report("FINDINGS: Emphysema."))
    same = "FINDINGS: Calcified granuloma in the right upper lobe. IMPRESSION: Right upper lobe nodule."
    other = "FINDINGS: Calcified granuloma in the left base. IMPRESSION: Right upper lobe nodule."
    assert [described(text, annotate_report)[4] for text in (same, other)] == ["Calcified", "N/A"]
    for text in ("FINDINGS: Clear lungs.", "FINDINGS: Cardiomegaly."):
        assert describe_report(report(text)) == annotate_report(report(text))


DESCRIBED = """
2 Diffuse: Diffuse bilateral opacities. IMPRESSION: Bilateral opacities.
2 Focal: Calcified granulomas in the right upper lobe. | Opacity in the left base and lower lobe.
2 Multifocal: Calcified granulomas in the right lung. | Scattered granulomas throughout both lungs.
2 Multifocal: Opacities in the right middle lobe and the lingula. | Right middle and lower lobe opacities.
2 Multifocal: Left hilar and left lower lobe calcifications.
3 Consolidation: Left base airspace disease.
3 Nodular: Nodular infiltrate in the lingula.
4 Hilar/Mediastinal: Calcified aortopulmonary window node.
4 Pleura/Chest wall: Calcified pleural plaques.
4 Upper lung zone: Granuloma in the left base. Opacity in the right apex.
5 Calcified: Calcified granuloma in the left base. Possible pneumonia. | Nodule in the left base which is calcified.
5 Calcified: Nodule in the left base. The calcification suggests a granuloma. | Calciifed nodule in the left base.
5 Calcified: Opacity in the left base. Calcified granuloma in the left base. | Calcified granulomas in lung and spleen.
5 Calcified: Nodule in the left base. Likely calcified.
5 Ill-defined: The heart is enlarged. Patchy opacity in the right base.
5 Ill-defined: Calcified hilar lymph nodes. Patchy opacity in the right base.
5 Ill-defined: Poorly marginated mass in the right apex.
5 N/A: Nodule in the left base which is new and calcified aorta.
5 N/A: Linear opacity in the left base. Calcified granuloma in the right apex.
5 N/A: Nodule in the left base. The aorta is calcified.
5 Well-circumscribed: Nodule in the left base with sharp margins.
"""  # step and answer: findings


@pytest.mark.parametrize(("name", "findings"), read_table(DESCRIBED))
def test_how_a_lesion_is_described(name, findings):
    step, _, expected = name.partition(" ")
    assert described(f"FINDINGS: {findings}")[int(step) - 1] == expected
