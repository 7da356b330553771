"""Figures of every level with intervals by patient, and paired differences from level 0.

A reply without a readable answer counts as wrong: it is an extra class, which no case has. The area under the ROC curve
is that of answers without probabilities, the mean of sensitivity and specificity of each diagnosis.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.chains import FIGURES, step_figures
from stepcot_jax.evaluation.comparison import CORRECTED, Evidence, decide
from stepcot_jax.evaluation.published import Constrained, Level, Rates, digest_cases
from stepcot_jax.evaluation.statistics import Weights, bootstrap, compare_accuracy, count_patients, weighted_mean
from stepcot_jax.host.ranges import Interval
from stepcot_jax.pages.sheets import Column, Entry, Table, columns, heads, show_entry
from stepcot_jax.reasoning.levels import DIAGNOSIS, Key, name_step
from stepcot_jax.tools.constrain.asking_levels import Answered, AskedCase, CaseReplies
from stepcot_jax.tools.constrain.constraints import KINDS

FOLLOWED = ("prompt_strict", "prompt_loose", "instruction_strict", "instruction_loose", "readable")
"""Shares of IFEval: prompts of which every constraint is followed, and constraints; and readable diagnoses."""

RIGHT = ("followed", "broken")

_BASE: Key = ("constraints", 0)
_Name = tuple[Key, str]


def summarise_levels(
    cases: Sequence[AskedCase],
    replies: Sequence[CaseReplies],
    chain: Chain,
    *,
    about: Mapping[str, Any],
    num_resamples: int = 1000,
    seed: int = 0,
) -> Constrained:
    """Compute all results."""
    truth = np.array([case.truth for case in cases], np.int64)
    patients = np.array([case.patient_id for case in cases], np.str_)
    columns = {key: [of_case[key] for of_case in replies] for key in replies[0]}
    compute = prepare_figures(columns, truth, chain)
    figures = bootstrap(compute, patients, num_resamples=num_resamples, seed=seed)
    known = truth[:, -1] != NOT_ANNOTATED
    # Equal dialogues of several variants, such as those of level 1, were asked once and share their reply.
    asked = list({id(answered.reply): answered.reply for of_case in replies for answered in of_case.values()}.values())
    return Constrained(
        **about,
        steps=[(step.name, list(step.options)) for step in chain.steps],
        num_cases=len(cases),
        num_patients=count_patients(patients[known]),
        num_missing=sum(reply.text is None for reply in asked),
        missing=dict(collections.Counter(reply.problem for reply in asked if reply.text is None).most_common()),
        num_cut=sum(reply.is_cut for reply in asked),
        cases=digest_cases([case.id for case in cases]),
        levels=[_describe(key, columns, truth, chain, figures) for key in columns],
    )


def prepare_figures(
    columns: Mapping[Key, Sequence[Answered]], truth: npt.NDArray[np.int64], chain: Chain
) -> Callable[[Weights], dict[_Name, npt.NDArray[np.float64]]]:
    """Return a function from weights [resample, case] to the figures of every variant and level."""
    known = truth[:, -1] != NOT_ANNOTATED
    fields = {key: _fields(column, chain) for key, column in columns.items()}
    answers = {(key, field): read_labels(column, field) for key, column in columns.items() for field in fields[key]}
    shares = {key: _shares(column) for key, column in columns.items()}
    kinds = {key: _kinds(column) for key, column in columns.items()}

    def mean(weights: Weights, values: npt.NDArray) -> npt.NDArray[np.float64]:
        return weighted_mean(weights, values=values, counted=np.ones_like(values, bool))

    def compute(weights: Weights) -> dict[_Name, npt.NDArray[np.float64]]:
        by_name: dict[_Name, npt.NDArray[np.float64]] = {}
        for key in columns:
            for field, position in fields[key].items():
                # Certain answers; the last class is for those that cannot be read.
                given = np.eye(chain.steps[position].num_answers + 1)[answers[key, field]]
                by_name[key, field] = step_figures(weights, probabilities=given, labels=truth[:, position])
            by_name[key, "followed"] = mean(weights, shares[key])
            right = (answers[key, DIAGNOSIS] == truth[:, -1])[:, None] * np.ones(2)
            follows = shares[key][:, 0] > 0
            counted = np.stack([follows & known, ~follows & known], axis=1)
            by_name[key, "right"] = weighted_mean(weights, values=right, counted=counted)
            by_name |= {(key, reading): mean(weights, values) for reading, values in kinds[key].items()}
            by_name[key, "differences"] = by_name[key, DIAGNOSIS] - by_name[_BASE, DIAGNOSIS]
        return by_name

    return compute


def _fields(column: Sequence[Answered], chain: Chain) -> dict[str, int]:
    """Return the steps of a dialogue's fields, that of the diagnosis first."""
    asked = column[0].dialogue.asked
    return {DIAGNOSIS: chain.num_steps - 1, **{name_step(position): position for position in asked}}


def read_labels(column: Sequence[Answered], field: str) -> npt.NDArray[np.int64]:
    """Return the label that each reply gives to a field; -1 where none can be read."""
    return np.array([answered.verified.labels.get(field, -1) for answered in column], np.int64)


def _shares(column: Sequence[Answered]) -> npt.NDArray[np.float64]:
    """Return the shares `FOLLOWED` of each reply [case, share]."""
    verified = [answered.verified for answered in column]
    return np.array(
        [
            [all(own.strict), all(own.loose), np.mean(own.strict), np.mean(own.loose), DIAGNOSIS in own.labels]
            for own in verified
        ],
        np.float64,
    )


def list_kinds(column: Sequence[Answered]) -> list[str]:
    """Return the kinds of constraints of a dialogue, in the order of `KINDS`."""
    present = {constraint.kind for constraint in column[0].verified.constraints}
    return [kind for kind in KINDS if kind in present]


def _kinds(column: Sequence[Answered]) -> dict[str, npt.NDArray[np.float64]]:
    """Return by "strict" and "loose" the share of each kind's constraints that each reply follows [case, kind]."""
    names = np.array([constraint.kind for constraint in column[0].verified.constraints])
    shares = {}
    for reading in ("strict", "loose"):
        followed = np.array([getattr(answered.verified, reading) for answered in column], np.float64)
        shares[reading] = np.stack([followed[:, names == kind].mean(axis=1) for kind in list_kinds(column)], axis=1)
    return shares


def _describe(
    key: Key,
    columns: Mapping[Key, Sequence[Answered]],
    truth: npt.NDArray[np.int64],
    chain: Chain,
    figures: Mapping[_Name, Sequence[Interval]],
) -> Level:
    def estimate(name: str, names: Sequence[str]) -> dict[str, Interval]:
        return dict(zip(names, figures[key, name], strict=True))

    column, p = columns[key], None
    if key != _BASE and (truth[:, -1] != NOT_ANNOTATED).any():
        first, second = read_labels(column, DIAGNOSIS), read_labels(columns[_BASE], DIAGNOSIS)
        p = compare_accuracy(labels=truth[:, -1], first=first, second=second).exact_p
    rates = map(Rates, figures[key, "strict"], figures[key, "loose"])
    return Level(
        variant=key[0],
        level=key[1],
        diagnosis=estimate(DIAGNOSIS, FIGURES),
        differences={} if key == _BASE else estimate("differences", FIGURES),
        p=p,
        followed=estimate("followed", FOLLOWED),
        right=estimate("right", RIGHT),
        steps={chain.steps[at].name: estimate(name_step(at), FIGURES) for at in column[0].dialogue.asked},
        constraints=dict(zip(list_kinds(column), rates, strict=True)),
    )


# Tables of a model put through the levels.

TABLE_NAMES = ("levels", "level_following", "level_steps", "level_constraints")

VARIANT_WORDS = {"constraints": "constraints alone", "own": "own earlier answers", "true": "true earlier answers"}

_FIGURES = {name: {"auc": "mAUC", "f1": "F1"}.get(name, name) for name in FIGURES}
_KEY = heads("earlier answers", "#level")
_HEAD = (*_KEY, *heads("step added"))
_COUNTED = (
    "Figures of the diagnosis, which every level asks for in the same words. A reply without a readable answer is "
    "wrong. mAUC is that of answers without probabilities: the mean of sensitivity and specificity of each diagnosis."
)
_INTERVALS = "In brackets: 95 % intervals from a bootstrap by patient; differences are paired, in the same resamples."
_TEST = (
    "p: exact McNemar test of the accuracy against level 0, which takes cases as independent; not corrected for the "
    "number of comparisons."
)
_IFEVAL = (
    "After IFEval: a prompt is followed if every constraint is; instructions are the constraints one by one. Loose: a "
    "constraint is followed by the reply or by one of its forms without asterisks, first line or last line."
)


def make_tables(results: Constrained) -> list[Table]:
    """Make all tables."""
    return [_tabulate_levels(results), _tabulate_following(results), _tabulate_steps(results), _tabulate_kinds(results)]


def _title(results: Constrained, what: str) -> str:
    return f"{results.model}: {what}, {results.num_cases} cases of {results.source}"


def _head(level: Level, results: Constrained) -> tuple[Entry, Entry, Entry]:
    """Return variant, level, and the step that the level adds."""
    if not level.level:
        return "all", 0, "none"
    return VARIANT_WORDS[level.variant], level.level, results.steps[level.level - 1][0]


def _tabulate_levels(results: Constrained) -> Table:
    verdicts = _judge(results)
    accuracy, *others = FIGURES
    rows = tuple(
        (
            *_head(level, results),
            level.diagnosis[accuracy],
            level.differences.get(accuracy),
            level.p,
            verdicts.get((level.variant, level.level)),
            *(level.diagnosis[name] for name in others),
            level.followed["readable"],
        )
        for level in results.levels
    )
    of_others = (f"%{_FIGURES[name]}" for name in others)
    head = heads("%accuracy", "+difference from level 0", "#p", "accuracy is", *of_others, "%readable")
    notes = (_COUNTED, _INTERVALS, _TEST, CORRECTED, *_describe_notes(results))
    return Table("levels", _title(results, "diagnosis by level"), (*_HEAD, *head), rows, notes)


def _judge(results: Constrained) -> dict[tuple[str, int], str]:
    """Return verdicts on the differences from level 0; level 1 is one dialogue in all variants and is tested once."""

    def tested(level: Level) -> tuple[str, int]:
        is_repeated = level.level == 1 and results.find("constraints", 1) is not None
        return ("constraints" if is_repeated else level.variant), level.level

    compared = [level for level in results.levels if level.differences]
    evidence = {}
    for level in compared:
        figure = level.differences["accuracy"]
        evidence[tested(level)] = Evidence(figure, (figure.value,), results.num_patients, level.p)
    decided = dict(zip(evidence, decide(list(evidence.values())), strict=True))
    return {(level.variant, level.level): decided[tested(level)] for level in compared}


def _describe_notes(results: Constrained) -> list[str]:
    notes = [f"{results.about}. Prompts {results.prompt[:12]}."]
    if not results.lists_diagnoses:
        open_asked = "Below the last level the prompts do not list the diagnoses"
        notes.append(f"{open_asked}; a reply counts as the one it mentions.")
    if results.num_missing:
        counted = "; ".join(f"{number} {problem}" for problem, number in results.missing.items())
        notes.append(f"{results.num_missing} dialogues have no reply ({counted or 'refused'}); they count as wrong.")
    if results.num_cut:
        notes.append(f"{results.num_cut} replies were cut at the limit of their length (--max-answer-tokens).")
    return notes


def _tabulate_following(results: Constrained) -> Table:
    shares = FOLLOWED[:-1]
    rows = tuple(
        (*_head(level, results), *(level.followed[name] for name in shares), *(level.right[name] for name in RIGHT))
        for level in results.levels
    )
    followed = (name.replace("_", "s, ") for name in shares)
    head = (*_HEAD, *columns("percent", *followed, "accuracy where all were followed", "accuracy where not"))
    notes = (_IFEVAL, "The last two columns split the cases by strict reading.", _INTERVALS)
    return Table("level_following", _title(results, "constraints followed by level"), head, rows, notes)


def _tabulate_steps(results: Constrained) -> Table:
    rows = tuple(
        (*_head(level, results)[:2], step, *(estimates[name] for name in FIGURES))
        for level in results.levels
        for step, estimates in level.steps.items()
    )
    head = (*_KEY, *heads("step"), *columns("percent", *_FIGURES.values()))
    notes = ("Steps as answered at each level. A reply without a readable answer is wrong.", _INTERVALS)
    return Table("level_steps", _title(results, "steps by level"), head, rows, notes)


def _tabulate_kinds(results: Constrained) -> Table:
    rows = tuple(
        (*_head(level, results)[:2], kind, KINDS[kind], rates.strict, rates.loose)
        for level in results.levels
        for kind, rates in level.constraints.items()
        if kind in KINDS
    )
    head = (*_KEY, *heads("constraint", "what is verified", "%strict", "%loose"))
    return Table("level_constraints", _title(results, "kinds of constraints"), head, rows, (_IFEVAL, _INTERVALS))


def to_text(results: Constrained) -> str:
    """Return the accuracy by level for a terminal, one line a level."""
    lines = [f"{results.model}: accuracy of the diagnosis in %, {results.num_cases} cases of {results.source}", ""]
    for level in results.levels:
        variant, number, step = _head(level, results)
        accuracy, strict = (
            show_entry(estimates[name], Column("", "percent"))
            for estimates, name in ((level.diagnosis, "accuracy"), (level.followed, "prompt_strict"))
        )
        followed = strict.partition(" ")[0]
        lines.append(f"{variant!s:<21} level {number}  {step!s:<22} {accuracy:<20} prompts followed {followed}")
    return "\n".join(lines) + "\n"
