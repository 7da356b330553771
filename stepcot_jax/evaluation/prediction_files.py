"""Predictions on a split with the facts that statistics need, as one .npz file without pickle.

The file holds the patients (for the bootstrap) and the facts (for subgroups) with the logits, so that every figure can
be recomputed from it alone, without the data or the checkpoint.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.distributions import describe_difference
from stepcot_jax.evaluation.evaluator import Predictions
from stepcot_jax.host.array_files import read_arrays
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_whole

FACTS = ("case_id", "patient_id", "image_path", "origin", "view", "sex", "age")
"""Facts of each case, as text; "" where unknown."""

_FORMAT = "stepcot_jax predictions 1"
_EXPECTED = "expected a predictions file of a run"


@dataclasses.dataclass(frozen=True)
class SplitPredictions:
    """Predictions on a split, and the facts of its cases.

    Attributes:
      predictions: position, labels and logits of each case.
      facts: for each of `FACTS` texts [case], "" where unknown; "age" is in years.
    """

    predictions: Predictions
    facts: Mapping[str, npt.NDArray[np.str_]]


def write_predictions(path: str | os.PathLike[str], split: SplitPredictions, chain: Chain) -> None:
    """Write an .npz file atomically.

    Args:
      chain: the steps of the labels and logits; their names and options are written too.
    """
    problem = _find_problem(split, chain)
    if problem:
        raise ValueError(problem)
    predictions = split.predictions
    arrays: dict[str, Any] = {
        "about": np.frombuffer(json.dumps(_about(chain)).encode(), dtype=np.uint8),
        "index": predictions.index.astype(np.int32),
        "labels": predictions.labels.astype(np.int32),
        **{f"logits/{model}": logits.astype(np.float32) for model, logits in predictions.logits.items()},
        **{f"facts/{fact}": np.asarray(split.facts[fact], dtype=np.str_) for fact in FACTS},
    }
    with writing_whole(path) as file:
        # Not compressed, so that the size of a file bounds the memory that reading it takes.
        np.savez(file, allow_pickle=False, **arrays)


def read_predictions(path: str | os.PathLike[str], chain: Chain) -> SplitPredictions:
    """Read a file of `write_predictions`.

    Args:
      chain: the expected steps; the wording of questions may differ, names and options may not.
    """
    arrays = read_arrays(pathlib.Path(path), accepted="predictions of a run", expected=_EXPECTED)
    _check_about(path, arrays, chain)
    missing = [name for name in ("index", "labels", *(f"facts/{fact}" for fact in FACTS)) if name not in arrays]
    if missing:
        raise BadInput(f"{path}: array {missing[0]!r} is missing; {_EXPECTED}")
    split = SplitPredictions(
        predictions=Predictions(
            index=arrays["index"],
            labels=arrays["labels"],
            logits={
                name.removeprefix("logits/"): array for name, array in arrays.items() if name.startswith("logits/")
            },
        ),
        facts={fact: arrays[f"facts/{fact}"] for fact in FACTS},
    )
    problem = _find_problem(split, chain)
    if problem:
        raise BadInput(f"{path}: {problem}")
    return split


def join_models(parts: Mapping[str, tuple[SplitPredictions, str]]) -> SplitPredictions:
    """Join models of several runs on the same cases for paired comparisons; cases are matched by `case_id`."""
    names = list(parts)
    base = parts[names[0]][0]
    place = {case: position for position, case in enumerate(base.facts["case_id"].tolist())}
    logits = {}
    for name, (split, model) in parts.items():
        found = split.facts["case_id"].tolist()
        if len(place) != len(base.facts["case_id"]) or set(found) != place.keys() or len(found) != len(place):
            raise BadInput(f"{name}: its {len(found)} cases are not the {len(place)} of {names[0]}, each once")
        order = np.argsort([place[case] for case in found])
        if not np.array_equal(split.predictions.labels[order], base.predictions.labels):
            raise BadInput(f"{name}: its labels differ from those of {names[0]} for the same cases")
        if model not in split.predictions.logits:
            raise BadInput(f"{name}: model {model!r} is not one of {', '.join(split.predictions.logits)}")
        logits[name] = split.predictions.logits[model][order]
    return SplitPredictions(Predictions(base.predictions.index, base.predictions.labels, logits), base.facts)


def _about(chain: Chain) -> dict[str, object]:
    return {"format": _FORMAT, "steps": [[step.name, list(step.options)] for step in chain.steps]}


def _check_about(path: str | os.PathLike[str], arrays: Mapping[str, npt.NDArray], chain: Chain) -> None:
    try:
        about = json.loads(arrays["about"].tobytes())
        layout = about["format"]
        steps = [(str(name), tuple(str(option) for option in options)) for name, options in about["steps"]]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise BadInput(f"{path}: the description of the steps is missing; {_EXPECTED}") from None
    if layout != _FORMAT:
        raise BadInput(f"{path}: layout {str(layout)[:80]!r} is not {_FORMAT!r}")
    difference = describe_difference(steps, chain)
    if difference:
        raise BadInput(f"{path}: predictions of another chain: {difference}")


def _find_problem(split: SplitPredictions, chain: Chain) -> str | None:
    predictions = split.predictions
    labels, num_cases = predictions.labels, len(predictions.index)
    if predictions.index.ndim != 1 or labels.shape != (num_cases, chain.num_steps):
        return f"labels must have shape {[num_cases, chain.num_steps]} [case, step]; got {list(labels.shape)}"
    if predictions.index.dtype.kind != "i" or labels.dtype.kind != "i":
        return f"index and labels must be integers; got {predictions.index.dtype} and {labels.dtype}"
    for position, step in enumerate(chain.steps):
        own = labels[:, position]
        wrong = (own != NOT_ANNOTATED) & ((own < 0) | (own >= step.num_answers))
        if wrong.any():
            return (
                f"labels of step {step.name!r} must be 0 to {step.num_answers - 1} or {NOT_ANNOTATED}; "
                f"got {own[wrong][0]}"
            )
    widest = max(chain.answers_per_step)
    for model, logits in predictions.logits.items():
        if logits.ndim != 3 or logits.shape[:2] != labels.shape or logits.shape[2] < widest or logits.dtype.kind != "f":
            return (
                f"logits of {model!r} must be numbers of shape [{num_cases}, {chain.num_steps}, {widest} or more]; "
                f"got {logits.dtype} {list(logits.shape)}"
            )
    for fact in FACTS:
        if fact not in split.facts or split.facts[fact].shape != (num_cases,) or split.facts[fact].dtype.kind != "U":
            return f"facts, {fact!r} must be a text for each of the {num_cases} cases, '' where unknown"
    return _find_bad_age(split.facts["age"])


def _find_bad_age(ages: npt.NDArray[np.str_]) -> str | None:
    for case, age in enumerate(ages.tolist()):
        try:
            good = not age or 0 <= float(age) <= 150
        except ValueError:
            good = False
        if not good:
            return f"facts, 'age' of case {case}: {age[:20]!r} is not a number of years, 0 to 150, or ''"
    return None
