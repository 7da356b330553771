"""Decode the most probable consistent chain by exact dynamic programming, and measure what that changes.

The score of a chain is the sum over its steps of the answer's log probability, plus `transition_weight` times the
learned log share of each answer after the one before. Rules bind neighbouring steps, and step 1 with every later one:
given the answer of step 1, the rest is a chain of neighbours, which the Viterbi recursion solves exactly.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from stepcot_jax.chain import Chain, find_one_answer
from stepcot_jax.evaluation.consistency import Rules, inconsistent
from stepcot_jax.evaluation.distributions import own_logits
from stepcot_jax.evaluation.evaluator import Predictions
from stepcot_jax.evaluation.metrics import answer_accuracy, mean_over_steps
from stepcot_jax.evaluation.resamples import Weights, count_once, weighted_mean
from stepcot_jax.host.errors import BadInput

_LEAST_LOG_PROBABILITY = -1e6  # an answer of probability 0 is still better than a contradiction


def decode_consistent(
    log_probabilities: tuple[npt.NDArray[np.float64], ...], rules: Rules, *, transition_weight: float = 0.0
) -> npt.NDArray[np.int64]:
    """Decode the most probable chain of each case that breaks no rule.

    Args:
      log_probabilities: for each step [case, answer]; minus infinity for an impossible answer, which still gives way
        to the rules.

    Returns:
      int [case, step]; one of several equally probable chains.
    """
    _check_scores(log_probabilities, rules)
    if not 0 <= transition_weight < math.inf:
        raise ValueError(f"transition_weight must be 0 or more; got {transition_weight}")
    scores = [np.maximum(own, _LEAST_LOG_PROBABILITY) for own in log_probabilities]
    num_cases, num_steps = len(scores[0]), len(scores)
    best = np.full(num_cases, -np.inf)
    chains = np.zeros((num_cases, num_steps), dtype=np.int64)
    possible = False
    for first in range(rules.answers_per_step[0]):
        moves = _moves_after(first, rules, transition_weight=transition_weight)
        if moves is None:
            continue
        possible = True
        score, rest = _decode_rest(scores[0][:, first], scores[1:], moves)
        better = score > best
        best = np.where(better, score, best)
        chains[better, 0] = first
        chains[better, 1:] = rest[better]
    if not possible:
        raise BadInput("consistency rules: no chain keeps them all")
    return chains


def answer_and_decode(
    predictions: Predictions, chain: Chain, rules: Rules, *, model: str, transition_weight: float = 0.0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return a model's answers [case, step], each step for itself, and the decoded chains [case, step]."""
    scores = tuple(log_softmax(own, axis=1) for own in own_logits(predictions.logits[model], chain=chain, model=model))
    before = np.stack([own.argmax(axis=1) for own in scores], axis=1)
    return before, decode_consistent(scores, rules, transition_weight=transition_weight)


def decoding_effect(
    predictions: Predictions, chain: Chain, rules: Rules, *, transition_weight: float = 0.0
) -> dict[str, dict[str, Any]]:
    """Measure what decoding changes for each model.

    Returns:
      By model name the figures of `decoding_figures` on the split itself: numbers, or lists of numbers for each step.
    """
    once, effects = count_once(len(predictions.labels)), {}
    for model in predictions.logits:
        before, after = answer_and_decode(predictions, chain, rules, model=model, transition_weight=transition_weight)
        found = decoding_figures(once, before=before, after=after, labels=predictions.labels, rules=rules)
        effects[model] = {name: values[0].tolist() for name, values in found.items()}
    return effects


def decoding_figures(
    weights: Weights,
    *,
    before: npt.NDArray[np.integer],
    after: npt.NDArray[np.integer],
    labels: npt.NDArray[np.integer],
    rules: Rules,
) -> dict[str, npt.NDArray[np.float64]]:
    """Compute what decoding changes in each resample.

    Args:
      before: [case, step], each step answered for itself.
      after: [case, step], the decoded chains.
      labels: [case, step], `NOT_ANNOTATED` where unannotated.

    Returns:
      Shares in 0..1 [resample], NaN where undefined: `share_inconsistent` of the chains have a contradiction before,
      `share_changed` are changed by decoding (without a `transition_weight` the same ones); `accuracy` of each step
      [resample, step], `mean_accuracy` over the steps with two or more answers (`metrics.mean_over_steps`) and
    """
    if not before.shape == after.shape == labels.shape:
        raise ValueError(
            "before, after and labels must have one shape [case, step]; "
            f"got {before.shape}, {after.shape} and {labels.shape}"
        )
    chains = np.stack([inconsistent(before, rules), (before != after).any(axis=1)], axis=1)
    shares = weighted_mean(weights, values=chains, counted=np.ones(chains.shape, dtype=bool))
    found = {"share_inconsistent": shares[:, 0], "share_changed": shares[:, 1]}
    for when, answers in (("before", before), ("after", after)):
        steps, whole = answer_accuracy(weights, answers=answers, labels=labels)
        found[f"accuracy_{when}"], found[f"chain_accuracy_{when}"] = steps, whole
        found[f"mean_accuracy_{when}"] = mean_over_steps(steps, left_out=find_one_answer(labels))
    for kind in ("accuracy", "mean_accuracy", "chain_accuracy"):
        found[f"{kind}_difference"] = found[f"{kind}_after"] - found[f"{kind}_before"]
    return found


def _moves_after(first: int, rules: Rules, *, transition_weight: float) -> list[npt.NDArray[np.float64]] | None:
    """Scores of the transitions between neighbours given the answer of step 1; minus infinity where forbidden.

    The first entry is from step 1, with one row. None if no consistent chain begins with this answer.
    """
    moves: list[npt.NDArray[np.float64]] = []
    reachable: npt.NDArray[np.bool_] = np.ones(1, dtype=bool)
    for later in range(1, len(rules.answers_per_step)):
        allowed = rules.allowed[later - 1, later] & rules.allowed[0, later][first]
        own = np.where(allowed, transition_weight * rules.log_transitions[later - 1], -np.inf)
        own = own[first : first + 1] if later == 1 else own
        reachable = np.any(np.isfinite(own) & reachable[:, None], axis=0)
        moves.append(own)
    return moves if reachable.any() else None


def _decode_rest(
    start: npt.NDArray[np.float64], scores: list[npt.NDArray[np.float64]], moves: list[npt.NDArray[np.float64]]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Score [case] and answers [case, later step] of the best path through the steps after the first."""
    reached, came_from = start[:, None], []
    for own, move in zip(scores, moves, strict=True):
        ways = reached[:, :, None] + move
        came_from.append(ways.argmax(axis=1))
        reached = ways.max(axis=1) + own
    rest = np.zeros((len(start), len(scores)), dtype=np.int64)
    answer = reached.argmax(axis=1)
    for later in reversed(range(len(scores))):
        rest[:, later] = answer
        answer = came_from[later][np.arange(len(start)), answer]
    return reached.max(axis=1), rest


def _check_scores(log_probabilities: tuple[npt.NDArray[np.float64], ...], rules: Rules) -> None:
    found = [own.shape for own in log_probabilities]
    num_cases = len(log_probabilities[0]) if log_probabilities else 0
    if found != [(num_cases, num_answers) for num_answers in rules.answers_per_step]:
        raise ValueError(
            f"log probabilities must be [case, answer] for {rules.answers_per_step} answers; got shapes {found}"
        )
    if any(np.isnan(own).any() or (own == np.inf).any() for own in log_probabilities):
        raise ValueError("log probabilities must be numbers or minus infinity")
