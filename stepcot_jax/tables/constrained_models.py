"""Results of `python -m stepcot_jax.constrain` as a file: what the tables show of a large model beside networks."""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepcot_jax.evaluation.intervals import Interval
from stepcot_jax.evaluation.metrics import FIGURES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole
from stepcot_jax.tables.writing import Figure

FILE_NAME = "constrained.json"
FORMAT = "stepcot_jax constrained 1"

_EXPECTED = "expected constrained.json of python -m stepcot_jax.constrain"
_MAX_BYTES = 1 << 26


class Estimate(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval by patient, as shares of 1; None where undefined."""

    value: float | None
    low: float | None
    high: float | None

    @property
    def figure(self) -> Figure:
        """The figure as an entry of a table."""
        return Figure(*(math.nan if end is None else end for end in (self.value, self.low, self.high)))

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
