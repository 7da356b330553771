"""Answers that a person gives in place of the network's: from "STEP=ANSWER" to labels."""

import difflib
from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Int32

from stepcot_jax.chain import NOT_ANNOTATED, Chain, fold
from stepcot_jax.host.errors import BadInput
from stepcot_jax.predict.reader import NOT_GIVEN


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
