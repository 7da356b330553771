"""Figures of GEMeX-RMCoT and MEDSAGE as printed, and what follows from them where a printed figure does not fit.

Shares of 1; stage scores from 1 to 5 as they are. Functions named `recompute_*` are this library's arithmetic on the
printed figures, never the papers' own; tables mark them "recomputed".
"""

import math
import statistics
from collections.abc import Mapping, Sequence

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
