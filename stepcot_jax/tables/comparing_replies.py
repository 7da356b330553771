"""Compare models that answered the same questions over seeds: figures, paired differences and verdicts."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from stepcot_jax.evaluation.intervals import Interval
from stepcot_jax.evaluation.resamples import count_patients
from stepcot_jax.evaluation.vqa_metrics import (
    A_SCORE,
    HEADED_FIGURES,
    Key,
    ScoredReplies,
    find_scored_kinds,
    score_difference,
    score_models,
)
from stepcot_jax.tables.comparing import summarise, word_verdicts
from stepcot_jax.tables.verdicts import Evidence
from stepcot_jax.tables.writing import Column, Entry, Figure, columns

MEANS: tuple[tuple[str, Key], ...] = HEADED_FIGURES[:6]
"""Headings and keys of the figures over all kinds of questions."""

JUDGED: tuple[tuple[str, Key], ...] = HEADED_FIGURES[:3]
"""Figures whose differences get a verdict: mean A, V and V on findings."""

DESCRIPTION = (
    "A: right answers, mean A unweighted over the kinds of question. V: mean IoU of the boxes. Passed: replies whose "
    "boxes earn the grounding reward. Well formed: replies that follow the dialect; all others earn nothing."
)


@dataclasses.dataclass(frozen=True)
class ReplyComparison:
    """Models that answered the same questions.

    Attributes:
      splits: for each seed the models' scored replies by name, all with the same models and questions.
    """

    splits: Sequence[Mapping[str, ScoredReplies]]
    num_resamples: int = 1000

    @functools.cached_property
    def _intervals(self) -> list[dict[str, dict[Key, Interval]]]:
        return [score_models(split, num_resamples=self.num_resamples) for split in self.splits]

    @functools.cached_property
    def _differences(self) -> dict[tuple[str, str], list[dict[Key, Interval]]]:
        return {}

    def _compare(self, first: str, second: str) -> list[dict[Key, Interval]]:
        if (first, second) not in self._differences:
            self._differences[first, second] = [
                score_difference(
                    first=split[first],
                    second=split[second],
                    mean_kinds=find_scored_kinds(*split.values()),
                    num_resamples=self.num_resamples,
                )
                for split in self.splits
            ]
        return self._differences[first, second]

    def figure(self, model: str, key: Key) -> Figure | None:
        """Return a model's figure, the mean over the seeds; None if no question belongs to it."""
        found = [of_seed[model] for of_seed in self._intervals]
        return summarise([each[key] for each in found]) if all(key in each for each in found) else None

    def difference(self, first: str, second: str, key: Key) -> Figure | None:
        """Return the paired difference of the first model's figure less the second's."""
        found = self._compare(first, second)
        return summarise([each[key] for each in found]) if all(key in each for each in found) else None

    def num_patients(self, key: Key) -> int:
        """Return the number of patients of a figure; for the mean of the A-scores of the kind with the fewest."""
        counts = []
        for split in self.splits:
            scored = next(iter(split.values()))
            groups = scored.groups()
            names = find_scored_kinds(*split.values()) if key == (A_SCORE, "mean") else (key[1],)
            members = [groups.get(name, np.zeros(len(scored.kinds), bool)) for name in names]
            counts += [count_patients(scored.patients[own]) for own in members]
        return min(counts, default=0)

    def verdicts(self, asked: Sequence[tuple[str, str, Key]]) -> list[str]:
        """Return the verdicts on differences (first, second, figure), corrected together for their number."""
        return word_verdicts([self._gather(*each) for each in asked])

    def _gather(self, first: str, second: str, key: Key) -> Evidence:
        found = [each.get(key, Interval(np.nan, np.nan, np.nan)) for each in self._compare(first, second)]
        return Evidence(summarise(found), tuple(each.value for each in found), self.num_patients(key))


def tabulate_differences(
    comparison: ReplyComparison, pairs: Sequence[tuple[str, str]]
) -> tuple[tuple[Column, ...], tuple[tuple[Entry, ...], ...]]:
    """Return columns and rows of paired differences, with verdicts on mean A, V and V on findings."""
    said = comparison.verdicts([(*pair, key) for pair in pairs for _, key in JUDGED])
    rows = []
    for place, pair in enumerate(pairs):
        own = said[place * len(JUDGED) : (place + 1) * len(JUDGED)]
        rows.append((*pair, *(comparison.difference(*pair, key) for _, key in MEANS), *own))
    heads = (
        *columns("text", "training", "less"),
        *columns("points", *(heading for heading, _ in MEANS)),
        *columns("text", *(f"{heading}: verdict" for heading, _ in JUDGED)),
    )
    return heads, tuple(rows)
