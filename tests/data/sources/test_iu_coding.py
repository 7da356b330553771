"""The experts' coding as answers: examples by hand, one a rule."""

import pytest

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.data.sources.iu_coding import read_coding


def answers(*mesh):
    return [
        step.options[label] if label != NOT_ANNOTATED else None
        for step, label in zip(DEFAULT_CHAIN.steps, read_coding(mesh), strict=True)
    ]


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


@pytest.mark.parametrize(
    ("mesh", "step", "answer"),
    [
        (("Nodule/lung/upper lobe/right",), 4, "Upper lung zone"),
        (("Nodule/lung/lingula",), 4, "Middle lung zone"),
        (("Pulmonary Atelectasis/middle lobe/right",), 4, "Middle lung zone"),
        (("Pulmonary Atelectasis/base/left",), 4, "Lower lung zone"),
        (("Nodule/right/retrocardiac",), 4, "Lower lung zone"),
        (("Nodule/lung/hilum/right",), 4, "Hilar/Mediastinal"),
        (("Nodule/lung/left",), 4, None),
        (("Nodule/lung/upper lobe/right", "Nodule/lung/lower lobe/left"), 4, None),
        (("Nodule/lung/upper lobe/right", "Cicatrix/lung/base/left"), 4, "Upper lung zone"),
        (("Calcified Granuloma/lung/base/left",), 4, "Lower lung zone"),
        (("Calcified Granuloma/lung/base/left", "Cicatrix/lung/apex/left"), 4, None),
        (("Calcinosis/aorta", "Granuloma/lung/apex/left"), 4, "Upper lung zone"),
        (("Nodule/lung/left",), 2, "Focal"),
        (("Nodule/lung/lingula",), 2, "Focal"),
        (("Nodule/lung/bilateral",), 2, "Multifocal"),
        (("Nodule/lung/left/multiple",), 2, "Multifocal"),
        (("Pneumonia/multilobar",), 2, "Multifocal"),
        (("Pleural Effusion/left/large", "Pleural Effusion/right/small"), 2, "Multifocal"),
        (("Infiltrate/lung/bilateral/diffuse",), 2, "Diffuse"),
        (("Nodule/lung",), 2, None),
        (("Cardiomegaly/mild",), 2, None),
        (("Cardiomegaly/mild", "Calcinosis/aorta", "Lucency/diaphragm"), 1, None),
        (("Cardiomegaly", "Pulmonary Edema"), 1, "Increased opacity"),
        (("Cardiomegaly", "Pulmonary Emphysema"), 1, "Decreased opacity"),
        (("Pneumonia/base/left", "Lucency/diaphragm/right"), 1, "Increased opacity"),
        (("Nodule/lung/apex/left", "Calcinosis/lung/apex/left"), 5, "Calcified"),
        (("Nodule/lung/apex/left", "Calcinosis/lung/base/left"), 5, None),
        (("Calcified Granuloma/lung/left",), 5, "Calcified"),
        (("Infiltrate/lung/base/left/patchy",), 5, "Ill-defined"),
        (("Nodule/lung/left",), 3, "Nodular"),
        (("Pneumonia/base/left", "Consolidation/lung/base/left"), 3, "Consolidation"),
        (("Infiltrate/lung/interstitial",), 3, "Reticular"),
        (("Pulmonary Atelectasis/streaky",), 3, "Linear"),
        (("Cavitation/lung/apex/right",), 3, "Cavity"),
        (("Pulmonary Atelectasis", "Diaphragm/left/elevated"), 6, "Volume loss"),
        (("Pneumothorax/left", "Shift/mediastinum"), 6, "Mediastinal shift"),
        (("Mass/lung", "Mediastinum/lymph nodes/enlarged"), 6, "Lymphadenopathy"),
        (("Pleural Effusion/left", "Cardiac Shadow/enlarged"), 6, "Cardiomegaly"),
        (("Mass/lung", "Calcinosis/lymph nodes"), 6, "N/A"),
        (("Mass/lung", "Volume Loss", "Shift/mediastinum"), 6, None),
        (("Nodule/lung",), 1, "Increased opacity"),
        (("Pneumothorax/right",), 1, "Decreased opacity"),
        (("Nodule/lung", "Emphysema"), 1, "Mixed"),
    ],
)
def test_steps(mesh, step, answer):
    assert answers(*mesh)[step - 1] == answer
