"""The most probable chain without a contradiction, by exact dynamic programming, and what it changes.

The score of a chain is the sum over its steps of the log probability of the answer, plus `transition_weight` times
the learned log share of each answer after the one before. Rules bind neighbours and step 1 with every later step:
with the answer of step 1 held, what is left is a chain of neighbours, which the Viterbi recursion solves exactly.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.consistency import Rules, share_inconsistent
from stepcot_jax.evaluation.distributions import log_softmax, own_logits
from stepcot_jax.evaluation.evaluator import Predictions
from stepcot_jax.evaluation.metrics import chain_accuracy
from stepcot_jax.host.errors import BadInput

_LEAST_LOG_PROBABILITY = -1e6  # an answer of probability 0 is still better than a contradiction


@dataclasses.dataclass(frozen=True)
class DecodingEffect:
    """What decoding consistent chains changes for one model; shares in 0..1, NaN where undefined.

    Attributes:
      share_inconsistent: share of the chains with a contradiction, each step answered for itself.
      share_changed: share of the chains that decoding changes; without a `transition_weight` the same ones.
      accuracy_before: accuracy of each step, answered for itself.
      accuracy_after: accuracy of each step of the decoded chains.
      chain_accuracy_before: share of the cases whose annotated steps are all right, answered for themselves.
      chain_accuracy_after: the same of the decoded chains.
    """

    share_inconsistent: float
    share_changed: float
    accuracy_before: tuple[float, ...]
    accuracy_after: tuple[float, ...]
    chain_accuracy_before: float
    chain_accuracy_after: float


def decode_consistent(
    log_probabilities: tuple[npt.NDArray[np.float64], ...], rules: Rules, *, transition_weight: float = 0.0
) -> npt.NDArray[np.int64]:
    """The most probable chain of each case that breaks no rule.

    Args:
      log_probabilities: for each step [case, answer]; minus infinity where an answer is impossible, which still
        gives way to the rules.
      rules: forbidden pairs and learned transitions.
      transition_weight: how much the learned transitions count beside the model; 0 for the rules alone.

    Returns:
      int [case, step]; of equally probable chains one of them.

    Raises:
      ValueError: the probabilities do not fit the rules or are not numbers, or the weight is negative.
      BadInput: the rules contradict each other, so that no chain keeps them all.
    """
    _check_scores(log_probabilities, rules)
    if not 0 <= transition_weight < math.inf:
        raise ValueError(f"transition_weight: found {transition_weight}, accepted is 0 or more")
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
        raise BadInput(
            "consistency rules: found no chain that keeps them all, accepted are rules that some chain keeps"
        )
    return chains


def decoding_effect(
    predictions: Predictions, chain: Chain, rules: Rules, *, transition_weight: float = 0.0
) -> dict[str, DecodingEffect]:
    """What decoding changes, by the model's name.

    Args:
      predictions: labels and logits.
      chain: the steps.
      rules: forbidden pairs and learned transitions.
      transition_weight: as in `decode_consistent`.
    """
    labels, found = predictions.labels, {}
    for model, logits in predictions.logits.items():
        scores = tuple(log_softmax(own) for own in own_logits(logits, chain=chain, model=model))
        before = np.stack([own.argmax(axis=1) for own in scores], axis=1)
        after = decode_consistent(scores, rules, transition_weight=transition_weight)
        found[model] = DecodingEffect(
            share_inconsistent=share_inconsistent(before, rules),
            share_changed=float((before != after).any(axis=1).mean()) if len(labels) else math.nan,
            accuracy_before=_accuracies(before, labels),
            accuracy_after=_accuracies(after, labels),
            chain_accuracy_before=chain_accuracy(answers=before, labels=labels),
            chain_accuracy_after=chain_accuracy(answers=after, labels=labels),
        )
    return found


def _moves_after(first: int, rules: Rules, *, transition_weight: float) -> list[npt.NDArray[np.float64]] | None:
    """Score of going from answer to answer between neighbours under one answer of step 1; minus infinity if forbidden.

    The first entry is from step 1, with one row. None where no chain begins with this answer.
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
    """Score [case] and answers [case, later step] of the best way through the steps after the first."""
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
            f"found probabilities {found}, accepted is [case, answer] for {rules.answers_per_step} answers"
        )
    if any(np.isnan(own).any() or (own == np.inf).any() for own in log_probabilities):
        raise ValueError("log probabilities must be numbers or minus infinity")


def _accuracies(answers: npt.NDArray[np.int64], labels: npt.NDArray[np.int32]) -> tuple[float, ...]:
    annotated = labels != NOT_ANNOTATED
    right = ((answers == labels) & annotated).sum(axis=0)
    num_cases = annotated.sum(axis=0)
    return tuple(
        (part / whole if whole else math.nan) for part, whole in zip(right.tolist(), num_cases.tolist(), strict=True)
    )
