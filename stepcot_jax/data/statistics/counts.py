"""Counts of a collection: origins and diagnoses, answers, lengths of reasoning, flow of answers, splits.

They are those of the paper's Figure 2 and Table 7. An answer that nobody gave has the last place of each count.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from stepcot_jax.chain import Chain
from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.splits.split_checks import SPLIT_NAMES, Splits

NOT_ANNOTATED_NAME = "(not annotated)"
NO_ORIGIN_NAME = "(none)"


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Counts of a collection.

    Attributes:
      chain: the steps.
      num_cases: number of cases.
      num_patients: number of patients.
      origins: names, the most frequent first.
      diagnoses: cases of each answer of the last step and each origin.
      answers: for each step the cases of each answer.
      flows: for each step but the last the cases of each answer of it and each of the next.
      rest_flows: the same of the cases without the most frequent first answer.
      words: for each step and origin the number of words of each reasoning that is not empty.
      splits: cases of each answer of the last step in each split.
      splits_source: where the splits come from, in words.
    """

    chain: Chain
    num_cases: int
    num_patients: int
    origins: tuple[str, ...]
    diagnoses: Int64[np.ndarray, "answer origin"]
    answers: tuple[Int64[np.ndarray, " answer"], ...]
    flows: tuple[Int64[np.ndarray, "answer next_answer"], ...]
    rest_flows: tuple[Int64[np.ndarray, "answer next_answer"], ...]
    words: tuple[tuple[Int64[np.ndarray, " reasoning"], ...], ...]
    splits: Int64[np.ndarray, "answer split"]
    splits_source: str

    def answer_names(self, step: int) -> tuple[str, ...]:
        """Names of a step's answers and, last, of none."""
        return (*self.chain.steps[step].options, NOT_ANNOTATED_NAME)


def compute_statistics(cases: Sequence[Case], chain: Chain, splits: Splits, *, splits_source: str) -> Statistics:
    """Counts the cases.

    Args:
      cases: the cases; at least one.
      chain: their steps.
      splits: indices into the cases.
      splits_source: where the splits come from, in words.
    """
    labels = np.array([case.labels for case in cases], np.int64)
    sizes = [num_answers + 1 for num_answers in chain.answers_per_step]
    places = np.where(labels < 0, np.array(sizes) - 1, labels)
    origins, origin_of = _number_origins(cases)
    split_of = np.full(len(cases), -1)
    for number, indices in enumerate(splits.by_name().values()):
        split_of[list(indices)] = number
    in_split = split_of >= 0
    answers = tuple(np.bincount(places[:, step], minlength=size) for step, size in enumerate(sizes))
    rest = places[places[:, 0] != np.argmax(answers[0])]
    return Statistics(
        chain=chain,
        num_cases=len(cases),
        num_patients=len({case.patient_id for case in cases}),
        origins=origins,
        diagnoses=_cross(places[:, -1], origin_of, sizes[-1], len(origins)),
        answers=answers,
        flows=_count_flows(places, sizes),
        rest_flows=_count_flows(rest, sizes),
        words=_count_words(cases, origin_of, num_steps=chain.num_steps, num_origins=len(origins)),
        splits=_cross(places[in_split, -1], split_of[in_split], sizes[-1], len(SPLIT_NAMES)),
        splits_source=splits_source,
    )


def _number_origins(cases: Sequence[Case]) -> tuple[tuple[str, ...], Int64[np.ndarray, " case"]]:
    names = [case.origin or NO_ORIGIN_NAME for case in cases]
    found, number_of, counts = np.unique(np.array(names, object), return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return tuple(found[order].tolist()), rank[number_of]


def _cross(
    rows: Int64[np.ndarray, " case"], columns: Int64[np.ndarray, " case"], num_rows: int, num_columns: int
) -> Int64[np.ndarray, "row column"]:
    """How many cases have each pair of values."""
    pairs = np.bincount(rows * num_columns + columns, minlength=num_rows * num_columns)
    return pairs.reshape(num_rows, num_columns)


def _count_flows(
    places: Int64[np.ndarray, "case step"], sizes: Sequence[int]
) -> tuple[Int64[np.ndarray, "answer next_answer"], ...]:
    return tuple(
        _cross(places[:, step], places[:, step + 1], sizes[step], sizes[step + 1]) for step in range(len(sizes) - 1)
    )


def _count_words(
    cases: Sequence[Case], origin_of: Int64[np.ndarray, " case"], *, num_steps: int, num_origins: int
) -> tuple[tuple[Int64[np.ndarray, " reasoning"], ...], ...]:
    counts = np.array([[len(text.split()) for text in case.reasoning] for case in cases], np.int64)
    return tuple(
        tuple(lengths[(origin_of == origin) & (lengths > 0)] for origin in range(num_origins))
        for lengths in (counts[:, step] for step in range(num_steps))
    )
