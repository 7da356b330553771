"""Consistency rules: pairs of answers, of neighbouring steps or of step 1 and a later one, that contradict each other.

Given (a clear chest settles later steps), or learned: pairs that training chains never have.
"""

import collections
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
from jaxtyping import Int64

from stepcot_jax.chain import (
    DETECTION_OPTIONS,
    DIAGNOSIS_OPTIONS,
    NOT_ANNOTATED,
    NOT_APPLICABLE,
    Chain,
    fold,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.own_folder import load, save

MIN_EXPECTED = 20.0  # chains expected by chance, from which an unseen pair is forbidden: evidence, not proof
MAX_CONTRADICTING = 0.05  # share of clear chests that counts as errors of annotation; above it a given rule yields

Pair = tuple[int, int]  # Positions of two steps, the earlier one first


@dataclasses.dataclass(frozen=True)
class Rules:
    """Pairs of answers that are allowed in one chain."""

    answers_per_step: tuple[int, ...]  # number of answers of each step
    allowed: dict[Pair, npt.NDArray[np.bool_]]  # [answer, answer]
    notes: tuple[str, ...] = ()  # given rules that are not applied, and why, in words


def pairs_of(num_steps: int) -> tuple[Pair, ...]:
    """Return the pairs of steps that have rules."""
    first = tuple((0, later) for later in range(1, num_steps))
    return first + tuple((step, step + 1) for step in range(1, num_steps - 1))


def count_pairs(labels: npt.NDArray[np.integer], chain: Chain) -> dict[Pair, npt.NDArray[np.int64]]:
    """Count the training chains with each pair of annotated answers [answer, answer], of all pairs of steps."""
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
    """Make the given rules that the counts do not contradict, and forbid unseen pairs with `min_expected` or more."""
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
    return Rules(chain.answers_per_step, allowed, tuple(notes))


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
    """The later answers that "No abnormality" at step 1 determines."""

    label: int  # its label at step 1
    settled: dict[int, int]  # the only label left for later steps, by position


def find_clear_chest(chain: Chain) -> ClearChest | None:
    """Find the given rule by the texts of options; None without "No abnormality" first and "Normal" last."""
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
    """Return whether each chain has a forbidden pair; a pair with an unannotated step breaks no rule."""
    broken = np.zeros(len(answers), dtype=bool)
    for _, wrong in _broken_pairs(answers, rules):
        broken |= wrong
    return broken


def share_inconsistent(answers: npt.NDArray[np.integer], rules: Rules) -> float:
    """Return the share of the chains that have a forbidden pair; NaN without any chain."""
    return float(inconsistent(answers, rules).mean()) if len(answers) else float("nan")


def judge_normal(
    answers: npt.NDArray[np.integer], labels: npt.NDArray[np.integer], chain: Chain
) -> dict[str, npt.NDArray[np.float64]]:
    """Return by figure whether first and last step call a normal case abnormal, and whether they contradict each other.

    A case is normal if its last true answer is; NaN where a case does not count. {} without a normal last answer.
    """
    normal = chain.steps[-1].normal
    if normal is None:
        return {}
    ends = {chain.steps[each].name: (answers[:, each], chain.steps[each].normal) for each in (0, -1)}
    called = {name: own != clear for name, (own, clear) in ends.items() if clear is not None}
    figures = {
        f"normal called abnormal by {name}": np.where(labels[:, -1] == normal, found, np.nan)
        for name, found in called.items()
    }
    if len(called) == 2:
        first, last = called.values()
        figures[f"{' and '.join(called)} contradict"] = (first != last).astype(np.float64)
    return figures


def count_broken(answers: npt.NDArray[np.integer], rules: Rules, chain: Chain) -> dict[str, int]:
    """Count the chains with each forbidden pair, described in words, the most frequent first."""
    counts = collections.Counter(words for _, words in _describe_broken(answers, rules, chain))
    return dict(counts.most_common())


def list_broken(answers: npt.NDArray[np.integer], rules: Rules, chain: Chain) -> list[tuple[str, ...]]:
    """Return the forbidden pairs of each chain, described in words; arguments as for `count_broken`."""
    broken: list[list[str]] = [[] for _ in answers]
    for case, words in _describe_broken(answers, rules, chain):
        broken[case].append(words)
    return [tuple(pairs) for pairs in broken]


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


Counts = Mapping[Pair, npt.NDArray[np.integer]]  # Training chains that have each pair of answers, see `count_pairs`


# Counts of answer pairs on disk: rules can be made from them without the training data.


@dataclasses.dataclass(frozen=True)
class _CountedPairs:
    pairs: tuple[tuple[Pair, Int64[np.ndarray, "answer answer2"]], ...]


def write_pairs(path: str | os.PathLike[str], counts: Counts) -> None:
    """Write the counts of `count_pairs`, atomically."""
    save(path, {"pairs": list(counts.items())})


def read_pairs(path: str | os.PathLike[str], chain: Chain) -> dict[Pair, npt.NDArray[np.int64]]:
    """Read the counts of `write_pairs`."""
    counts = dict(load(path, _CountedPairs).pairs)
    sizes = dict(enumerate(chain.answers_per_step))
    expected = {pair: (sizes[pair[0]], sizes[pair[1]]) for pair in itertools.combinations(sizes, 2)}
    if {pair: of_pair.shape for pair, of_pair in counts.items()} != expected:
        raise BadInput(f"{path}: pairs of another chain")
    if any((of_pair < 0).any() for of_pair in counts.values()):
        raise BadInput(f"{path}: a count is below 0")
    return counts
