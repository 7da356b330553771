"""Write a chain of answers as one readable paragraph."""

from collections.abc import Iterable

from stepcot_jax.chain import NOT_APPLICABLE, PUBLISHED_STEPS, Step, fold

_NAMES = tuple(fold(name) for name, _ in PUBLISHED_STEPS)
_WORDINGS = dict(
    zip(
        _NAMES,
        (
            "The radiograph shows {answer}{how}",
            "{answer} in distribution{how}",
            "with a {answer} pattern{how}",
            "located in: {answer}{how}",
            "margins and morphology: {answer}{how}",
            "associated signs: {answer}{how}",
            "The most likely diagnosis is {answer}{how}",
        ),
        strict=True,
    )
)
"""Wordings of the published steps; any other step becomes "name: answer"."""

_FIRST, _LAST = _NAMES[0], _NAMES[-1]


def write_paragraph(answers: Iterable[tuple[Step, int, float | None]]) -> str:
    """Write answers as a paragraph.

    Args:
      answers: each step with its label and that label's probability; None if a person gave the answer.

    >>> step = Step("Detection", "Is there any?", ("No abnormality", "Increased opacity"))
    >>> write_paragraph([(step, 1, 0.81)])
    'The radiograph shows increased opacity (81 %).'
    """
    sentences: list[str] = []
    clauses: list[str] = []
    absent: list[str] = []
    for step, label, probability in answers:
        answer = step.options[label]
        how = " (given)" if probability is None else f" ({percent(probability)})"
        name = fold(step.name)
        if fold(answer) == fold(NOT_APPLICABLE):
            absent.append(f"{_soften(step.name)}{how}")
            continue
        if name == _FIRST and fold(answer) == "mixed":
            answer = "mixed opacity"
        wording = _WORDINGS.get(name, "{name}: {answer}{how}")
        clause = wording.format(name=_soften(step.name), answer=_soften(answer), how=how)
        if name == _LAST:
            sentences += [", ".join(clauses), clause]
            clauses = []
        else:
            clauses.append(clause)
    sentences.append(", ".join(clauses))
    if absent:
        sentences.append(f"Not applicable: {', '.join(absent)}")
    return " ".join(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in sentences if sentence)


def percent(share: float) -> str:
    """Return a share in whole percent, never 0 % or 100 %: no network is certain."""
    whole = round(100 * share)
    return "more than 99 %" if whole == 100 else "less than 1 %" if whole == 0 else f"{whole} %"


def _soften(text: str) -> str:
    """Return text for the middle of a sentence; abbreviations keep their capitals."""
    parts = [part[:1].lower() + part[1:] if part[1:2].islower() else part for part in text.split("/")]
    return "/".join(parts)
