"""The paper's figures, as shares of 1, for the columns marked as published."""

import dataclasses

from stepcot_jax.chain import PUBLISHED_STEPS

DETECTION, DISTRIBUTION, _, LOCATION, _, SECONDARY_EFFECTS, DIAGNOSIS = (name for name, _ in PUBLISHED_STEPS)


@dataclasses.dataclass(frozen=True)
class DiagnosisFigures:
    """Table 3: one model at the diagnosis step.

    Attributes:
      accuracy: share of correct answers.
      auc: macro one-vs-rest.
      sensitivity: macro.
      specificity: macro.
    """

    accuracy: float
    auc: float
    sensitivity: float
    specificity: float


TEACHER, STUDENT = "teacher", "student"
WITHOUT_MEMORY, WITHOUT_TEXT = "without memory", "without text"

DIAGNOSIS_FIGURES: dict[str, DiagnosisFigures] = {
    TEACHER: DiagnosisFigures(0.783, 0.895, 0.460, 0.966),
    STUDENT: DiagnosisFigures(0.775, 0.900, 0.418, 0.960),
    "BiomedCLIP, with steps": DiagnosisFigures(0.693, 0.556, 0.194, 0.918),
    "LLaVA-Med": DiagnosisFigures(0.427, 0.583, 0.427, 0.794),
}
"""Table 3: diagnosis on the published data."""

COMPONENT_ACCURACY: dict[str, dict[str, float]] = {
    WITHOUT_MEMORY: {DETECTION: 0.737, DISTRIBUTION: 0.696, LOCATION: 0.632, DIAGNOSIS: 0.655},
    WITHOUT_TEXT: {DETECTION: 0.815, DISTRIBUTION: 0.761, LOCATION: 0.693, DIAGNOSIS: 0.721},
    TEACHER: {DETECTION: 0.918, DISTRIBUTION: 0.846, LOCATION: 0.771, DIAGNOSIS: 0.783},
    STUDENT: {DETECTION: 0.918, DISTRIBUTION: 0.834, LOCATION: 0.769, DIAGNOSIS: 0.775},
}
"""Tables 6 and 9: accuracy by step of ablations."""


def step_figures(model: str, step: str) -> dict[str, float]:
    """Return a model's figures at a step by metric: of Tables 6 and 9, and at the diagnosis of Table 3.

    Args:
      model: its name in tables: "teacher", "student", "teacher without memory", or "ENCODER, with steps".
      step: its name.

    >>> step_figures("teacher", "Detection"), step_figures("student", "Morphologic feature")
    ({'accuracy': 0.918}, {})
    """
    name = model.removeprefix(f"{TEACHER} ").casefold()
    accuracy = {known.casefold(): of_steps for known, of_steps in COMPONENT_ACCURACY.items()}.get(name, {}).get(step)
    figures = {} if accuracy is None else {"accuracy": accuracy}
    if step == DIAGNOSIS:
        diagnosis = {known.casefold(): found for known, found in DIAGNOSIS_FIGURES.items()}.get(name)
        figures |= {} if diagnosis is None else dataclasses.asdict(diagnosis)
    return figures


@dataclasses.dataclass(frozen=True)
class TransferSample:
    """Table 4: the data read without fine-tuning.

    Attributes:
      num_cases: with a single label.
      num_classes: of these cases.
    """

    num_cases: int
    num_classes: int


TRANSFER_SAMPLES: dict[str, TransferSample] = {"NIH ChestX-ray8": TransferSample(985, 8)}
"""Table 4, by the origin of the cases; its scores are unknown."""

READER_ACCURACY: dict[str, dict[str, float]] = {
    "clinician": {DETECTION: 0.7212, DISTRIBUTION: 0.6602, LOCATION: 0.6603, SECONDARY_EFFECTS: 0.9097},
    TEACHER: {DETECTION: 0.8851, SECONDARY_EFFECTS: 0.7524},
    STUDENT: {DETECTION: 0.8037, DISTRIBUTION: 0.7263, LOCATION: 0.6946, SECONDARY_EFFECTS: 0.7397},
}
"""Tables 5 and 10: accuracy on 200 cases that clinicians also read; missing figures were not printed."""


@dataclasses.dataclass(frozen=True)
class CostFigures:
    """Table 11: one model on the authors' GPU.

    Attributes:
      num_parameters: of all networks that run, including both towers of frozen encoders.
      num_trained: of the trained networks.
      milliseconds: a sample, in batches of four.
      milliseconds_of_four: a batch of four.
    """

    num_parameters: int
    num_trained: int
    milliseconds: float
    milliseconds_of_four: float


COST: dict[str, CostFigures] = {
    TEACHER: CostFigures(283_664_427, 22_904_874, 22.81, 91.23),
    STUDENT: CostFigures(151_562_539, 285_226, 1.51, 6.02),
}
"""Table 11."""

COST_MEGABYTES = 1219.72
"""Table 11: memory in MB, printed once."""
