"""Predictions on a split: collect them from batches, write and read them, join those of several runs.

Every case of the split counts exactly once, however the batches were padded or ordered.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from stepcot_jax import __version__
from stepcot_jax.chain import Chain
from stepcot_jax.host.array_files import read_arrays
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_whole
from stepcot_jax.host.text import one_line

# Logits and probabilities of each step, without the padding of the answer axis.


_Float = TypeVar("_Float", bound=np.floating)


def softmax(logits: npt.NDArray[_Float], axis: int = -1) -> npt.NDArray[_Float]:
    """Return the softmax along an axis; importing SciPy's takes a tenth of the time to a first answer."""
    weights: npt.NDArray[_Float] = np.exp(logits - logits.max(axis=axis, keepdims=True))
    weights /= weights.sum(axis=axis, keepdims=True)
    return weights


def log_softmax(logits: npt.NDArray[_Float], axis: int = -1) -> npt.NDArray[_Float]:
    """Return the logarithm of the softmax along an axis."""
    shifted: npt.NDArray[_Float] = logits - logits.max(axis=axis, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return shifted


def logits_by_step(
    logits: npt.NDArray[np.floating], *, chain: Chain, model: str = "model"
) -> tuple[npt.NDArray[np.float64], ...]:
    """Return each step's logits [case, answer] without padding, which are at least as wide as the widest step."""
    widest = max(chain.answers_per_step)
    if logits.ndim != 3 or logits.shape[1] != chain.num_steps or logits.shape[2] < widest:
        raise ValueError(
            f"{model}: logits must have shape [case, {chain.num_steps}, {widest} or more]; got {logits.shape}"
        )
    unpadded = []
    for position, step in enumerate(chain.steps):
        part = logits[:, position, : step.num_answers].astype(np.float64)
        if not np.isfinite(part).all():
            num_bad = int((~np.isfinite(part)).any(axis=1).sum())
            raise FloatingPointError(f"{model}, step {step.name!r}: logits of {num_bad} cases are not finite")
        unpadded.append(part)
    return tuple(unpadded)


def probabilities_by_step(
    logits: npt.NDArray[np.floating], *, chain: Chain, model: str = "model"
) -> tuple[npt.NDArray[np.float64], ...]:
    """Return each step's distributions [case, answer]; arguments and errors are those of `logits_by_step`."""
    return tuple(softmax(of_step, axis=1) for of_step in logits_by_step(logits, chain=chain, model=model))


def refuse_other_chain(what: str, steps: Sequence[tuple[str, tuple[str, ...]]], chain: Chain) -> None:
    """Refuse what is of a chain of other step names or options, whatever the questions, and say where they differ."""
    if len(steps) != chain.num_steps:
        raise BadInput(f"{what}: it has {len(steps)} steps, not {chain.num_steps}")
    for number, ((name, options), step) in enumerate(zip(steps, chain.steps, strict=True), start=1):
        if (name, options) != (step.name, step.options):
            found = f"step {number} is {name!r} with options {list(options)}"
            raise BadInput(f"{what}: {found}, not {step.name!r} with {list(step.options)}")


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Predictions of one or more models on a split, in the split's order, without padding rows.

    Attributes:
      index: int32 [case], position of the case in the split, ascending.
      labels: int32 [case, step], `NOT_ANNOTATED` where unannotated.
      logits: for each model float32 [case, step, answer]; padding beyond a step's own answers.
    """

    index: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    logits: dict[str, npt.NDArray[np.float32]]


def collect(predict: Callable[[Any], Mapping[str, Any]], batches: Iterable[Mapping[str, Any]]) -> Predictions:
    """Collect logits and labels of every case in the batches.

    Args:
      predict: from a batch to padded logits [case, step, answer] by model name.
      batches: dicts with `labels` int32 [case, step], `present` bool [case] (False for a padding row), `index`
        int32 [case] (position of the case in the split), and the inputs of `predict`.

    Returns:
      The cases in the order of `index`.

    Raises:
      ValueError: there is no batch, a case comes twice, the models change between batches, or logits and labels do
        not fit.
    """
    parts = [_collect_batch(predict, batch) for batch in batches]
    if not parts:
        raise ValueError("there is no batch to evaluate")
    names = list(parts[0].logits)
    for part in parts:
        if set(part.logits) != set(names):
            raise ValueError(f"a batch has models {sorted(part.logits)}, the first one {sorted(names)}")
    index = np.concatenate([part.index for part in parts])
    cases, occurrences = np.unique(index, return_counts=True)
    if (occurrences > 1).any():
        repeated = cases[occurrences > 1]
        raise ValueError(f"{len(repeated)} cases come more than once, the first at index {repeated[:5].tolist()}")
    order = np.argsort(index)
    return Predictions(
        index=index[order],
        labels=np.concatenate([part.labels for part in parts])[order],
        logits={name: np.concatenate([part.logits[name] for part in parts])[order] for name in names},
    )


def _collect_batch(predict: Callable[[Any], Mapping[str, Any]], batch: Mapping[str, Any]) -> Predictions:
    import jax  # takes a second to import, which scoring stored answers does not need

    predicted = predict(batch)
    on_host, labels, present, index = jax.device_get(
        (dict(predicted), batch["labels"], batch["present"], batch["index"])
    )
    present = np.asarray(present, dtype=bool)
    labels = np.asarray(labels, dtype=np.int32)
    # `predicted` has the order of the models: a dict that went through a JAX tree comes back sorted.
    logits = {name: np.asarray(on_host[name], dtype=np.float32) for name in predicted}
    for name, values in logits.items():
        if values.ndim != 3 or values.shape[:2] != labels.shape:
            raise ValueError(f"{name}: logits {values.shape} do not fit labels {labels.shape} [case, step]")
    return Predictions(
        index=np.asarray(index, dtype=np.int32)[present],
        labels=labels[present],
        logits={name: values[present] for name, values in logits.items()},
    )


# Predictions on a split with the facts that statistics need, as one .npz file without pickle.
#
# The file holds the patients (for the bootstrap) and the facts (for subgroups) with the logits: every figure can be
# recomputed from it without the data or the checkpoint.


FACTS = ("case_id", "patient_id", "image_path", "origin", "view", "sex", "age")
"""Facts of each case, as text; "" where unknown."""

_EXPECTED = "expected a predictions file of a run"


@dataclasses.dataclass(frozen=True)
class SplitPredictions:
    """Predictions on a split, and the facts of its cases."""

    predictions: Predictions  # position, labels and logits of each case
    facts: Mapping[str, npt.NDArray[np.str_]]  # for each of `FACTS` texts [case], "" where unknown; "age" is in years

    def change(self, **changes: Any) -> Self:
        """Return the split with other labels or logits."""
        return dataclasses.replace(self, predictions=dataclasses.replace(self.predictions, **changes))

    def take(self, cases: npt.ArrayLike) -> Self:
        """Return the predictions on some cases, by position or by a mask."""
        predictions, chosen = self.predictions, np.asarray(cases)
        logits = {model: values[chosen] for model, values in predictions.logits.items()}
        taken = Predictions(predictions.index[chosen], predictions.labels[chosen], logits)
        return dataclasses.replace(
            self, predictions=taken, facts={fact: values[chosen] for fact, values in self.facts.items()}
        )


class ValidationPredictions(SplitPredictions):
    """Predictions on the validation split, from which thresholds may be chosen; from the test split they may not."""


def write_predictions(path: str | os.PathLike[str], split: SplitPredictions, chain: Chain) -> None:
    """Write an .npz file atomically, with the names and options of the steps."""
    predictions = split.predictions
    about = {"stepcot_jax": __version__, "steps": [[step.name, list(step.options)] for step in chain.steps]}
    arrays: dict[str, Any] = {
        "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
        "index": predictions.index.astype(np.int32),
        "labels": predictions.labels.astype(np.int32),
        **{f"logits/{model}": logits.astype(np.float32) for model, logits in predictions.logits.items()},
        **{f"facts/{fact}": np.asarray(split.facts[fact], dtype=np.str_) for fact in FACTS},
    }
    with writing_whole(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_predictions(path: str | os.PathLike[str], chain: Chain) -> SplitPredictions:
    """Read a file of `write_predictions`; the wording of questions may differ from the chain's."""
    arrays = read_arrays(pathlib.Path(path), accepted="predictions of a run", expected=_EXPECTED)
    try:
        about = json.loads(arrays.pop("about").tobytes())
        steps = [(name, tuple(options)) for name, options in about["steps"]]
        logits = {name.removeprefix("logits/"): array for name, array in arrays.items() if name.startswith("logits/")}
        predictions = Predictions(index=arrays["index"], labels=arrays["labels"], logits=logits)
        split = SplitPredictions(predictions, {fact: arrays[f"facts/{fact}"] for fact in FACTS})
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{path}: {one_line(error)} is missing (read by stepcot_jax {__version__}); {_EXPECTED}"
        ) from None
    refuse_other_chain(f"{path}: predictions of another chain", steps, chain)
    return split


def join_models(parts: Mapping[str, tuple[SplitPredictions, str]]) -> SplitPredictions:
    """Join models of several runs on the same cases for paired comparisons; cases are matched by `case_id`."""
    names = list(parts)
    base = parts[names[0]][0]
    rows = {case: position for position, case in enumerate(base.facts["case_id"].tolist())}
    logits = {}
    for name, (split, model) in parts.items():
        cases = split.facts["case_id"].tolist()
        if len(rows) != len(base.facts["case_id"]) or set(cases) != rows.keys() or len(cases) != len(rows):
            raise BadInput(f"{name}: its {len(cases)} cases are not the {len(rows)} of {names[0]}, each once")
        order = np.argsort([rows[case] for case in cases])
        if not np.array_equal(split.predictions.labels[order], base.predictions.labels):
            raise BadInput(f"{name}: its labels differ from those of {names[0]} for the same cases")
        if model not in split.predictions.logits:
            raise BadInput(f"{name}: model {model!r} is not one of {', '.join(split.predictions.logits)}")
        logits[name] = split.predictions.logits[model][order]
    return SplitPredictions(Predictions(base.predictions.index, base.predictions.labels, logits), base.facts)
