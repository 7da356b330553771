"""Consistent answers for phantom chests: the diagnosis first, then the steps that lead to it.

Each step is drawn given the diagnosis and the earlier answers, so that the diagnosis alone determines no step.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from stepcot_jax.chain import DEFAULT_CHAIN, DETECTION_OPTIONS, DIAGNOSIS_OPTIONS, NOT_APPLICABLE
from stepcot_jax.host.errors import BadInput

Prevalence: TypeAlias = Literal["published", "flat"]
NUM_PUBLISHED = dict(zip(DIAGNOSIS_OPTIONS, (6787, 851, 731, 723, 440, 276, 131, 88, 41), strict=True))
"""Cases of each diagnosis in the published train, validation and test sets together."""

_HILAR, _PLEURA = DEFAULT_CHAIN.steps[3].options[3:5]
_SPICULATED, _CALCIFIED = DEFAULT_CHAIN.steps[4].options[2:4]
_FLUID, _AIR = DEFAULT_CHAIN.steps[5].options[2:4]
_TABLES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""Shares of answers by diagnosis, factors of signs by location, and wordings by step and answer."""
_COLLAPSED_LUNG_SHARE = 0.12
_EMPHYSEMA_SHARE = 0.05
_UNLOCALISED_SHARE = 0.4


def draw_answers(index: int, *, seed: int, prevalence: Prevalence = "published") -> tuple[int, ...]:
    """Draw the labels of the seven steps of one phantom case, without its pixels."""
    answers = answer_texts(index, seed=seed, prevalence=prevalence)
    return tuple(step.options.index(answer) for step, answer in zip(DEFAULT_CHAIN.steps, answers, strict=True))


def answer_texts(index: int, *, seed: int, prevalence: Prevalence) -> tuple[str, ...]:
    """Return the answers of `draw_answers` as option texts."""
    if prevalence not in get_args(Prevalence):
        raise BadInput(f"phantom prevalence: {prevalence!r} is not one of {', '.join(get_args(Prevalence))}")
    rng = generator(seed, index, stream=1)
    shares: Mapping[str, float] = NUM_PUBLISHED if prevalence == "published" else dict.fromkeys(DIAGNOSIS_OPTIONS, 1)
    diagnosis = _draw(rng, shares)
    if diagnosis == "Normal":
        return (DETECTION_OPTIONS[0], *[NOT_APPLICABLE] * 5, diagnosis)
    pattern = _draw(rng, _TABLES["pattern"][diagnosis])
    distribution = _draw_distribution(rng, diagnosis, pattern)
    location = _draw_location(rng, diagnosis, pattern, distribution)
    morphology = _draw_morphology(rng, diagnosis, pattern, distribution)
    factors = _TABLES["sign_by_location"].get(location, {})
    shares_of_signs = {sign: share * factors.get(sign, 1.0) for sign, share in _TABLES["secondary"][diagnosis].items()}
    secondary = _draw(rng, shares_of_signs)
    detection = _detect(rng, diagnosis, pattern, secondary)
    return detection, distribution, pattern, location, morphology, secondary, diagnosis


def generator(seed: int, number: int, *, stream: int) -> np.random.Generator:
    """Return the random generator for one purpose (`stream`) of one case or patient (`number`)."""
    if seed < 0 or number < 0:
        raise BadInput(f"phantom: seed {seed} and index {number} must be at least 0")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, number), spawn_key=(stream,))))


def _draw(rng: np.random.Generator, shares: Mapping[str, float], *, without: frozenset[str] = frozenset()) -> str:
    options = [option for option in shares if option not in without]
    cumulative = np.cumsum([shares[option] for option in options])
    return options[int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))]


def _draw_distribution(rng: np.random.Generator, diagnosis: str, pattern: str) -> str:
    if diagnosis == "Cardiomegaly" and pattern == NOT_APPLICABLE:
        return NOT_APPLICABLE  # a large heart before clear lungs: there is no lung lesion to distribute
    return _draw(rng, _TABLES["distribution"][diagnosis], without=frozenset({"Diffuse"} if pattern == "Cavity" else ()))


def _draw_location(rng: np.random.Generator, diagnosis: str, pattern: str, distribution: str) -> str:
    if distribution == "Diffuse" and diagnosis != "Cardiomegaly" and rng.random() < _UNLOCALISED_SHARE:
        return NOT_APPLICABLE
    without = {_PLEURA} if distribution == "Diffuse" and diagnosis == "Nodule" else set()
    if diagnosis == "Cardiomegaly" and pattern == NOT_APPLICABLE:
        without.add(_HILAR)
    return _draw(rng, _TABLES["location"][diagnosis], without=frozenset(without))


def _draw_morphology(rng: np.random.Generator, diagnosis: str, pattern: str, distribution: str) -> str:
    without: set[str] = set()
    if pattern == "Cavity":
        without |= {_CALCIFIED, NOT_APPLICABLE}
    if distribution == "Diffuse":
        without |= {_SPICULATED}
    has_edges = pattern in ("Consolidation", "Nodular", "Cavity") or diagnosis == "Effusion"
    if has_edges and distribution != "Diffuse":
        without |= {NOT_APPLICABLE}
    return _draw(rng, _TABLES["morphology"][diagnosis], without=frozenset(without))


def _detect(rng: np.random.Generator, diagnosis: str, pattern: str, secondary: str) -> str:
    if diagnosis == "Pneumothorax":
        mixed = rng.random() < _COLLAPSED_LUNG_SHARE or secondary == _FLUID
        return "Mixed" if mixed else "Decreased opacity"
    mixed = rng.random() < _EMPHYSEMA_SHARE or pattern == "Cavity" or secondary == _AIR
    return "Mixed" if mixed else "Increased opacity"


# Report sentences that state all seven answers, and the reasoning that quotes them.

WORDINGS: tuple[dict[str, list[str]], ...] = tuple(_TABLES["wordings"].values())
"""Wordings of each step's answers; no wording stands for two answers of a step."""

_CONCLUSIONS = ("most consistent with {}", "findings suggest {}", "impression: {}")
_NORMAL: list[list[str]] = list(_TABLES["normal"].values())
_SIDED = {"zone": ("zone", "zones"), "base": ("base", "bases"), "hilum": ("hilum", "hila")}


def write_report(answers: tuple[str, ...], side: str, rng: np.random.Generator) -> tuple[str, tuple[str, ...]]:
    """Write the report of a case and the reasoning of each step."""
    if answers[-1] == "Normal":
        sentences = _NORMAL[int(rng.integers(len(_NORMAL)))]
        none = f'No lesion to describe: "{sentences[0]}".'
        return ". ".join(sentences) + ".", (f'"{sentences[0]}".', *[none] * 5, f'"{sentences[2]}".')
    phrases = _choose_phrases(answers, side, rng)
    report = ". ".join(text[:1].upper() + text[1:] for text in _sentences(phrases, rng)) + "."
    return report, tuple(_cite(*pair, report) for pair in zip(answers, phrases, strict=True))


def _choose_phrases(answers: tuple[str, ...], side: str, rng: np.random.Generator) -> list[str]:
    alternatives = [table[answer] for table, answer in zip(WORDINGS, answers, strict=True)]
    chosen = [wordings[int(rng.integers(len(wordings)))] for wordings in alternatives]
    chosen[3] = name_side(chosen[3], side)
    return chosen


def name_side(wording: str, side: str) -> str:
    """Return a wording of a location with its side: "right", "left" or "bilateral"."""
    sided = {name: both if side == "bilateral" else one for name, (one, both) in _SIDED.items()}
    return wording.format(side=side, **sided)


def _sentences(phrases: Sequence[str], rng: np.random.Generator) -> tuple[str, str]:
    detection, distribution, pattern, location, morphology, secondary, diagnosis = phrases
    what = f"{distribution} {detection}".strip()
    nature = " and ".join(part for part in (pattern, morphology) if part)
    style = int(rng.integers(3))
    if style == 0:
        finding = f"There is {what} {location}".rstrip() + (f" with {nature}" if nature else "")
    elif style == 1:
        finding = f"{what} is seen {location}".rstrip() + (f", showing {nature}" if nature else "")
    else:
        finding = f"{what} {location}".rstrip() + (f"; {nature}" if nature else "")
    conclusion = _CONCLUSIONS[int(rng.integers(len(_CONCLUSIONS)))].format(diagnosis)
    return finding, f"{secondary}; {conclusion}"


def _cite(answer: str, phrase: str, report: str) -> str:
    if not phrase:
        return "The report names none."
    start = report.casefold().index(phrase.casefold())
    quoted = report[start : start + len(phrase)]
    return f'"{quoted}": none.' if answer == NOT_APPLICABLE else f'"{quoted}": {answer}.'
