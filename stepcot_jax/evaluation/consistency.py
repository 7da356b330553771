"""Consistency rules: pairs of answers that contradict each other in one chain, given or learned.

A rule forbids a pair of answers, either of neighbouring steps or of step 1 and a later one. Pairs suffice for these
chains (no abnormality at step 1 determines every later step), a person can check them one by one, and the most
probable chain without a forbidden pair can be found exactly (`decoding`).

Given: where step 1 offers "No abnormality" and the last step "Normal", as published, "No abnormality" leaves "N/A" as
the only answer of the steps between that offer it, and "Normal" as the only diagnosis. Evidence comes first: at a step
where more than `MAX_CONTRADICTING` of the training chains with "No abnormality" answer otherwise, the given rule is not
applied, and `Rules.notes` says so. A smaller share is taken for errors of annotation.

Learned: a pair that no training chain has is forbidden if `MIN_EXPECTED` chains were expected to have it under
independence. This is evidence, not proof: a pair that is a quarter as frequent as under independence stays unseen in
one collection of 150 (e^-5). The share of held-out true chains that break the rules measures the rules' error.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import (
    DETECTION_OPTIONS,
    DIAGNOSIS_OPTIONS,
    NOT_ANNOTATED,
    NOT_APPLICABLE,
    Chain,
    fold,
)

MIN_EXPECTED = 20.0
MAX_CONTRADICTING = 0.05

Pair = tuple[int, int]
"""Positions of two steps, the earlier one first."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """Pairs of answers that are allowed in one chain.

    Attributes:
      answers_per_step: number of answers of each step.
      allowed: bool [answer, answer] of neighbouring steps and of step 1 with each later step, by position.
      log_transitions: log share [answer, answer] of the answers that follow an answer, for each step but the last;
        add-one smoothing; equal shares if nothing was learned.
      notes: given rules that are not applied, and why, in words.
    """

    answers_per_step: tuple[int, ...]
    allowed: dict[Pair, npt.NDArray[np.bool_]]
    log_transitions: tuple[npt.NDArray[np.float64], ...]
    notes: tuple[str, ...] = ()


def pairs_of(num_steps: int) -> tuple[Pair, ...]:
    """Return the pairs of steps that have rules.

    >>> pairs_of(4)
    ((0, 1), (0, 2), (0, 3), (1, 2), (2, 3))
    """
    first = tuple((0, later) for later in range(1, num_steps))
    return first + tuple((step, step + 1) for step in range(1, num_steps - 1))


def count_pairs(labels: npt.NDArray[np.integer], chain: Chain) -> dict[Pair, npt.NDArray[np.int64]]:
    """Count the chains that have each pair of answers, of all pairs of steps.

    Args:
      labels: int [case, step] of training chains; a pair with an unannotated step does not count.

    Returns:
      Counts [answer, answer] by the positions of the two steps.
    """
    _check_answers(labels, chain.answers_per_step)
    counts = {}
    for earlier, later in itertools.combinations(range(chain.num_steps), 2):
        shape = (chain.answers_per_step[earlier], chain.answers_per_step[later])
        known = (labels[:, earlier] != NOT_ANNOTATED) & (labels[:, later] != NOT_ANNOTATED)
        cells = labels[known, earlier].astype(np.int64) * shape[1] + labels[known, later]
        counts[earlier, later] = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape).astype(np.int64)
    return counts


def make_rules(
    chain: Chain, *, counts: dict[Pair, npt.NDArray[np.int64]] | None = None, min_expected: float = MIN_EXPECTED
) -> Rules:
    """Make the given rules that training chains do not contradict and, from their pairs, the learned ones.

    Args:
      min_expected: number of chains expected to have a pair under independence, from which an unseen pair is forbidden.
    """
    allowed = {}
    for earlier, later in pairs_of(chain.num_steps):
        possible = np.ones((chain.answers_per_step[earlier], chain.answers_per_step[later]), dtype=bool)
        if counts is not None:
            possible &= ~_never_together(counts[earlier, later], min_expected=min_expected)
        allowed[earlier, later] = possible
    given, notes = find_clear_chest(chain), []
    if given is not None:
        for later, answer in given.settled.items():
            note = "" if counts is None else _contradict(counts[0, later][given.label], answer, chain, later=later)
            if note:
                notes.append(note)
            else:
                allowed[0, later][given.label] &= np.arange(chain.answers_per_step[later]) == answer
    return Rules(
        answers_per_step=chain.answers_per_step,
        allowed=allowed,
        log_transitions=tuple(
            _log_shares(
                counts[step, step + 1]
                if counts is not None
                else np.zeros((chain.answers_per_step[step], chain.answers_per_step[step + 1]))
            )
            for step in range(chain.num_steps - 1)
        ),
        notes=tuple(notes),
    )


def _contradict(counts: npt.NDArray[np.int64], answer: int, chain: Chain, *, later: int) -> str:
    """Return why clear chests do not settle a later step, given the number of them with each answer; "" if they do."""
    num_chains, num_others = int(counts.sum()), int(counts.sum() - counts[answer])
    if num_others <= MAX_CONTRADICTING * num_chains:
        return ""
    step = chain.steps[later]
    return (
        f"{DETECTION_OPTIONS[0]!r} does not settle {step.name} as {step.options[answer]!r}: "
        f"{num_others} of {num_chains} training chains have another answer"
    )


@dataclasses.dataclass(frozen=True)
class ClearChest:
    """The later answers that "No abnormality" at step 1 determines.

    Attributes:
      label: its label at step 1.
      settled: the only label left for later steps, by position.
    """

    label: int
    settled: dict[int, int]


def find_clear_chest(chain: Chain) -> ClearChest | None:
    """Find the given rule in a chain by the texts of its options.

    Returns:
      None where step 1 does not offer "No abnormality" or the last step does not offer "Normal".

    >>> from stepcot_jax.chain import DEFAULT_CHAIN
    >>> find_clear_chest(DEFAULT_CHAIN)
    ClearChest(label=0, settled={1: 3, 2: 5, 3: 6, 4: 4, 5: 6, 6: 0})
    """
    first, last = ([fold(option) for option in chain.steps[position].options] for position in (0, -1))
    clear, normal = fold(DETECTION_OPTIONS[0]), fold(DIAGNOSIS_OPTIONS[0])
    if chain.num_steps < 2 or clear not in first or normal not in last:
        return None
    settled = {
        position: step.num_answers - 1
        for position, step in enumerate(chain.steps[:-1])
        if position > 0 and fold(step.options[-1]) == fold(NOT_APPLICABLE)
    }
    return ClearChest(label=first.index(clear), settled={**settled, chain.num_steps - 1: last.index(normal)})


def inconsistent(answers: npt.NDArray[np.integer], rules: Rules) -> npt.NDArray[np.bool_]:
    """Return whether each chain has a forbidden pair.

    Args:
      answers: int [case, step]; a pair with an unannotated step breaks no rule.
    """
    broken = np.zeros(len(answers), dtype=bool)
    for _, wrong in _broken_pairs(answers, rules):
        broken |= wrong
    return broken


def share_inconsistent(answers: npt.NDArray[np.integer], rules: Rules) -> float:
    """Return the share of the chains that have a forbidden pair; NaN without any chain."""
    return float(inconsistent(answers, rules).mean()) if len(answers) else float("nan")


def count_broken(answers: npt.NDArray[np.integer], rules: Rules, chain: Chain) -> dict[str, int]:
    """Count the chains with each forbidden pair, described in words, the most frequent first."""
    counts = collections.Counter(words for _, words in _describe_broken(answers, rules, chain))
    return dict(counts.most_common())


def list_broken(answers: npt.NDArray[np.integer], rules: Rules, chain: Chain) -> list[tuple[str, ...]]:
    """Return the forbidden pairs of each chain, described in words; arguments as for `count_broken`."""
    found: list[list[str]] = [[] for _ in answers]
    for case, words in _describe_broken(answers, rules, chain):
        found[case].append(words)
    return [tuple(words) for words in found]


def _describe_broken(answers: npt.NDArray[np.integer], rules: Rules, chain: Chain) -> Iterator[tuple[int, str]]:
    """Yield the case and the words of each forbidden pair, pair by pair."""
    for (earlier, later), wrong in _broken_pairs(answers, rules):
        one, other = chain.steps[earlier], chain.steps[later]
        for case in np.flatnonzero(wrong).tolist():
            first, second = answers[case, [earlier, later]].tolist()
            yield case, f"{one.name} {one.options[first]!r} with {other.name} {other.options[second]!r}"


def _broken_pairs(answers: npt.NDArray[np.integer], rules: Rules) -> Iterator[tuple[Pair, npt.NDArray[np.bool_]]]:
    _check_answers(answers, rules.answers_per_step)
    for (earlier, later), allowed in rules.allowed.items():
        known = (answers[:, earlier] != NOT_ANNOTATED) & (answers[:, later] != NOT_ANNOTATED)
        wrong = known.copy()
        wrong[known] = ~allowed[answers[known, earlier], answers[known, later]]
        yield (earlier, later), wrong


def _check_answers(answers: npt.NDArray[np.integer], answers_per_step: tuple[int, ...]) -> None:
    if answers.ndim != 2 or answers.shape[1] != len(answers_per_step):
        raise ValueError(f"answers must have shape [case, {len(answers_per_step)}]; got {answers.shape}")
    outside = (answers != NOT_ANNOTATED) & ((answers < 0) | (answers >= np.asarray(answers_per_step)))
    if outside.any():
        case, step = np.argwhere(outside)[0].tolist()
        raise ValueError(
            f"case {case}, step {step + 1}: answer {answers[case, step]} is not "
            f"0 to {answers_per_step[step] - 1} or {NOT_ANNOTATED}"
        )


def _never_together(counts: npt.NDArray[np.int64], *, min_expected: float) -> npt.NDArray[np.bool_]:
    num_chains = counts.sum()
    if not num_chains:
        return np.zeros(counts.shape, dtype=bool)
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0, keepdims=True) / num_chains
    return (counts == 0) & (expected >= min_expected)


def _log_shares(counts: npt.NDArray) -> npt.NDArray[np.float64]:
    smoothed = counts + 1.0
    return np.log(smoothed / smoothed.sum(axis=1, keepdims=True))
