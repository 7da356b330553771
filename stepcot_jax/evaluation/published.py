"""The paper's figures, as shares of 1, for the columns marked as published."""

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from stepcot_jax.chain import PUBLISHED_STEPS
from stepcot_jax.evaluation.chains import FIGURES
from stepcot_jax.evaluation.statistics import Interval
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole

DETECTION, DISTRIBUTION, _, LOCATION, _, SECONDARY_EFFECTS, DIAGNOSIS = (name for name, _ in PUBLISHED_STEPS)


TEACHER, STUDENT = "teacher", "student"
WITHOUT_MEMORY, WITHOUT_TEXT = "without memory", "without text"

DIAGNOSIS_FIGURES: dict[str, dict[str, float]] = {
    TEACHER: {"accuracy": 0.783, "auc": 0.895, "sensitivity": 0.460, "specificity": 0.966},
    STUDENT: {"accuracy": 0.775, "auc": 0.900, "sensitivity": 0.418, "specificity": 0.960},
    "BiomedCLIP, without steps": {"accuracy": 0.693, "auc": 0.556, "sensitivity": 0.194, "specificity": 0.918},
    "BiomedCLIP, with steps": {"accuracy": 0.731, "auc": 0.760, "sensitivity": 0.217, "specificity": 0.935},
    "LLaVA-Med": {"accuracy": 0.427, "auc": 0.583, "sensitivity": 0.427, "specificity": 0.794},
}
"""Table 3: diagnosis on the published data; AUC one-vs-rest; AUC, sensitivity and specificity are macro averages.

Its cells are a(+b): a without steps, b the improvement with them.
"""

COMPONENT_ACCURACY: dict[str, dict[str, float]] = {
    WITHOUT_MEMORY: {DETECTION: 0.737, DISTRIBUTION: 0.696, LOCATION: 0.632, DIAGNOSIS: 0.655},
    WITHOUT_TEXT: {DETECTION: 0.815, DISTRIBUTION: 0.761, LOCATION: 0.693, DIAGNOSIS: 0.721},
    TEACHER: {DETECTION: 0.918, DISTRIBUTION: 0.846, LOCATION: 0.771, DIAGNOSIS: 0.783},
    STUDENT: {DETECTION: 0.918, DISTRIBUTION: 0.834, LOCATION: 0.769, DIAGNOSIS: 0.775},
}
"""Tables 6 and 9: accuracy by step of ablations."""


def step_figures(model: str, step: str) -> dict[str, float]:
    """Return a model's figures at a step by metric: of Tables 6 and 9, and at the diagnosis of Table 3.

    >>> step_figures("teacher", "Detection"), step_figures("student", "Morphologic feature")
    ({'accuracy': 0.918}, {})
    """
    name = model.removeprefix(f"{TEACHER} ").casefold()
    accuracy = {known.casefold(): of_steps for known, of_steps in COMPONENT_ACCURACY.items()}.get(name, {}).get(step)
    figures = {} if accuracy is None else {"accuracy": accuracy}
    if step == DIAGNOSIS:
        figures |= {known.casefold(): found for known, found in DIAGNOSIS_FIGURES.items()}.get(name, {})
    return figures


TRANSFER_SAMPLES: dict[str, tuple[int, int]] = {"NIH ChestX-ray8": (985, 8)}
"""Table 4, by the origin of the cases: number of cases with a single label and of their classes; no scores known."""

READER_ACCURACY: dict[str, dict[str, float]] = {
    "clinician": {DETECTION: 0.7212, DISTRIBUTION: 0.6602, LOCATION: 0.6603, SECONDARY_EFFECTS: 0.9097},
    TEACHER: {DETECTION: 0.8851, SECONDARY_EFFECTS: 0.7524},
    STUDENT: {DETECTION: 0.8037, DISTRIBUTION: 0.7263, LOCATION: 0.6946, SECONDARY_EFFECTS: 0.7397},
}
"""Tables 5 and 10: accuracy on 200 cases that clinicians also read; missing figures are not in the paper's text."""

READER_F1: dict[str, dict[str, float]] = {
    "clinician": {DETECTION: 0.3786},
    TEACHER: {DETECTION: 0.5724},
    STUDENT: {DETECTION: 0.5084},
}
"""Table 10, as Section C.3 has it: F1, of which the paper says neither the average nor the positive answer."""

READER_SENSITIVITY: dict[str, dict[str, float]] = {
    "clinician": {DETECTION: 0.3684},
    TEACHER: {DETECTION: 0.5836},
    STUDENT: {},
}
"""Table 10, as Section C.3 has it: sensitivity, likewise."""


COST: dict[str, tuple[int, int, float, float]] = {
    TEACHER: (283_664_427, 22_904_874, 22.81, 91.23),
    STUDENT: (151_562_539, 285_226, 1.51, 6.02),
}
"""Table 11, on the authors' GPU: parameters of all networks that run, both towers of frozen encoders included;
parameters of the trained networks; milliseconds a sample in batches of four; milliseconds a batch of four."""

COST_OF_ENCODERS: dict[str, tuple[int | None, float | None]] = {
    "CLIP": (151_810_000, None),
    "FLAVA": (242_540_000, None),
    "BiomedCLIP": (530_000, 0.07),
}
"""Table 11, as Section C.4 has it: parameters, printed in millions with two digits; milliseconds a sample."""

COST_MEGABYTES = 1219.72
"""Table 11: memory in MB, printed once."""

# Results of `stepcot constrain` as a file: what the tables show of a large model beside networks.


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
        value, low, high = (math.nan if end is None else end for end in (self.value, self.low, self.high))
        return Interval(value, low, high, undefined=float(math.isnan(low)))

    @staticmethod
    def of(interval: Interval) -> "Estimate":
        """Return an interval as a number that JSON can hold."""
        ends = (interval.value, interval.low, interval.high)
        return Estimate(*(None if math.isnan(end) else end for end in ends))


class Rates(msgspec.Struct, frozen=True):
    """How often the constraints of a kind are followed, strictly and loosely."""

    strict: Estimate
    loose: Estimate


class Level(msgspec.Struct, frozen=True):
    """One variant at one level.

    Attributes:
      level: number of steps that are constraints.
      diagnosis: figures of the diagnosis by name; a reply without a readable answer is wrong.
      differences: figures less those of level 0, in the same resamples; empty at level 0.
      p: of the exact McNemar test of the accuracy against level 0; None at level 0.
      expected: accuracy that a simulated model has in expectation; None for other models.
      followed: shares by name: prompts and instructions, strict and loose, and readable diagnoses.
      right: accuracy of the diagnosis where every constraint was followed ("followed") and where not ("broken").
      steps: figures of each step that was asked, by its name.
      confusion: number of cases [truth, answer] of the diagnosis; the last column counts unreadable ones.
    """

    variant: str
    level: int
    diagnosis: dict[str, Estimate]
    differences: dict[str, Estimate]
    p: float | None
    expected: float | None
    followed: dict[str, Estimate]
    right: dict[str, Estimate]
    steps: dict[str, dict[str, Estimate]]
    constraints: dict[str, Rates]
    confusion: list[list[int]]


class Constrained(msgspec.Struct, frozen=True, kw_only=True):
    """A model put through the levels.

    Attributes:
      prompt: digest of the prompts' texts.
      lists_diagnoses: whether the options of the diagnosis were listed below the last level.
      steps: name and options of each step.
      num_cases: number of cases, unannotated ones included.
      num_patients: number of patients with a diagnosis.
      num_missing: number of dialogues without a reply, such as refused ones.
      num_cut: number of replies that were cut at the limit of their length.
      cases: SHA-256 of the cases' ids, by `digest_cases`.
    """

    format: str = FORMAT
    model: str
    about: str
    source: str
    prompt: str
    lists_diagnoses: bool
    steps: list[tuple[str, list[str]]]
    num_cases: int
    num_patients: int
    num_missing: int
    num_cut: int
    cases: str
    levels: list[Level]

    def find(self, variant: str, level: int) -> Level | None:
        """Return the results of a variant and level, if they were measured; level 0 is the same in all variants."""
        wanted = ("constraints", 0) if not level else (variant, level)
        return next((each for each in self.levels if (each.variant, each.level) == wanted), None)


def digest_cases(ids: Sequence[str]) -> str:
    """Return the SHA-256 of a set of cases, in any order."""
    return hashlib.sha256("\n".join(sorted(ids)).encode("utf-8", "surrogatepass")).hexdigest()


def write_constrained(folder: Path, found: Constrained) -> None:
    """Write `constrained.json`, atomically."""
    write_whole(folder / FILE_NAME, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def read_constrained(path: Path) -> Constrained:
    """Read a file of `write_constrained`, or that of a folder."""
    path = path / FILE_NAME if path.is_dir() else path
    found = read_json(path, Constrained, accepted=_EXPECTED, max_bytes=_MAX_BYTES)
    if found.format != FORMAT:
        raise BadInput(f"{path}: format {found.format[:80]!r} is not {FORMAT!r}")
    if found.find("constraints", 0) is None:
        raise BadInput(f"{path}: level 0 is missing; {_EXPECTED}")
    for level in found.levels:
        problem = _find_problem(level, found)
        if problem:
            raise BadInput(f"{path}, {level.variant[:40]!r} at level {level.level}: {problem}; {_EXPECTED}")
    return found


def _find_problem(level: Level, found: Constrained) -> str:
    """What of a level does not fit the steps; "" if everything does."""
    if not 0 <= level.level <= len(found.steps):
        return f"level is not 0 to {len(found.steps)}"
    figures = {"diagnosis": level.diagnosis, **({"differences": level.differences} if level.level else {})}
    figures |= {f"steps, {name!r}"[:60]: of_step for name, of_step in level.steps.items()}
    lacking = [name for name, own in figures.items() if not set(FIGURES) <= own.keys()]
    if lacking:
        return f"{lacking[0]} lacks one of {', '.join(FIGURES)}"
    missing = {name for name, _ in found.steps[: level.level]} - level.steps.keys()
    if level.variant == "constraints" and missing:
        return f"steps {sorted(missing)} are missing"
    return ""


# Figures of GEMeX-RMCoT and MEDSAGE as printed, and what follows from them where a printed figure does not fit.
#
# Shares of 1; stage scores from 1 to 5 as they are. Functions named `recompute_*` are this library's arithmetic on the
# printed figures, never the papers' own; tables mark them "recomputed".


QUESTION_KINDS = ("open", "closed", "single", "multi")


def _shares(printed: str) -> tuple[float, ...]:
    """Return printed percentages as shares with the digits of the paper."""
    return tuple(round(float(number) / 100, 6) for number in printed.split())


def _rows(names: Sequence[str], printed: str) -> dict[str, float]:
    return dict(zip(names, _shares(printed), strict=True))


NUM_QUESTIONS: dict[str, dict[str, int]] = {
    "GEMeX-RMCoT": dict(zip(QUESTION_KINDS, (61_240, 36_432, 52_850, 51_862), strict=True)),
    "GEMeX test": dict(zip(QUESTION_KINDS, (1_144, 543, 1_300, 973), strict=True)),
}
"""GEMeX-RMCoT, Table 2 and Section 5: questions by kind."""

ZERO_SHOT, FULL, PLAIN = "zero-shot", "GEMeX-Full, SFT", "GEMeX-200K, SFT"
THINKING, THINKING_RFT = "GEMeX-RMCoT-200K, SFT", "GEMeX-RMCoT-200K, SFT and RFT"

A_SCORES: dict[str, dict[str, float]] = {
    ZERO_SHOT: _rows(QUESTION_KINDS, "85.13 30.39 49.00 12.02"),
    FULL: _rows(QUESTION_KINDS, "97.31 82.32 83.08 74.51"),
    PLAIN: _rows(QUESTION_KINDS, "92.54 79.93 78.92 67.93"),
    THINKING: _rows(QUESTION_KINDS, "94.71 87.11 80.08 70.20"),
    THINKING_RFT: _rows(QUESTION_KINDS, "96.44 90.24 83.31 73.18"),
}
"""GEMeX-RMCoT, Table 4: A-score by kind; those of open questions are no share of right answers."""

V_SCORES: dict[str, dict[str, float]] = {
    ZERO_SHOT: _rows(QUESTION_KINDS, "12.31 20.23 27.81 7.59"),
    FULL: _rows(QUESTION_KINDS, "60.51 69.32 67.38 55.98"),
    PLAIN: _rows(QUESTION_KINDS, "56.59 66.04 61.39 49.71"),
    THINKING: _rows(QUESTION_KINDS, "56.52 66.23 61.76 51.13"),
    THINKING_RFT: _rows(QUESTION_KINDS, "59.63 68.39 64.52 54.49"),
}
"""GEMeX-RMCoT, Table 4: V-score (mIoU) by kind."""

A_AVERAGE: dict[str, float] = _rows(tuple(A_SCORES), "44.14 84.31 79.83 83.03 85.79")
"""GEMeX-RMCoT, Table 4: unweighted mean of the four kinds."""

ROUNDS = ("original", "round 1", "round 2", "round 3")

PERTURBED: dict[tuple[str, str], dict[str, float]] = {
    ("closed", PLAIN): _rows(ROUNDS, "79.93 76.98 83.06 75.69"),
    ("closed", THINKING): _rows(ROUNDS, "87.11 88.39 86.56 87.66"),
    ("single", PLAIN): _rows(ROUNDS, "78.92 79.00 77.69 77.31"),
    ("single", THINKING): _rows(ROUNDS, "80.08 80.15 80.00 79.69"),
}
"""GEMeX-RMCoT, Table 5: A-score under perturbation, by kind of question and row of Table 4."""

PERTURBED_STD: dict[tuple[str, str], float] = dict(zip(PERTURBED, _shares("3.214 0.752 0.723 0.192"), strict=True))
"""GEMeX-RMCoT, Table 5: Std. of the three rounds."""

BENCHMARKS = ("VQA-RAD", "SLAKE", "PathVQA", "PMC-VQA", "MMMU-Med")
MEDSAGE = "MEDSAGE"

_BENCHMARK_TABLE = """
proprietary | GPT-4.1 | 65.0 72.2 55.5 55.2 75.2 | 64.6 -5.2
proprietary | Claude-Sonnet-4 | 67.6 70.6 54.2 54.4 74.6 | 64.3 -5.5
proprietary | Gemini-2.5-Flash | 68.5 75.8 55.4 55.5 76.9 | 66.4 -3.4
general | LLaVA-v1.5-8B | 54.2 59.4 54.1 36.4 38.2 | 48.5 -21.3
general | LLaVA-Next-7B | 52.6 57.9 47.9 35.5 33.1 | 41.4 -28.4
general | LLaVA-Next-13B | 55.8 58.9 51.9 36.6 39.3 | 44.5 -25.3
general | Qwen2.5-VL-7B | 67.3 69.5 63.9 50.4 56.7 | 61.6 -8.2
general | InternVL3-8B | 67.3 69.7 65.7 52.7 | 63.9 -5.9
medical, no reasoning | Med-Flamingo | 45.4 43.5 54.7 23.3 28.3 | 39.0 -30.8
medical, no reasoning | RadFM | 50.6 34.4 38.7 25.9 27.0 | 35.3 -34.5
medical, no reasoning | LLaVA-Med-7B | 51.4 48.6 56.2 24.7 36.9 | 43.6 -26.2
medical, no reasoning | HuatouGPT-V-8B (sic) | 59.4 66.8 59.8 51.4 56.7 | 58.8 -11.0
medical, no reasoning | Lingshu-7B | 62.2 78.9 71.7 55.6 70.0 | 67.7 -2.1
medical, reasoning | Med-R1 | 55.9 55.1 53.3 45.8 32.7 | 46.6 -23.2
medical, reasoning | MedVLM-R1 | 61.4 56.1 55.2 44.8 35.5 | 50.6 -19.2
medical, reasoning | ViTAR | 70.1 80.8 67.0 57.2 72.0 | 69.4 -0.4
medical, reasoning | MedEyes | 70.7 79.1 64.8 55.3 59.7 | 65.9 -3.9
medical, reasoning | MEDSAGE | 70.4 79.8 66.7 58.3 65.8 | 69.8 0.0
"""
_LINES = [[cell.strip() for cell in line.split("|")] for line in _BENCHMARK_TABLE.strip().splitlines()]

BENCHMARK_GROUPS: dict[str, str] = {method: group for group, method, _, _ in _LINES}
"""MEDSAGE, Table 1: group of each method."""

BENCHMARK_ACCURACY: dict[str, dict[str, float]] = {
    method: dict(zip(BENCHMARKS, _shares(printed), strict=False)) for _, method, printed, _ in _LINES
}
"""MEDSAGE, Table 1: accuracy; InternVL3-8B has none on MMMU-Med."""

BENCHMARK_AVERAGE: dict[str, tuple[float, float]] = {
    method: (average, gap) for _, method, _, printed in _LINES for average, gap in [_shares(printed)]
}
"""MEDSAGE, Table 1: average and gap to MEDSAGE as printed; four averages are not the mean of their row."""

STAGES = ("localisation", "visual analysis", "knowledge", "reasoning")

_STAGE_TABLE = """
baseline | PathVQA | 2.706 2.412 3.059 2.529 | 3.033
baseline | SLAKE | 3.014 2.350 3.623 2.614 | 3.033
baseline | VQA-RAD | 2.751 2.320 2.911 2.421 | 3.033
SFT | PathVQA | 2.961 2.625 3.612 3.365 | 3.037
SFT | SLAKE | 3.446 2.629 3.965 3.036 | 3.073
SFT | VQA-RAD | 3.256 2.927 3.422 3.140 | 3.033
SFT and RL | PathVQA | 3.146 3.020 3.948 3.644 | 3.033
SFT and RL | SLAKE | 3.637 2.921 4.096 3.347 | 3.034
SFT and RL | VQA-RAD | 3.830 3.447 3.652 3.453 | 3.033
"""
_STAGE_LINES = [[cell.strip() for cell in line.split("|")] for line in _STAGE_TABLE.strip().splitlines()]

STAGE_SCORES: dict[tuple[str, str], dict[str, float]] = {
    (model, data): dict(zip(STAGES, map(float, printed.split()), strict=True))
    for model, data, printed, _ in _STAGE_LINES
}
"""MEDSAGE, Table 2: scores of a judge from 1 to 5, by model and data set."""

STAGE_AVERAGE: dict[tuple[str, str], float] = {
    (model, data): float(average) for model, data, _, average in _STAGE_LINES
}
"""MEDSAGE, Table 2: averages as printed; none is the mean of its row."""

THREE_SETS = ("SLAKE", "VQA-RAD", "PathVQA")

PATH_AUGMENTATION: dict[str, tuple[dict[str, float], float]] = {
    method: (_rows(THREE_SETS, printed), overall)
    for method, printed, overall in (
        ("Baseline-sft", "45.9 36.7 35.3", 0.393),
        ("Baseline-sft+RL", "43.2 36.2 46.3", 0.419),
        ("Low-level Aug-sft", "72.8 67.4 66.1", 0.688),
        ("Low-level Aug-sft+RL", "77.8 68.4 66.1", 0.708),
        ("RPA-sft", "77.4 67.3 64.7", 0.698),
        ("RPA-sft+RL", "78.8 68.1 67.0", 0.713),
    )
}
"""MEDSAGE, Table 3: accuracy by path augmentation, and overall as printed."""

SELF_CHECK_WEIGHT: dict[float, tuple[dict[str, float], float]] = {
    alpha: (_rows(THREE_SETS, printed), overall)
    for alpha, printed, overall in (
        (0.0, "78.3 69.9 63.8", 0.707),
        (0.15, "78.8 70.3 64.4", 0.712),
        (0.20, "79.1 70.7 64.8", 0.715),
        (0.25, "78.5 69.8 64.2", 0.708),
    )
}
"""MEDSAGE, Table 4: accuracy by the weight alpha of the self-check; 0 is the base reward alone."""

PARTS: dict[str, tuple[dict[str, float], float]] = {
    method: (_rows(THREE_SETS, printed), overall)
    for method, printed, overall in (
        ("SFT", "77.4 67.3 64.7", 0.698),
        ("SFT + RL", "78.8 68.1 67.0", 0.713),
        ("SFT + RL + Self", "79.8 70.4 66.7", 0.723),
    )
}
"""MEDSAGE, Table 5: accuracy as parts are added."""


def round_half_up(value: float, digits: int = 4) -> float:
    """Return a number rounded as the papers print it: 0.44135 to 0.4414 although its float lies below the tie.

    >>> round_half_up((0.8513 + 0.3039 + 0.49 + 0.1202) / 4), round_half_up(-0.05125)
    (0.4414, -0.0513)
    """
    shifted = abs(value) * 10**digits
    return math.copysign(math.floor(shifted + 0.5 + 1e-6) / 10**digits, value)


def recompute_mean(row: Mapping[str, float]) -> float:
    """Return the unweighted mean of a printed row.

    >>> round(recompute_mean(BENCHMARK_ACCURACY[MEDSAGE]), 4)
    0.682
    """
    return statistics.fmean(row.values())


def recompute_gap(method: str) -> float:
    """Return a method's mean minus MEDSAGE's, both recomputed from Table 1."""
    return recompute_mean(BENCHMARK_ACCURACY[method]) - recompute_mean(BENCHMARK_ACCURACY[MEDSAGE])


def recompute_std(row: Mapping[str, float]) -> float:
    """Return the population standard deviation of the three rounds of Table 5 about their own mean.

    >>> round(recompute_std(PERTURBED["closed", PLAIN]), 6)
    0.032136
    """
    return statistics.pstdev(row[name] for name in ROUNDS[1:])
