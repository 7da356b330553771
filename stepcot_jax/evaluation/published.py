"""Figures as printed in the papers (`published.json`): shares of 1, stage scores from 1 to 5.

Functions named `recompute_*` are this library's arithmetic on them; tables mark their results "recomputed".
"""

import dataclasses
import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepcot_jax.chain import PUBLISHED_STEPS
from stepcot_jax.host.own_folder import load
from stepcot_jax.host.ranges import Interval

*_, DIAGNOSIS = (name for name, _ in PUBLISHED_STEPS)
TEACHER = "teacher"

_PRINTED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def _by_pair(name: str) -> dict[tuple[str, str], Any]:
    return {(group, row): cell for group, rows in _PRINTED[name].items() for row, cell in rows.items()}


Rows = dict[str, dict[str, float]]

# Step-CoT. Cells of Table 3 are a(+b): a without steps, b the improvement with them; AUC, sensitivity and specificity
# are macro averages. Tables 5 and 10 are on 200 cases that clinicians also read; figures that are missing are not in
# the paper's text (Section C.3), which states neither F1's average nor the positive answer. Table 11, on the authors'
# GPU: parameters of all networks that run, both towers of frozen encoders included, and of the trained ones;
# milliseconds a sample in batches of four, and a batch of four; memory in MB. Encoders, as Section C.4 has them:
# parameters, printed in millions with two digits, and milliseconds a sample.
DIAGNOSIS_FIGURES: Rows = _PRINTED["diagnosis_figures"]  # Table 3
COMPONENT_ACCURACY: Rows = _PRINTED["component_accuracy"]  # Tables 6 and 9: accuracy by step of ablations
TRANSFER_SAMPLES: dict[str, tuple[int, int]] = {  # Table 4, by origin: cases with a single label, their classes
    name: tuple(row) for name, row in _PRINTED["transfer_samples"].items()
}
READER_ACCURACY: Rows = _PRINTED["reader_accuracy"]  # Tables 5 and 10
READER_F1: Rows = _PRINTED["reader_f1"]  # Table 10
READER_SENSITIVITY: Rows = _PRINTED["reader_sensitivity"]  # Table 10
COST: dict[str, tuple[int, int, float, float]] = {name: tuple(row) for name, row in _PRINTED["cost"].items()}
COST_OF_ENCODERS: dict[str, tuple[int | None, float | None]] = {
    name: tuple(row) for name, row in _PRINTED["cost_of_encoders"].items()
}
COST_MEGABYTES: float = _PRINTED["cost_megabytes"]

# GEMeX-RMCoT. A-scores of open questions are no share of right answers; the average is their unweighted mean.
NUM_QUESTIONS: dict[str, dict[str, int]] = _PRINTED["num_questions"]  # Table 2 and Section 5, by kind
A_SCORES: Rows = _PRINTED["a_scores"]  # Table 4, by kind
V_SCORES: Rows = _PRINTED["v_scores"]  # Table 4: mIoU by kind
A_AVERAGE: dict[str, float] = _PRINTED["a_average"]  # Table 4
PERTURBED: dict[tuple[str, str], dict[str, float]] = _by_pair("perturbed")  # Table 5: by kind and row of Table 4
PERTURBED_STD: dict[tuple[str, str], float] = _by_pair("perturbed_std")  # Table 5: Std. of the three rounds
QUESTION_KINDS = tuple(next(iter(A_SCORES.values())))
PLAIN, THINKING, THINKING_RFT = list(A_SCORES)[-3:]
ROUNDS = tuple(next(iter(PERTURBED.values())))

# MEDSAGE. InternVL3-8B has no accuracy on MMMU-Med; four averages of Table 1 and all of Table 2 are not the mean of
# their row. Scores of Table 2 are a judge's, from 1 to 5. Of Table 4, 0 is the base reward alone.
MEDSAGE = "MEDSAGE"
BENCHMARK_GROUPS: dict[str, str] = _PRINTED["benchmark_groups"]  # Table 1: group of each method
BENCHMARK_ACCURACY: Rows = _PRINTED["benchmark_accuracy"]  # Table 1
BENCHMARK_AVERAGE: dict[str, list[float]] = _PRINTED["benchmark_average"]  # Table 1: average, gap to MEDSAGE
STAGE_SCORES: dict[tuple[str, str], dict[str, float]] = _by_pair("stage_scores")  # Table 2, by model and data set
STAGE_AVERAGE: dict[tuple[str, str], float] = _by_pair("stage_average")  # Table 2
PATH_AUGMENTATION: dict[str, tuple[dict[str, float], float]] = _PRINTED["path_augmentation"]  # Table 3, and overall
SELF_CHECK_WEIGHT: dict[float, tuple[dict[str, float], float]] = {  # Table 4, by the weight alpha
    float(alpha): row for alpha, row in _PRINTED["self_check_weight"].items()
}
PARTS: dict[str, tuple[dict[str, float], float]] = _PRINTED["parts"]  # Table 5: accuracy as parts are added
BENCHMARKS = tuple(next(iter(BENCHMARK_ACCURACY.values())))
STAGES = tuple(next(iter(STAGE_SCORES.values())))
THREE_SETS = tuple(PARTS["SFT"][0])


def step_figures(model: str, step: str) -> dict[str, float]:
    """Return a model's figures at a step by metric: of Tables 6 and 9, and at the diagnosis of Table 3."""
    name = model.removeprefix(f"{TEACHER} ").casefold()
    accuracy = {known.casefold(): of_steps for known, of_steps in COMPONENT_ACCURACY.items()}.get(name, {}).get(step)
    figures = {} if accuracy is None else {"accuracy": accuracy}
    if step == DIAGNOSIS:
        figures |= {known.casefold(): row for known, row in DIAGNOSIS_FIGURES.items()}.get(name, {})
    return figures


def round_half_up(value: float, digits: int = 4) -> float:
    """Return a number rounded as the papers print it: 0.44135 to 0.4414 although its float lies below the tie.

    >>> round_half_up((0.8513 + 0.3039 + 0.49 + 0.1202) / 4), round_half_up(-0.05125)
    (0.4414, -0.0513)
    """
    shifted = abs(value) * 10**digits
    return math.copysign(math.floor(shifted + 0.5 + 1e-6) / 10**digits, value)


def recompute_mean(row: Mapping[str, float]) -> float:
    """Return the unweighted mean of a printed row."""
    return statistics.fmean(row.values())


def recompute_gap(method: str) -> float:
    """Return a method's mean minus MEDSAGE's, both recomputed from Table 1."""
    return recompute_mean(BENCHMARK_ACCURACY[method]) - recompute_mean(BENCHMARK_ACCURACY[MEDSAGE])


def recompute_std(row: Mapping[str, float]) -> float:
    """Return the population standard deviation of the three rounds of Table 5 about their own mean."""
    return statistics.pstdev(row[name] for name in ROUNDS[1:])


# Results of `stepcot constrain` as a file: figures of a large model for tables with networks.


FILE_NAME = "constrained.json"


@dataclasses.dataclass(frozen=True)
class Rates:
    """Shares of the constraints of a kind that are followed, strictly and loosely."""

    strict: Interval
    loose: Interval


@dataclasses.dataclass(frozen=True)
class Level:
    """One variant at one level."""

    variant: str
    level: int  # number of steps that are constraints
    diagnosis: dict[str, Interval]  # figures of the diagnosis by name; a reply without a readable answer is wrong
    differences: dict[str, Interval]  # figures less those of level 0, in the same resamples; empty at level 0
    p: float | None  # of the exact McNemar test of the accuracy against level 0; None at level 0
    followed: dict[str, Interval]  # shares by name: prompts and instructions, strict and loose, and readable diagnoses
    right: dict[str, Interval]  # where every constraint was followed, and where not
    steps: dict[str, dict[str, Interval]]  # figures of each step that was asked, by its name
    constraints: dict[str, Rates]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constrained:
    """Results of one model at all levels."""

    model: str
    about: str
    source: str
    prompt: str  # digest of the prompts' texts
    lists_diagnoses: bool  # whether the options of the diagnosis were listed below the last level
    steps: list[tuple[str, list[str]]]  # name and options of each step
    num_cases: int  # number of cases, unannotated ones included
    num_patients: int  # number of patients with a diagnosis
    num_missing: int  # number of dialogues without a reply
    missing: dict[str, int]  # of these by reason: refused, filtered, without content
    num_cut: int  # number of replies that were cut at the limit of their length
    cases: str  # SHA-256 of the cases' ids, by `digest_cases`
    levels: list[Level]

    def find(self, variant: str, level: int) -> Level | None:
        """Return the results of a variant and level, if they were measured; level 0 is the same in all variants."""
        wanted = ("constraints", 0) if not level else (variant, level)
        return next((result for result in self.levels if (result.variant, result.level) == wanted), None)


def digest_cases(ids: Sequence[str]) -> str:
    """Return the SHA-256 of a set of cases, in any order."""
    return hashlib.sha256("\n".join(sorted(ids)).encode("utf-8", "surrogatepass")).hexdigest()


def read_constrained(path: Path) -> Constrained:
    """Read `constrained.json` of a folder of `stepcot constrain`, or that file."""
    return load(path / FILE_NAME if path.is_dir() else path, Constrained)
