"""Answers that a person gives in place of the network's: from "STEP=ANSWER" to distributions."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Float, Float32, Int

from stepcot_jax.chain import NOT_ANNOTATED, Chain, fold
from stepcot_jax.evaluation.interventions import as_distributions
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json
from stepcot_jax.reading.trained_model import Trained

NOT_GIVEN = -1  # In given labels: the network answers this step

Given = Mapping[str, str | Mapping[str, float]]  # Answers by step, certain or with probabilities, see `give_answers`

_PERCENT = re.compile(r"(?P<option>.*\S)\s+(?P<percent>\d{1,3}(\.\d+)?)\s*%")
_TOLERANCE = 1e-3
_MOST_NAMED = 50  # steps that an error lists


class _SavedStep(msgspec.Struct):
    """The fields of a step of `ChainReading.as_dict` about a person's answer."""

    step: str
    given: bool
    given_probabilities: dict[str, float] = msgspec.field(default_factory=dict)


class _SavedReading(msgspec.Struct):
    steps: list[_SavedStep]


_SAVED = "expected a reading as the demo saves it, or one line of predict's --json"


def read_corrections(texts: Iterable[str]) -> dict[str, str | Mapping[str, float]]:
    """Return the answers of texts: "STEP=ANSWER", or the path of a saved reading, which ends in .json."""
    given: dict[str, str | Mapping[str, float]] = {}
    for text in texts:
        for name, answer in _read_saved(text) if text.endswith(".json") else [_split(text)]:
            if fold(name) in {fold(other) for other in given}:
                raise BadInput(f"--given: step {name[:80]!r} occurs twice")
            given[name] = answer
    return given


def _split(text: str) -> tuple[str, str]:
    name, sign, answer = text.partition("=")
    if not sign or not name.strip() or not answer.strip():
        raise BadInput(f'--given: {text[:80]!r} is not "STEP=ANSWER", nor a file that ends in .json')
    return name.strip(), answer.strip()


def _read_saved(path: str) -> Sequence[tuple[str, Mapping[str, float]]]:
    saved = read_json(path, _SavedReading, accepted=_SAVED)
    answers: list[tuple[str, Mapping[str, float]]]
    answers = [(step.step, step.given_probabilities) for step in saved.steps if step.given]
    if not answers:
        raise BadInput(f"{path}: no answer was given in this reading; {_SAVED} with a correction")
    return answers


def given_distributions(given: Given, chain: Chain) -> Float32[np.ndarray, "step answer"]:
    """Return given answers as distributions; what is left up to 1 is spread over the options that are not named."""
    shares = np.zeros((chain.num_steps, max(chain.answers_per_step)), np.float32)
    for name, answer in given.items():
        position = _find_step(name, chain)
        if shares[position].any():
            raise BadInput(f"given answers: step {chain.steps[position].name!r} occurs twice")
        named = _read_percent(answer, chain, position) if isinstance(answer, str) else answer
        shares[position, : chain.steps[position].num_answers] = _spread(named, chain, position)
    return shares


def _read_percent(answer: str, chain: Chain, position: int) -> dict[str, float]:
    """Split "Nodular 70 %" into option and probability; 1 without a percentage, also where an option ends with one."""
    match = _PERCENT.fullmatch(answer.strip())
    with contextlib.suppress(BadInput):
        match = None if chain.steps[position].read_answer(answer) != NOT_ANNOTATED else match
    return {answer: 1.0} if match is None else {match["option"]: float(match["percent"]) / 100}


def _spread(named: Mapping[str, float], chain: Chain, position: int) -> Float[np.ndarray, "answer"]:
    step, shares = chain.steps[position], np.full(chain.steps[position].num_answers, np.nan)
    for option, share in named.items():
        label = _find_answer(option, chain, position)
        if not 0 <= share <= 1:
            raise BadInput(f"given answers, {step.name}, {option[:80]!r}: probability {share} is not from 0 to 1")
        if not np.isnan(shares[label]):
            raise BadInput(f"given answers, {step.name}: {step.options[label]!r} occurs twice")
        shares[label] = share
    left, num_others = 1 - np.nansum(shares), int(np.isnan(shares).sum())
    if left < -_TOLERANCE or (not num_others and left > _TOLERANCE):
        raise BadInput(
            f"given answers, {step.name}: the probabilities sum to {1 - left:.3f}; expected at most 1, and 1 if all "
            "options are named"
        )
    spread = np.where(np.isnan(shares), max(left, 0.0) / max(num_others, 1), shares)
    if np.nan_to_num(shares).max() <= np.max(spread[np.isnan(shares)], initial=0.0):
        raise BadInput(
            f"given answers, {step.name}: {', '.join(map(repr, named)) or 'nothing'} leaves {100 * spread.max():.0f} % "
            "for each other option; name the most probable one"
        )
    return spread


def check_given(
    given_answers: Any, trained: Trained, *, model: str, num_cases: int, joined: bool = False
) -> Float32[np.ndarray, "case step answer"]:
    """Return given labels [case, step] or distributions [case, step, answer] as distributions; zeros for None.

    With a joint model (`joined`) every network takes given answers.
    """
    chain = trained.chain
    shape = (num_cases, chain.num_steps, max(chain.answers_per_step))
    if given_answers is None:
        return np.zeros(shape, np.float32)
    given, most = np.asarray(given_answers), np.asarray(chain.answers_per_step)
    if given.ndim == 2:
        if given.shape != shape[:2] or (given < NOT_GIVEN).any() or (given >= most).any():
            raise BadInput(
                f"given_answers must be labels of shape {list(shape[:2])}, {NOT_GIVEN} for none; got "
                f"{list(given.shape)}, {given.min(initial=0)} to {given.max(initial=0)}"
            )
        given = as_distributions(given, chain)
    given = given.astype(np.float32)
    if given.shape != shape or not _are_distributions(given, most):
        raise BadInput(
            f"given_answers must be distributions of shape {list(shape)}, which sum to 1 over a step's own answers, or "
            f"zeros for none; got {list(given.shape)}"
        )
    if given.any() and not joined:
        check_accepts_answers(trained, model=model)
    return given


def _are_distributions(given: Float32[np.ndarray, "case step answer"], most: Int[np.ndarray, "step"]) -> bool:
    sums, padding = given.sum(axis=-1), np.arange(given.shape[-1]) >= most[:, None]
    complete = (np.abs(sums - 1) < _TOLERANCE) | (sums == 0)
    return bool(complete.all() and (given >= 0).all() and not given[:, padding].any())


def check_accepts_answers(trained: Trained, *, model: str) -> None:
    """Refuse given answers for a network whose later steps cannot follow them."""
    if model == "plain":
        raise BadInput(
            "the plain network takes no given answers; a reading with its joint model does (not as published)"
        )
    if not accepts_answers(trained, model=model):
        raise BadInput(
            "given answers need config.teacher.memory=True and write_back=True; this run has "
            "memory={}, write_back={}".format(*trained.run.memory)
        )


def accepts_answers(trained: Trained, *, model: str) -> bool:
    """Return whether a network accepts given answers; neither plain nor a teacher without memory or write-back does."""
    return model != "plain" and (model != "teacher" or all(trained.run.memory))


LEAST_MOVEMENT = 0.01
"""Mean movement of later steps (`interventions.measure_reliance`) from which a network follows given answers."""


def follows_corrections(trained: Trained, *, model: str) -> bool:
    """Return whether given answers moved the network's later ones when the run measured it; False without a measure."""
    return (trained.reliance.get(model) or 0.0) >= LEAST_MOVEMENT


def _find_step(name: str, chain: Chain) -> int:
    name = str(name)
    names = {fold(step.name): position for position, step in enumerate(chain.steps)}
    numbers = {str(position + 1): position for position in range(chain.num_steps)}
    positions = numbers | names
    if fold(name) in positions:
        return positions[fold(name)]
    named = chain.steps if chain.num_steps <= _MOST_NAMED else ()
    expected = ", ".join(step.name for step in named) or f"the {chain.num_steps:,} steps of reading/chain.json"
    nearest = chain.steps[positions[_nearest(fold(name), names)]].name
    raise BadInput(f"given answers: step {name[:80]!r} is not one of {expected} (nearest: {nearest})")


def _find_answer(answer: str, chain: Chain, position: int) -> int:
    step = chain.steps[position]
    try:
        label = step.read_answer(answer)
    except BadInput:
        label = NOT_ANNOTATED
    if label == NOT_ANNOTATED:
        options = {fold(option): option for option in step.options}
        raise BadInput(
            f"given answers, {step.name}: {answer[:80]!r} is not one of {', '.join(step.lettered_options)} (nearest: "
            f"{options[_nearest(fold(answer), options)]})"
        )
    return label


def _nearest(text: str, accepted: Iterable[str]) -> str:
    return difflib.get_close_matches(text[:200], list(accepted), n=1, cutoff=0.0)[0]
