"""Figures of every level with intervals by patient, and paired differences from level 0.

A reply without a readable answer counts as wrong: it is an answer of its own, which no case has. The area under the
ROC curve is that of answers without probabilities, the mean of sensitivity and specificity of each diagnosis.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.constrain.asking_levels import Answered, AskedCase, CaseReplies
from stepcot_jax.constrain.constraints import KINDS
from stepcot_jax.constrain.levels import DIAGNOSIS, Key, name_step
from stepcot_jax.evaluation.intervals import percentiles
from stepcot_jax.evaluation.metrics import FIGURES, step_figures, weighted_confusion
from stepcot_jax.evaluation.paired import compare_accuracy
from stepcot_jax.evaluation.resamples import Weights, count_once, count_patients, resample, weighted_mean
from stepcot_jax.tables.constrained_models import Constrained, Estimate, Level, Rates, digest_cases

FOLLOWED = ("prompt_strict", "prompt_loose", "instruction_strict", "instruction_loose", "readable")
"""Shares of IFEval: prompts of which every constraint is followed, and constraints; and readable diagnoses."""

RIGHT = ("followed", "broken")

Expected = Callable[[Key, npt.NDArray[np.int64]], float]

_LEVEL = 0.95
_Name = tuple[Key, str]


def summarise_levels(
    cases: Sequence[AskedCase],
    replies: Sequence[CaseReplies],
    chain: Chain,
    *,
    about: Mapping[str, Any],
    expected: Expected | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Constrained:
    """Compute all results.

    Args:
      about: the fields of `Constrained` that say what was measured: model, about, source, prompt, lists_diagnoses.
      expected: of a simulated model, from variant, level and true labels to the expected accuracy.
    """
    truth = np.array([case.truth for case in cases], np.int64)
    patients = np.array([case.patient_id for case in cases], np.str_)
    columns = {key: [each[key] for each in replies] for key in replies[0]}
    compute = prepare_figures(columns, truth, chain)
    values = compute(count_once(len(cases)))
    resampled = resample(compute, patients, num_resamples=num_resamples, seed=seed)
    known = truth[:, -1] != NOT_ANNOTATED
    # Equal dialogues of several variants, such as those of level 1, were asked once and share their reply.
    asked = [
        reply for of_case in replies for reply in {id(each.reply): each.reply for each in of_case.values()}.values()
    ]
    return Constrained(
        **about,
        steps=[(step.name, list(step.options)) for step in chain.steps],
        num_cases=len(cases),
        num_patients=count_patients(patients[known]),
        num_missing=sum(reply.text is None for reply in asked),
        num_cut=sum(reply.is_cut for reply in asked),
        cases=digest_cases([case.id for case in cases]),
        levels=[
            _describe(key, columns, truth, chain, values, resampled, None if expected is None else expected(key, truth))
            for key in columns
        ],
    )


def prepare_figures(
    columns: Mapping[Key, Sequence[Answered]], truth: npt.NDArray[np.int64], chain: Chain
) -> Callable[[Weights], dict[_Name, npt.NDArray[np.float64]]]:
    """Return a function from weights [resample, case] to the figures of every variant and level.

    Returns:
      Figures [resample, name] by variant and level, and by the name of the field, or "followed", "right" and "kinds".
    """
    known = truth[:, -1] != NOT_ANNOTATED
    last = chain.num_steps - 1
    fields = {key: {DIAGNOSIS: last, **{name_step(at): at for at in column[0].dialogue.asked}}
              for key, column in columns.items()}  # fmt: skip
    answers = {(key, field): read_labels(column, field) for key, column in columns.items() for field in fields[key]}
    shares = {key: _shares(column) for key, column in columns.items()}
    kinds = {key: _kinds(column) for key, column in columns.items()}

    def compute(weights: Weights) -> dict[_Name, npt.NDArray[np.float64]]:
        found: dict[_Name, npt.NDArray[np.float64]] = {}
        for key in columns:
            for field, position in fields[key].items():
                given = _one_hot(answers[key, field], chain.steps[position].num_answers)
                found[key, field] = step_figures(weights, probabilities=given, labels=truth[:, position])
            all_counted = np.ones_like(shares[key], bool)
            found[key, "followed"] = weighted_mean(weights, values=shares[key], counted=all_counted)
            right = (answers[key, DIAGNOSIS] == truth[:, -1])[:, None] * np.ones(2)
            follows = shares[key][:, 0] > 0
            counted = np.stack([follows & known, ~follows & known], axis=1)
            found[key, "right"] = weighted_mean(weights, values=right, counted=counted)
            found[key, "kinds"] = weighted_mean(weights, values=kinds[key], counted=np.ones_like(kinds[key], bool))
        return found

    return compute


def read_labels(column: Sequence[Answered], field: str) -> npt.NDArray[np.int64]:
    """Return the label that each reply gives to a field; -1 where none can be read."""
    return np.array([each.verified.labels.get(field, -1) for each in column], np.int64)


def _one_hot(answers: npt.NDArray[np.int64], num_answers: int) -> npt.NDArray[np.float64]:
    """Certain answers [case, answer]; the last column is for those that cannot be read."""
    return np.eye(num_answers + 1)[np.where(answers < 0, num_answers, answers)]


def _shares(column: Sequence[Answered]) -> npt.NDArray[np.float64]:
    """[case, name of `FOLLOWED`]."""
    rows = []
    for each in column:
        strict, loose = each.verified.strict, each.verified.loose
        readable = DIAGNOSIS in each.verified.labels
        rows.append([all(strict), all(loose), np.mean(strict), np.mean(loose), readable])
    return np.array(rows, np.float64)


def list_kinds(column: Sequence[Answered]) -> list[str]:
    """Return the kinds of constraints of a dialogue, in the order of `KINDS`."""
    present = {constraint.kind for constraint in column[0].verified.constraints}
    return [kind for kind in KINDS if kind in present]


def _kinds(column: Sequence[Answered]) -> npt.NDArray[np.float64]:
    """Share of the constraints of each kind that each reply follows [case, strict kinds and then loose ones]."""
    names = [constraint.kind for constraint in column[0].verified.constraints]
    places = [[place for place, name in enumerate(names) if name == kind] for kind in list_kinds(column)]
    followed = [np.array([getattr(each.verified, name) for each in column], np.float64) for name in ("strict", "loose")]
    return np.stack([values[:, own].mean(axis=1) for values in followed for own in places], axis=1)


def _describe(
    key: Key,
    columns: Mapping[Key, Sequence[Answered]],
    truth: npt.NDArray[np.int64],
    chain: Chain,
    values: Mapping[_Name, npt.NDArray[np.float64]],
    resampled: Mapping[_Name, npt.NDArray[np.float64]],
    expected: float | None,
) -> Level:
    column = columns[key]
    base: Key = ("constraints", 0)

    def estimate(name: str, names: Sequence[str], *, less: Key | None = None) -> dict[str, Estimate]:
        one, many = values[key, name], resampled[key, name]
        if less is not None:
            one, many = one - values[less, name], many - resampled[less, name]
        intervals = [percentiles(float(one[0, at]), many[:, at], level=_LEVEL) for at in range(len(names))]
        return {each: Estimate.of(interval) for each, interval in zip(names, intervals, strict=True)}

    kinds = list_kinds(column)
    rates = estimate("kinds", [f"{reading} {kind}" for reading in ("strict", "loose") for kind in kinds])
    is_base = key == base
    return Level(
        variant=key[0],
        level=key[1],
        diagnosis=estimate(DIAGNOSIS, FIGURES),
        differences={} if is_base else estimate(DIAGNOSIS, FIGURES, less=base),
        p=None if is_base else _test(column, columns[base], truth[:, -1]),
        expected=expected,
        followed=estimate("followed", FOLLOWED),
        right=estimate("right", RIGHT),
        steps={chain.steps[at].name: estimate(name_step(at), FIGURES) for at in column[0].dialogue.asked},
        constraints={kind: Rates(rates[f"strict {kind}"], rates[f"loose {kind}"]) for kind in kinds},
        confusion=_confuse(read_labels(column, DIAGNOSIS), truth[:, -1], chain.steps[-1].num_answers),
    )


def _test(column: Sequence[Answered], base: Sequence[Answered], truth: npt.NDArray[np.int64]) -> float | None:
    if not (truth != NOT_ANNOTATED).any():
        return None
    first, second = (read_labels(each, DIAGNOSIS) for each in (column, base))
    return compare_accuracy(labels=truth, first=first, second=second).exact_p


def _confuse(answers: npt.NDArray[np.int64], truth: npt.NDArray[np.int64], num_answers: int) -> list[list[int]]:
    known = truth != NOT_ANNOTATED
    given = np.where(answers < 0, num_answers, answers)[known]
    counts = weighted_confusion(count_once(int(known.sum())), truth=truth[known], answers=given,
                                num_answers=num_answers + 1)  # fmt: skip
    return counts[0, :num_answers].astype(int).tolist()
