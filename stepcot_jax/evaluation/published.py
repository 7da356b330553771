"""Figures as printed in the papers (`published.json`): shares of 1, stage scores from 1 to 5.

Functions named `recompute_*` are this library's arithmetic on them; tables mark their results "recomputed".
"""

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.chain import PUBLISHED_STEPS
from stepcot_jax.evaluation.chains import FIGURES
from stepcot_jax.evaluation.statistics import Interval
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole

*_, DIAGNOSIS = (name for name, _ in PUBLISHED_STEPS)
TEACHER = "teacher"

_PRINTED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def _by_pair(name: str) -> dict[tuple[str, str], Any]:
    """Return a table of rows in groups by group and row."""
    return {(group, row): cell for group, rows in _PRINTED[name].items() for row, cell in rows.items()}


Rows = dict[str, dict[str, float]]

DIAGNOSIS_FIGURES: Rows = _PRINTED["diagnosis_figures"]
"""Table 3: diagnosis on the published data; AUC one-vs-rest; AUC, sensitivity and specificity are macro averages.

Its cells are a(+b): a without steps, b the improvement with them.
"""

COMPONENT_ACCURACY: Rows = _PRINTED["component_accuracy"]
"""Tables 6 and 9: accuracy by step of ablations."""

TRANSFER_SAMPLES: dict[str, tuple[int, int]] = {name: tuple(row) for name, row in _PRINTED["transfer_samples"].items()}
"""Table 4, by the origin of the cases: number of cases with a single label and of their classes; no scores known."""

READER_ACCURACY: Rows = _PRINTED["reader_accuracy"]
"""Tables 5 and 10: accuracy on 200 cases that clinicians also read; missing figures are not in the paper's text."""

READER_F1: Rows = _PRINTED["reader_f1"]
"""Table 10, as Section C.3 has it: F1; the paper states neither the average nor the positive answer."""

READER_SENSITIVITY: Rows = _PRINTED["reader_sensitivity"]
"""Table 10, as Section C.3 has it: sensitivity, likewise."""

COST: dict[str, tuple[int, int, float, float]] = {name: tuple(row) for name, row in _PRINTED["cost"].items()}
"""Table 11, on the authors' GPU: parameters of all networks that run, both towers of frozen encoders included;
parameters of the trained networks; milliseconds a sample in batches of four; milliseconds a batch of four."""

COST_OF_ENCODERS: dict[str, tuple[int | None, float | None]] = {
    name: tuple(row) for name, row in _PRINTED["cost_of_encoders"].items()
}
"""Table 11, as Section C.4 has it: parameters, printed in millions with two digits; milliseconds a sample."""

COST_MEGABYTES: float = _PRINTED["cost_megabytes"]
"""Table 11: memory in MB, printed once."""

NUM_QUESTIONS: dict[str, dict[str, int]] = _PRINTED["num_questions"]
"""GEMeX-RMCoT, Table 2 and Section 5: questions by kind."""

A_SCORES: Rows = _PRINTED["a_scores"]
"""GEMeX-RMCoT, Table 4: A-score by kind; those of open questions are no share of right answers."""

QUESTION_KINDS = tuple(next(iter(A_SCORES.values())))
ZERO_SHOT, FULL, PLAIN, THINKING, THINKING_RFT = A_SCORES

V_SCORES: Rows = _PRINTED["v_scores"]
"""GEMeX-RMCoT, Table 4: V-score (mIoU) by kind."""

A_AVERAGE: dict[str, float] = _PRINTED["a_average"]
"""GEMeX-RMCoT, Table 4: unweighted mean of the four kinds."""

PERTURBED: dict[tuple[str, str], dict[str, float]] = _by_pair("perturbed")
"""GEMeX-RMCoT, Table 5: A-score under perturbation, by kind of question and row of Table 4."""

ROUNDS = tuple(next(iter(PERTURBED.values())))

PERTURBED_STD: dict[tuple[str, str], float] = _by_pair("perturbed_std")
"""GEMeX-RMCoT, Table 5: Std. of the three rounds."""

BENCHMARK_GROUPS: dict[str, str] = _PRINTED["benchmark_groups"]
"""MEDSAGE, Table 1: group of each method."""

BENCHMARK_ACCURACY: Rows = _PRINTED["benchmark_accuracy"]
"""MEDSAGE, Table 1: accuracy; InternVL3-8B has none on MMMU-Med."""

BENCHMARKS = tuple(next(iter(BENCHMARK_ACCURACY.values())))
MEDSAGE = "MEDSAGE"

BENCHMARK_AVERAGE: dict[str, list[float]] = _PRINTED["benchmark_average"]
"""MEDSAGE, Table 1: average and gap to MEDSAGE as printed; four averages are not the mean of their row."""

STAGE_SCORES: dict[tuple[str, str], dict[str, float]] = _by_pair("stage_scores")
"""MEDSAGE, Table 2: scores of a judge from 1 to 5, by model and data set."""

STAGES = tuple(next(iter(STAGE_SCORES.values())))

STAGE_AVERAGE: dict[tuple[str, str], float] = _by_pair("stage_average")
"""MEDSAGE, Table 2: averages as printed; none is the mean of its row."""

PATH_AUGMENTATION: dict[str, tuple[dict[str, float], float]] = _PRINTED["path_augmentation"]
"""MEDSAGE, Table 3: accuracy by path augmentation, and overall as printed."""

SELF_CHECK_WEIGHT: dict[float, tuple[dict[str, float], float]] = {
    float(alpha): row for alpha, row in _PRINTED["self_check_weight"].items()
}
"""MEDSAGE, Table 4: accuracy by the weight alpha of the self-check; 0 is the base reward alone."""

PARTS: dict[str, tuple[dict[str, float], float]] = _PRINTED["parts"]
"""MEDSAGE, Table 5: accuracy as parts are added."""

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
FORMAT = "stepcot_jax constrained 1"

_EXPECTED = "expected constrained.json of stepcot constrain"
_MAX_BYTES = 1 << 26


class Estimate(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval by patient, as shares of 1; None where undefined."""

    value: float | None
    low: float | None
    high: float | None

    @property
    def figure(self) -> Interval:
        """The figure as an entry of a table."""
        value, low, high = (math.nan if number is None else number for number in (self.value, self.low, self.high))
        return Interval(value, low, high, undefined=float(math.isnan(low)))

    @staticmethod
    def of(interval: Interval) -> "Estimate":
        """Return an interval as a number that JSON can hold."""
        numbers = (interval.value, interval.low, interval.high)
        return Estimate(*(None if math.isnan(number) else number for number in numbers))


class Rates(msgspec.Struct, frozen=True):
    """Shares of the constraints of a kind that are followed, strictly and loosely."""

    strict: Estimate
    loose: Estimate


class Level(msgspec.Struct, frozen=True):
    """One variant at one level."""

    variant: str
    level: int  # number of steps that are constraints
    diagnosis: dict[str, Estimate]  # figures of the diagnosis by name; a reply without a readable answer is wrong
    differences: dict[str, Estimate]  # figures less those of level 0, in the same resamples; empty at level 0
    p: float | None  # of the exact McNemar test of the accuracy against level 0; None at level 0
    expected: float | None  # accuracy that a simulated model has in expectation; None for other models
    followed: dict[str, Estimate]  # shares by name: prompts and instructions, strict and loose, and readable diagnoses
    right: dict[str, Estimate]  # where every constraint was followed, and where not
    steps: dict[str, dict[str, Estimate]]  # figures of each step that was asked, by its name
    constraints: dict[str, Rates]
    confusion: list[list[int]]  # number of cases [truth, answer] of the diagnosis


class Constrained(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one model at all levels."""

    format: str = FORMAT
    model: str
    about: str
    source: str
    prompt: str  # digest of the prompts' texts
    lists_diagnoses: bool  # whether the options of the diagnosis were listed below the last level
    steps: list[tuple[str, list[str]]]  # name and options of each step
    num_cases: int  # number of cases, unannotated ones included
    num_patients: int  # number of patients with a diagnosis
    num_missing: int  # number of dialogues without a reply, such as refused ones
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


def write_constrained(folder: Path, results: Constrained) -> None:
    """Write `constrained.json`, atomically."""
    write_whole(folder / FILE_NAME, msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def read_constrained(path: Path) -> Constrained:
    """Read a file of `write_constrained`, or that of a folder."""
    path = path / FILE_NAME if path.is_dir() else path
    results = read_json(path, Constrained, accepted=_EXPECTED, max_bytes=_MAX_BYTES)
    if results.format != FORMAT:
        raise BadInput(f"{path}: format {results.format[:80]!r} is not {FORMAT!r}")
    if results.find("constraints", 0) is None:
        raise BadInput(f"{path}: level 0 is missing; {_EXPECTED}")
    for level in results.levels:
        problem = _find_problem(level, results)
        if problem:
            raise BadInput(f"{path}, {level.variant[:40]!r} at level {level.level}: {problem}; {_EXPECTED}")
    return results


def _find_problem(level: Level, results: Constrained) -> str:
    """Return how a level does not fit the steps; "" if it fits."""
    if not 0 <= level.level <= len(results.steps):
        return f"level is not 0 to {len(results.steps)}"
    figures = {"diagnosis": level.diagnosis, **({"differences": level.differences} if level.level else {})}
    figures |= {f"steps, {name!r}"[:60]: of_step for name, of_step in level.steps.items()}
    lacking = [name for name, by_figure in figures.items() if not set(FIGURES) <= by_figure.keys()]
    if lacking:
        return f"{lacking[0]} lacks one of {', '.join(FIGURES)}"
    missing = {name for name, _ in results.steps[: level.level]} - level.steps.keys()
    if level.variant == "constraints" and missing:
        return f"steps {sorted(missing)} are missing"
    return ""
