"""The experts' coding as answers: examples by hand, one a rule."""

import pytest

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.data.sources.iu_xray import read_coding


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


STEPS = {
    1: {
        "": ["Cardiomegaly/mild; Calcinosis/aorta; Lucency/diaphragm"],
        "Increased opacity": [
            "Cardiomegaly; Pulmonary Edema",
            "Pneumonia/base/left; Lucency/diaphragm/right",
            "Nodule/lung",
        ],
        "Decreased opacity": ["Cardiomegaly; Pulmonary Emphysema", "Pneumothorax/right"],
        "Mixed": ["Nodule/lung; Emphysema"],
    },
    2: {
        "Focal": ["Nodule/lung/left", "Nodule/lung/lingula"],
        "Multifocal": [
            "Nodule/lung/bilateral",
            "Nodule/lung/left/multiple",
            "Pneumonia/multilobar",
            "Pleural Effusion/left/large; Pleural Effusion/right/small",
        ],
        "Diffuse": ["Infiltrate/lung/bilateral/diffuse"],
        "": ["Nodule/lung", "Cardiomegaly/mild"],
    },
    3: {
        "Nodular": ["Nodule/lung/left"],
        "Consolidation": ["Pneumonia/base/left; Consolidation/lung/base/left"],
        "Reticular": ["Infiltrate/lung/interstitial"],
        "Linear": ["Pulmonary Atelectasis/streaky"],
        "Cavity": ["Cavitation/lung/apex/right"],
    },
    4: {
        "Upper lung zone": [
            "Nodule/lung/upper lobe/right",
            "Nodule/lung/upper lobe/right; Cicatrix/lung/base/left",
            "Calcinosis/aorta; Granuloma/lung/apex/left",
        ],
        "Middle lung zone": ["Nodule/lung/lingula", "Pulmonary Atelectasis/middle lobe/right"],
        "Lower lung zone": [
            "Pulmonary Atelectasis/base/left",
            "Nodule/right/retrocardiac",
            "Calcified Granuloma/lung/base/left",
        ],
        "Hilar/Mediastinal": ["Nodule/lung/hilum/right"],
        "": [
            "Nodule/lung/left",
            "Nodule/lung/upper lobe/right; Nodule/lung/lower lobe/left",
            "Calcified Granuloma/lung/base/left; Cicatrix/lung/apex/left",
        ],
    },
    5: {
        "Calcified": ["Nodule/lung/apex/left; Calcinosis/lung/apex/left", "Calcified Granuloma/lung/left"],
        "": ["Nodule/lung/apex/left; Calcinosis/lung/base/left"],
        "Ill-defined": ["Infiltrate/lung/base/left/patchy"],
    },
    6: {
        "Volume loss": ["Pulmonary Atelectasis; Diaphragm/left/elevated"],
        "Mediastinal shift": ["Pneumothorax/left; Shift/mediastinum"],
        "Lymphadenopathy": ["Mass/lung; Mediastinum/lymph nodes/enlarged"],
        "Cardiomegaly": ["Pleural Effusion/left; Cardiac Shadow/enlarged"],
        "N/A": ["Mass/lung; Calcinosis/lymph nodes"],
        "": ["Mass/lung; Volume Loss; Shift/mediastinum"],
    },
}
ROWS = [(mesh, step, answer) for step, own in STEPS.items() for answer, meshes in own.items() for mesh in meshes]


@pytest.mark.parametrize(("mesh", "step", "answer"), ROWS)
def test_steps(mesh, step, answer):
    assert answers(*mesh.split("; "))[step - 1] == (answer or None)
