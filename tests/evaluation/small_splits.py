"""Small chains and splits shared by the tests of the statistics."""

import numpy as np

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.predictions import FACTS, Predictions, SplitPredictions

_FIRST = Step("Detection", "Anything?", ("No", "Yes")), Step("Distribution", "How?", ("Focal", "Diffuse", "N/A"))
CHAIN = Chain((*_FIRST, Step("Diagnosis", "What?", ("Normal", "Mass", "Effusion", "Nodule"))))


def draw_labels(rng: np.random.Generator, num_cases: int, *, missing: float = 0.2) -> np.ndarray:
    labels = np.stack([rng.integers(0, step.num_answers, num_cases) for step in CHAIN.steps], axis=1)
    labels[rng.random(labels.shape) < missing] = NOT_ANNOTATED
    return labels.astype(np.int32)


def draw_logits(rng: np.random.Generator, labels: np.ndarray, *, skill: float = 1.0) -> np.ndarray:
    """Random logits plus `skill` for the true answer, rounded so that ties occur, padded with -1e9."""
    logits = np.round(rng.normal(0, 1.5, (len(labels), 3, 4)), 1).astype(np.float32)
    for position, step in enumerate(CHAIN.steps):
        known = labels[:, position] >= 0
        logits[known, position, labels[known, position]] += skill
        logits[:, position, step.num_answers :] = -1e9
    return logits


def draw_step(seed: int, num_cases: int, num_answers: int) -> tuple[np.ndarray, np.ndarray]:
    """Coarse probabilities with ties and bin edges, and labels of which some are missing."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 4, (num_cases, num_answers)) + 1e-300
    labels = rng.integers(0, num_answers, num_cases)
    labels[rng.random(num_cases) < 0.2] = NOT_ANNOTATED
    return weights / weights.sum(axis=1, keepdims=True), labels


def make_split(
    seed: int = 0, *, num_cases: int = 60, num_patients: int = 25, missing: float = 0.2, skills: tuple = (2.0, 1.0)
) -> SplitPredictions:
    rng = np.random.default_rng(seed)
    labels = draw_labels(rng, num_cases, missing=missing)
    patients = rng.integers(0, num_patients, num_cases)
    models = ("teacher", "student", *(f"model {number}" for number in range(2, len(skills))))
    logits = {model: draw_logits(rng, labels, skill=skill) for model, skill in zip(models, skills, strict=False)}
    facts = {
        "case_id": [f"case-{case}" for case in range(num_cases)],
        "patient_id": [f"patient-{patient}" for patient in patients],
        "image_path": [f"images/{case}.png" for case in range(num_cases)],
        "origin": [("Ward A", "Ward B")[patient % 2] for patient in patients],
        "view": [("PA", "AP", "")[case % 3] for case in range(num_cases)],
        "sex": [("F", "M", "")[patient % 3] for patient in patients],
        "age": [("", "17", "18", "39.5", "40", "64", "65", "0.5")[patient % 8] for patient in patients],
    }
    return of_arrays(labels, logits, **facts)


def of_arrays(labels: np.ndarray, logits: dict[str, np.ndarray], **facts) -> SplitPredictions:
    texts = {fact: np.array(facts.get(fact, [""] * len(labels)), np.str_) for fact in FACTS}
    return SplitPredictions(Predictions(np.arange(len(labels), dtype=np.int32), labels.astype(np.int32), logits), texts)
