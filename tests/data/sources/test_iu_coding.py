"""The experts' coding as answers: examples by hand, one a rule."""

import pytest
from annotate.rules.tables import read_table
from answers import name_answers

from stepcot_jax.data.sources.iu_xray import read_coding


def answers(*mesh):
    return name_answers(read_coding(mesh))


DIAGNOSES = {
    "normal": "Normal",
    "Nodule/lung/left": "Nodule",
    "Pleural Effusion/right/small": "Effusion",
    "Pneumonia/multilobar": "Pneumonia",
    "Cardiomegaly/borderline": "Cardiomegaly",
    "Cardiomegaly/mild; Cardiomegaly/borderline; Spine/degenerative": "Cardiomegaly",
    "cardiomegaly/MILD": "Cardiomegaly",
    **dict.fromkeys(("Hydropneumothorax/right", "Nodule; Mass", "normal; Nodule", "normal; Spine/degenerative")),
    **dict.fromkeys(("Calcified Granuloma/lung/left", "Cardiac Shadow/enlarged", "No Indexing", "")),
}


@pytest.mark.parametrize(("mesh", "diagnosis"), DIAGNOSES.items())
def test_diagnosis(mesh, diagnosis):
    assert answers(*filter(None, mesh.split("; ")))[-1] == diagnosis


STEPS = """
1 None: Cardiomegaly/mild; Calcinosis/aorta; Lucency/diaphragm
1 Increased opacity: Cardiomegaly; Pulmonary Edema | Pneumonia/base/left; Lucency/diaphragm/right | Nodule/lung
1 Decreased opacity: Cardiomegaly; Pulmonary Emphysema | Pneumothorax/right
1 Mixed: Nodule/lung; Emphysema
2 Focal: Nodule/lung/left | Nodule/lung/lingula
2 Multifocal: Nodule/lung/bilateral | Nodule/lung/left/multiple | Pneumonia/multilobar
2 Multifocal: Pleural Effusion/left/large; Pleural Effusion/right/small
2 Diffuse: Infiltrate/lung/bilateral/diffuse
2 None: Nodule/lung | Cardiomegaly/mild
3 Nodular: Nodule/lung/left
3 Consolidation: Pneumonia/base/left; Consolidation/lung/base/left
3 Reticular: Infiltrate/lung/interstitial
3 Linear: Pulmonary Atelectasis/streaky
3 Cavity: Cavitation/lung/apex/right
4 Upper lung zone: Nodule/lung/upper lobe/right | Nodule/lung/upper lobe/right; Cicatrix/lung/base/left
4 Upper lung zone: Calcinosis/aorta; Granuloma/lung/apex/left
4 Middle lung zone: Nodule/lung/lingula | Pulmonary Atelectasis/middle lobe/right
4 Lower lung zone: Pulmonary Atelectasis/base/left | Nodule/right/retrocardiac | Calcified Granuloma/lung/base/left
4 Hilar/Mediastinal: Nodule/lung/hilum/right
4 None: Nodule/lung/left | Nodule/lung/upper lobe/right; Nodule/lung/lower lobe/left
4 None: Calcified Granuloma/lung/base/left; Cicatrix/lung/apex/left
5 Calcified: Nodule/lung/apex/left; Calcinosis/lung/apex/left | Calcified Granuloma/lung/left
5 None: Nodule/lung/apex/left; Calcinosis/lung/base/left
5 Ill-defined: Infiltrate/lung/base/left/patchy
6 Volume loss: Pulmonary Atelectasis; Diaphragm/left/elevated
6 Mediastinal shift: Pneumothorax/left; Shift/mediastinum
6 Lymphadenopathy: Mass/lung; Mediastinum/lymph nodes/enlarged
6 Cardiomegaly: Pleural Effusion/left; Cardiac Shadow/enlarged
6 N/A: Mass/lung; Calcinosis/lymph nodes
6 None: Mass/lung; Volume Loss; Shift/mediastinum
"""  # number and answer of a step: codes


@pytest.mark.parametrize(("name", "mesh"), read_table(STEPS))
def test_steps(name, mesh):
    step, _, answer = name.partition(" ")
    assert str(answers(*mesh.split("; "))[int(step) - 1]) == answer
