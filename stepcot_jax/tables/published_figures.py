"""The paper's figures, as shares of 1, for the columns marked as published."""

from stepcot_jax.chain import PUBLISHED_STEPS

DETECTION, DISTRIBUTION, _, LOCATION, _, SECONDARY_EFFECTS, DIAGNOSIS = (name for name, _ in PUBLISHED_STEPS)


TEACHER, STUDENT = "teacher", "student"
WITHOUT_MEMORY, WITHOUT_TEXT = "without memory", "without text"

DIAGNOSIS_FIGURES: dict[str, dict[str, float]] = {
    TEACHER: {"accuracy": 0.783, "auc": 0.895, "sensitivity": 0.460, "specificity": 0.966},
    STUDENT: {"accuracy": 0.775, "auc": 0.900, "sensitivity": 0.418, "specificity": 0.960},
    "BiomedCLIP, with steps": {"accuracy": 0.693, "auc": 0.556, "sensitivity": 0.194, "specificity": 0.918},
    "LLaVA-Med": {"accuracy": 0.427, "auc": 0.583, "sensitivity": 0.427, "specificity": 0.794},
}
"""Table 3: diagnosis on the published data; AUC one-vs-rest; AUC, sensitivity and specificity are macro averages."""

COMPONENT_ACCURACY: dict[str, dict[str, float]] = {
    WITHOUT_MEMORY: {DETECTION: 0.737, DISTRIBUTION: 0.696, LOCATION: 0.632, DIAGNOSIS: 0.655},
    WITHOUT_TEXT: {DETECTION: 0.815, DISTRIBUTION: 0.761, LOCATION: 0.693, DIAGNOSIS: 0.721},
    TEACHER: {DETECTION: 0.918, DISTRIBUTION: 0.846, LOCATION: 0.771, DIAGNOSIS: 0.783},
    STUDENT: {DETECTION: 0.918, DISTRIBUTION: 0.834, LOCATION: 0.769, DIAGNOSIS: 0.775},
}
"""Tables 6 and 9: accuracy by step of ablations."""


def step_figures(model: str, step: str) -> dict[str, float]:
    """Return a model's figures at a step by metric: of Tables 6 and 9, and at the diagnosis of Table 3.

    >>> step_figures("teacher", "Detection"), step_figures("student", "Morphologic feature")
    ({'accuracy': 0.918}, {})
    """
    name = model.removeprefix(f"{TEACHER} ").casefold()
    accuracy = {known.casefold(): of_steps for known, of_steps in COMPONENT_ACCURACY.items()}.get(name, {}).get(step)
    figures = {} if accuracy is None else {"accuracy": accuracy}
    if step == DIAGNOSIS:
        figures |= {known.casefold(): found for known, found in DIAGNOSIS_FIGURES.items()}.get(name, {})
    return figures


TRANSFER_SAMPLES: dict[str, tuple[int, int]] = {"NIH ChestX-ray8": (985, 8)}
"""Table 4, by the origin of the cases: number of cases with a single label and of their classes; no scores known."""

READER_ACCURACY: dict[str, dict[str, float]] = {
    "clinician": {DETECTION: 0.7212, DISTRIBUTION: 0.6602, LOCATION: 0.6603, SECONDARY_EFFECTS: 0.9097},
    TEACHER: {DETECTION: 0.8851, SECONDARY_EFFECTS: 0.7524},
    STUDENT: {DETECTION: 0.8037, DISTRIBUTION: 0.7263, LOCATION: 0.6946, SECONDARY_EFFECTS: 0.7397},
}
"""Tables 5 and 10: accuracy on 200 cases that clinicians also read; missing figures are not in the paper's text."""

READER_F1: dict[str, dict[str, float]] = {
    "clinician": {DETECTION: 0.3786},
    TEACHER: {DETECTION: 0.5724},
    STUDENT: {DETECTION: 0.5084},
}
"""Table 10, as Section C.3 has it: F1, of which the paper says neither the average nor the positive answer."""

READER_SENSITIVITY: dict[str, dict[str, float]] = {
    "clinician": {DETECTION: 0.3684},
    TEACHER: {DETECTION: 0.5836},
    STUDENT: {},
}
"""Table 10, as Section C.3 has it: sensitivity, likewise."""


COST: dict[str, tuple[int, int, float, float]] = {
    TEACHER: (283_664_427, 22_904_874, 22.81, 91.23),
    STUDENT: (151_562_539, 285_226, 1.51, 6.02),
}
"""Table 11, on the authors' GPU: parameters of all networks that run, both towers of frozen encoders included;
parameters of the trained networks; milliseconds a sample in batches of four; milliseconds a batch of four."""

COST_OF_ENCODERS: dict[str, tuple[int | None, float | None]] = {
    "CLIP": (151_810_000, None),
    "FLAVA": (242_540_000, None),
    "BiomedCLIP": (530_000, 0.07),
}
"""Table 11, as Section C.4 has it: parameters, printed in millions with two digits; milliseconds a sample."""

COST_MEGABYTES = 1219.72
"""Table 11: memory in MB, printed once."""
