"""Answers that a person gives in place of the network's: from "STEP=ANSWER" to labels, and what a network accepts."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int, Int32

from stepcot_jax.chain import NOT_ANNOTATED, Chain, fold
from stepcot_jax.host.errors import BadInput
from stepcot_jax.predict.trained_model import Trained

NOT_GIVEN = -1
"""In given answers: the network answers this step."""


def read_corrections(texts: Iterable[str]) -> dict[str, str]:
    """Split texts such as "Anatomical location=Lower lung zone" into steps and answers.

    Raises:
      BadInput: a text has no "=", or a step occurs twice.
    """
    given: dict[str, str] = {}
    for text in texts:
        name, sign, answer = text.partition("=")
        if not sign or not name.strip() or not answer.strip():
            raise BadInput(f'--given: {text[:80]!r} is not "STEP=ANSWER"')
        if fold(name) in {fold(other) for other in given}:
            raise BadInput(f"--given: step {name[:80]!r} occurs twice")
        given[name.strip()] = answer.strip()
    return given


def label_corrections(given: Mapping[str, str], chain: Chain) -> Int32[np.ndarray, "step"]:
    """Return the labels of given answers, `NOT_GIVEN` for the other steps.

    Args:
      given: answers by step: its name or its number from 1; an option's text or letter. Case and spacing are ignored.
      chain: the steps.

    Raises:
      BadInput: the chain has no such step or answer; the message lists them and the nearest.
    """
    labels = np.full(chain.num_steps, NOT_GIVEN, np.int32)
    for name, answer in given.items():
        place = _find_step(name, chain)
        if labels[place] != NOT_GIVEN:
            raise BadInput(f"given answers: step {chain.steps[place].name!r} occurs twice")
        labels[place] = _find_answer(answer, chain, place)
    return labels


def check_given(given_answers: Any, trained: Trained, *, model: str, num_cases: int) -> Int[np.ndarray, "case step"]:
    """Return given answers as an array; `NOT_GIVEN` everywhere for None.

    Args:
      given_answers: labels [case, step], or `NOT_GIVEN`; None for none.
      trained: the run.
      model: "teacher" or "student".
      num_cases: number of cases to read.

    Raises:
      BadInput: they are not labels of the chain, or the network takes none.
    """
    shape = (num_cases, trained.chain.num_steps)
    if given_answers is None:
        return np.full(shape, NOT_GIVEN, np.int32)
    given = np.asarray(given_answers, np.int32)
    most = np.asarray(trained.chain.answers_per_step, np.int32)
    if given.shape != shape or (given < NOT_GIVEN).any() or (given >= most[None]).any():
        raise BadInput(
            f"given_answers must be labels of shape {list(shape)}, {NOT_GIVEN} for none; got {list(given.shape)}, "
            f"{given.min(initial=0)} to {given.max(initial=0)}"
        )
    if (given != NOT_GIVEN).any():
        check_takes_answers(trained, model=model)
    return given


def check_takes_answers(trained: Trained, *, model: str) -> None:
    """Refuse given answers for a network whose later steps cannot follow them.

    Raises:
      BadInput: the network is a teacher without memory.
    """
    teacher = trained.settings.teacher
    if model == "teacher" and not (teacher.memory and teacher.write_back):
        raise BadInput(
            "given answers need config.teacher.memory=True and write_back=True; this run has "
            f"memory={teacher.memory}, write_back={teacher.write_back}"
        )


LEAST_MOVEMENT = 0.01
"""Mean movement of later steps (`evaluation.interventions.measure_reliance`) from which corrections are promised."""


def follows_corrections(trained: Trained, *, model: str) -> bool:
    """Return whether the run measured that given answers move the network's later ones; False if it did not measure."""
    return (trained.reliance.get(model) or 0.0) >= LEAST_MOVEMENT


def _find_step(name: str, chain: Chain) -> int:
    names = {fold(step.name): place for place, step in enumerate(chain.steps)}
    numbers = {str(place + 1): place for place in range(chain.num_steps)}
    places = numbers | names
    if fold(name) in places:
        return places[fold(name)]
    expected = ", ".join(step.name for step in chain.steps)
    nearest = chain.steps[places[_nearest(fold(name), names)]].name
    raise BadInput(f"given answers: step {name[:80]!r} is not one of {expected} (nearest: {nearest})")


def _find_answer(answer: str, chain: Chain, place: int) -> int:
    step = chain.steps[place]
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


def _nearest(found: str, accepted: Iterable[str]) -> str:
    return difflib.get_close_matches(found[:200], list(accepted), n=1, cutoff=0.0)[0]
