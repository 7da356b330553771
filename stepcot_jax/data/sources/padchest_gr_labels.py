"""What PadChest's labels of findings say in terms of the chain.

PadChest orders its labels in a tree (Bustos et al., Medical Image Analysis 2020); a label stands for the
diagnosis that it or a label above it names there: "laminar atelectasis" is below "atelectasis", "alveolar
pattern" and "consolidation" are below "infiltrates". Masses outside of the lung, calcified granulomas and
pseudonodules (such as nipple shadows) stand for none.
"""

from collections.abc import Iterable

from stepcot_jax.data.sources.findings import DIAGNOSES, Finding

_LABELS_OF_DIAGNOSES = {
    "Nodule": ("nodule", "multiple nodules"),
    "Atelectasis": (
        "atelectasis",
        "atelectasis basal",
        "laminar atelectasis",
        "lobar atelectasis",
        "round atelectasis",
        "segmental atelectasis",
        "total atelectasis",
    ),
    "Infiltration": (
        "infiltrates",
        "air bronchogram",
        "alveolar pattern",
        "consolidation",
        "ground glass pattern",
        "interstitial pattern",
        "miliary opacities",
        "reticular interstitial pattern",
        "reticulonodular interstitial pattern",
    ),
    "Effusion": (
        "pleural effusion",
        "empyema",
        "hemothorax",
        "hydropneumothorax",
        "loculated fissural effusion",
        "loculated pleural effusion",
    ),
    "Pneumonia": ("pneumonia", "atypical pneumonia"),
    "Cardiomegaly": ("cardiomegaly",),
    "Mass": ("mass", "pulmonary mass"),
    "Pneumothorax": ("pneumothorax", "hydropneumothorax"),
}

_DENSER = (
    "abscess",
    "calcified granuloma",
    "fibrotic band",
    "granuloma",
    "increased density",
    "kerley lines",
    "lepidic adenocarcinoma",
    "lung metastasis",
    "lymphangitis carcinomatosa",
    "post radiotherapy changes",
    "pulmonary edema",
    "pulmonary fibrosis",
    "tuberculosis",
    "tuberculosis sequelae",
)
_MORE_TRANSPARENT = (
    "air trapping",
    "bullas",
    "copd signs",
    "emphysema",
    "hyperinflated lung",
    "lung vascular paucity",
)


def _table() -> dict[str, tuple[Finding, ...]]:
    table: dict[str, tuple[Finding, ...]] = {label: (Finding(density="increased"),) for label in _DENSER}
    table |= {label: (Finding(density="decreased"),) for label in _MORE_TRANSPARENT}
    for diagnosis, labels in _LABELS_OF_DIAGNOSES.items():
        for label in labels:
            table[label] = (*table.get(label, ()), DIAGNOSES[diagnosis])
    return table


FINDINGS = _table()
"""Findings of each label, by the label in small letters; any other label says nothing in terms of the chain."""


def find_findings(labels: Iterable[str]) -> tuple[Finding, ...]:
    """The findings that labels stand for.

    >>> [finding.diagnosis for finding in find_findings([" Laminar atelectasis", "scoliosis"])]
    ['Atelectasis']
    """
    folded = (" ".join(label.split()).casefold() for label in labels)
    return tuple(finding for label in folded for finding in FINDINGS.get(label, ()))
