"""Perturbed questions, and how much answers vary under them (GEMeX-RMCoT, Section 5.3 and Table 5).

Closed questions are negated, single-choice questions get their options in another order. A perturbed record is a
function of (seed, round, record id): neither the other records nor a library's generator have a part in it.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import msgspec

from stepcot_jax.reasoning.record import STAGE_NAMES, Stages, VqaRecord

NegatedAnswer = Literal["flip", "keep"]
PerturbationStd = Literal["population", "sample", "from_original"]

PERTURBED_KINDS = ("closed", "single")

_IS = re.compile(r"(\s*is)(?=\s)", re.IGNORECASE)
_ABNORMAL = re.compile(r"\b(?:(an?)(\s+))?(a)bn(ormal)\b", re.IGNORECASE)
_ONE = r"\(?[A-Z]\)?(?![\w'])"
# "options A, (B) and C"; "the answer is C"; "(C)". "C: " with the option's own text is added for each record.
_NAMED = rf"\b(?i:(?:option|choice|answer)s?(?: is| are)?:? ){_ONE}(?:(?:, | and | or |, and |, or ){_ONE})*|\([A-Z]\)"
_ALONE = re.compile(r"(?<![\w'])[A-Z](?![\w'])")


def perturb(
    record: VqaRecord, *, seed: int, round_number: int, probability: float = 0.5, negated_answer: NegatedAnswer = "flip"
) -> VqaRecord:
    """Return the record of one round, of the same id; open and multiple-choice questions stay as they are."""
    if not 0 <= probability <= 1 or round_number < 1:
        raise ValueError(f"probability must be from 0 to 1 and round_number from 1; got {probability}, {round_number}")
    draw = f"{seed}/{round_number}/{record.id}"
    if record.kind == "single":
        places = sorted(range(len(record.choices)), key=lambda place: _hash(f"{draw}/option {place}"))
        changed = reorder(record, places)
    elif record.kind == "closed" and _uniform(f"{draw}/change") < probability:
        changed = negate(record, prefer_is=_uniform(f"{draw}/mode") < 0.5, negated_answer=negated_answer)
    else:
        return record
    if changed is record:
        return record
    made = {"perturbation_seed": str(seed), "perturbation_round": str(round_number)}
    return msgspec.structs.replace(changed, provenance={**changed.provenance, **made})


def perturb_records(
    records: Iterable[VqaRecord],
    *,
    seed: int,
    round_number: int,
    probability: float = 0.5,
    negated_answer: NegatedAnswer = "flip",
) -> list[VqaRecord]:
    """Return the closed and the single-choice records of one round, perturbed, in their order."""
    settings = {"seed": seed, "round_number": round_number, "probability": probability}
    return [
        perturb(record, negated_answer=negated_answer, **settings)  # type: ignore[arg-type]
        for record in records
        if record.kind in PERTURBED_KINDS
    ]


def negate(record: VqaRecord, *, prefer_is: bool, negated_answer: NegatedAnswer = "flip") -> VqaRecord:
    """Return a closed question with its leading "is" as "isn't", or its "abnormal" as "normal".

    The paper does not say whether "isn't" turns the answer. Where the answer turns, the reasoning, which led to the
    other one, is left out.

    Args:
      negated_answer: "flip" turns the answer of an "isn't" question, as the sentence reads; "keep" keeps it, as such
        questions are used in English. "normal" always turns it.
    """
    if negated_answer not in get_args(NegatedAnswer):
        raise ValueError(f"negated_answer must be one of {', '.join(get_args(NegatedAnswer))}; got {negated_answer!r}")
    leading, abnormal = _IS.match(record.question), _ABNORMAL.search(record.question)
    if leading and (prefer_is or not abnormal):
        how, question = "isn't", f"{leading[1]}n't{record.question[leading.end() :]}"
    elif abnormal:
        # "an abnormal" becomes "a normal", "Abnormal" becomes "Normal".
        article, space, capital = (abnormal[1] or "")[:1], abnormal[2] or "", abnormal[3].isupper()
        before, after = record.question[: abnormal.start()], record.question[abnormal.end() :]
        how, question = "normal", f"{before}{article}{space}{'N' if capital else 'n'}{abnormal[4]}{after}"
    else:
        return record
    provenance = {**record.provenance, "perturbation": how}
    if how == "isn't" and negated_answer == "keep":
        return msgspec.structs.replace(record, question=question, provenance=provenance)
    answer = "No" if record.answer == "Yes" else "Yes"
    return msgspec.structs.replace(
        record, question=question, answer=answer, thinking="", stages=None, provenance=provenance
    )


def reorder(record: VqaRecord, places: Sequence[int]) -> VqaRecord:
    """Return a choice question with its options in another order, and every letter that names an option moved.

    Letters are moved in the answer, and in question, thinking, preamble and stages where they follow "option", "choice"
    or "answer", stand in brackets, or stand before the option's text ("B: Mass").
    """
    if sorted(places) != list(range(len(record.choices))):
        raise ValueError(f"places must be an order of {len(record.choices)} options; got {list(places)}")
    if list(places) == sorted(places):
        return record
    moved = {letter: record.letters[list(places).index(old)] for old, letter in enumerate(record.letters)}

    lettered = [rf"\b{letter}(?=[.:)]\s+{re.escape(text)})" for letter, text in zip(moved, record.choices, strict=True)]
    named = re.compile("|".join([_NAMED, *lettered]))

    def rename(text: str) -> str:
        return named.sub(lambda found: _ALONE.sub(lambda letter: moved.get(letter[0], letter[0]), found[0]), text)

    stages = record.stages and Stages(**{name: rename(getattr(record.stages, name)) for name in STAGE_NAMES})
    return msgspec.structs.replace(
        record,
        choices=tuple(record.choices[old] for old in places),
        answer=moved[record.answer]
        if isinstance(record.answer, str)
        else tuple(sorted(moved[letter] for letter in record.answer)),
        question=rename(record.question),
        thinking=rename(record.thinking),
        preamble=rename(record.preamble),
        stages=stages,
        provenance={**record.provenance, "perturbation": "options"},
    )


def spread(rounds: Sequence[float], *, original: float, std: PerturbationStd = "population") -> float:
    """Return the standard deviation of a figure over the rounds.

    Args:
      std: "population" about the rounds' mean, which Table 5 prints; "sample" with one less in the divisor;
        "from_original" about `original`, as the note below Table 5 says.

    >>> [round(spread([76.98, 83.06, 75.69], original=79.93, std=std), 4) for std in get_args(PerturbationStd)]
    [3.2136, 3.9359, 3.487]
    """
    if std not in get_args(PerturbationStd) or not rounds:
        raise ValueError(f"std must be one of {', '.join(get_args(PerturbationStd))}, with a round; got {std!r}")
    centre = original if std == "from_original" else math.fsum(rounds) / len(rounds)
    divisor = len(rounds) - (std == "sample")
    squares = math.fsum((figure - centre) ** 2 for figure in rounds)
    return math.sqrt(squares / divisor) if divisor else math.nan


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _uniform(text: str) -> float:
    """A number in [0, 1)."""
    return int.from_bytes(_hash(text)[:6]) / 2**48
