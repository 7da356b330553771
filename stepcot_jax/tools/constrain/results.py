"""Figures of every level with intervals by patient, and paired differences from level 0.

A reply without a readable answer counts as wrong: it is an extra class, which no case has. The area under the ROC curve
is that of answers without probabilities, the mean of sensitivity and specificity of each diagnosis.
"""

import collections
import dataclasses
import math
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.chains import FIGURES, step_figures, weighted_confusion
from stepcot_jax.evaluation.comparison import CORRECTED, Evidence, decide
from stepcot_jax.evaluation.published import Constrained, Estimate, Level, Rates, digest_cases
from stepcot_jax.evaluation.statistics import (
    Weights,
    compare_accuracy,
    count_once,
    count_patients,
    percentiles,
    resample,
    weighted_mean,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.pages import figures
from stepcot_jax.pages.pictures import write_picture
from stepcot_jax.pages.sheets import Column, Entry, Table, columns, show_entry
from stepcot_jax.pages.shell import Section, make_environment, render, tabulate, write_report
from stepcot_jax.tools.constrain.asking_levels import Answered, AskedCase, CaseReplies
from stepcot_jax.tools.constrain.constraints import KINDS
from stepcot_jax.tools.constrain.levels import DIAGNOSIS, SYSTEM, Key, name_step, write_messages

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
    """Compute all results."""
    truth = np.array([case.truth for case in cases], np.int64)
    patients = np.array([case.patient_id for case in cases], np.str_)
    columns = {key: [of_case[key] for of_case in replies] for key in replies[0]}
    compute = prepare_figures(columns, truth, chain)
    values = compute(count_once(len(cases)))
    resampled = resample(compute, patients, num_resamples=num_resamples, seed=seed)
    known = truth[:, -1] != NOT_ANNOTATED
    # Equal dialogues of several variants, such as those of level 1, were asked once and share their reply.
    asked = [
        reply
        for of_case in replies
        for reply in {id(answered.reply): answered.reply for answered in of_case.values()}.values()
    ]
    return Constrained(
        **about,
        steps=[(step.name, list(step.options)) for step in chain.steps],
        num_cases=len(cases),
        num_patients=count_patients(patients[known]),
        num_missing=sum(reply.text is None for reply in asked),
        missing=dict(collections.Counter(reply.problem for reply in asked if reply.text is None).most_common()),
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
    """Return a function from weights [resample, case] to the figures of every variant and level."""
    known = truth[:, -1] != NOT_ANNOTATED
    last = chain.num_steps - 1
    fields = {key: {DIAGNOSIS: last, **{name_step(at): at for at in column[0].dialogue.asked}}
              for key, column in columns.items()}  # fmt: skip
    answers = {(key, field): read_labels(column, field) for key, column in columns.items() for field in fields[key]}
    shares = {key: _shares(column) for key, column in columns.items()}
    kinds = {key: _kinds(column) for key, column in columns.items()}

    def compute(weights: Weights) -> dict[_Name, npt.NDArray[np.float64]]:
        by_name: dict[_Name, npt.NDArray[np.float64]] = {}
        for key in columns:
            for field, position in fields[key].items():
                given = _one_hot(answers[key, field], chain.steps[position].num_answers)
                by_name[key, field] = step_figures(weights, probabilities=given, labels=truth[:, position])
            all_counted = np.ones_like(shares[key], bool)
            by_name[key, "followed"] = weighted_mean(weights, values=shares[key], counted=all_counted)
            right = (answers[key, DIAGNOSIS] == truth[:, -1])[:, None] * np.ones(2)
            follows = shares[key][:, 0] > 0
            counted = np.stack([follows & known, ~follows & known], axis=1)
            by_name[key, "right"] = weighted_mean(weights, values=right, counted=counted)
            by_name[key, "kinds"] = weighted_mean(weights, values=kinds[key], counted=np.ones_like(kinds[key], bool))
        return by_name

    return compute


def read_labels(column: Sequence[Answered], field: str) -> npt.NDArray[np.int64]:
    """Return the label that each reply gives to a field; -1 where none can be read."""
    return np.array([answered.verified.labels.get(field, -1) for answered in column], np.int64)


def _one_hot(answers: npt.NDArray[np.int64], num_answers: int) -> npt.NDArray[np.float64]:
    """Return certain answers [case, answer]; the last column is for those that cannot be read."""
    return np.eye(num_answers + 1)[np.where(answers < 0, num_answers, answers)]


def _shares(column: Sequence[Answered]) -> npt.NDArray[np.float64]:
    """Return the shares `FOLLOWED` of each reply [case, share]."""
    rows = []
    for answered in column:
        strict, loose = answered.verified.strict, answered.verified.loose
        readable = DIAGNOSIS in answered.verified.labels
        rows.append([all(strict), all(loose), np.mean(strict), np.mean(loose), readable])
    return np.array(rows, np.float64)


def list_kinds(column: Sequence[Answered]) -> list[str]:
    """Return the kinds of constraints of a dialogue, in the order of `KINDS`."""
    present = {constraint.kind for constraint in column[0].verified.constraints}
    return [kind for kind in KINDS if kind in present]


def _kinds(column: Sequence[Answered]) -> npt.NDArray[np.float64]:
    """Return the share of each kind's constraints that each reply follows [case, strict kinds and then loose ones]."""
    names = [constraint.kind for constraint in column[0].verified.constraints]
    indices = [[index for index, name in enumerate(names) if name == kind] for kind in list_kinds(column)]
    strict = np.array([answered.verified.strict for answered in column], np.float64)
    loose = np.array([answered.verified.loose for answered in column], np.float64)
    return np.stack([values[:, of_kind].mean(axis=1) for values in (strict, loose) for of_kind in indices], axis=1)


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
        return {figure: Estimate.of(interval) for figure, interval in zip(names, intervals, strict=True)}

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
    first, second = (read_labels(answered, DIAGNOSIS) for answered in (column, base))
    return compare_accuracy(labels=truth, first=first, second=second).exact_p


def _confuse(answers: npt.NDArray[np.int64], truth: npt.NDArray[np.int64], num_answers: int) -> list[list[int]]:
    known = truth != NOT_ANNOTATED
    given = np.where(answers < 0, num_answers, answers)[known]
    counts = weighted_confusion(count_once(int(known.sum())), truth=truth[known], answers=given,
                                num_answers=num_answers + 1)  # fmt: skip
    return counts[0, :num_answers].astype(int).tolist()


# Tables and the curve of a model put through the levels.


TABLE_NAMES = ("levels", "level_following", "level_steps", "level_constraints")

VARIANT_WORDS = {"constraints": "constraints alone", "own": "own earlier answers", "true": "true earlier answers"}

_HEADINGS = {"auc": "mAUC", "f1": "F1"}
_KEY = (*columns("text", "earlier answers"), *columns("number", "level"))
_HEAD = (*_KEY, *columns("text", "step added"))
_OTHERS = FIGURES[1:]
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
    """Make all tables; the first has the curve as a picture."""
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
    is_simulated = any(level.expected is not None for level in results.levels)
    rows: list[tuple[Entry, ...]] = []
    for level in results.levels:
        difference = level.differences["accuracy"].figure if level.differences else None
        rows.append(
            (
                *_head(level, results),
                level.diagnosis["accuracy"].figure,
                *([level.expected] if is_simulated else []),
                difference,
                level.p,
                verdicts.get((level.variant, level.level)),
                *(level.diagnosis[name].figure for name in _OTHERS),
                level.followed["readable"].figure,
            )
        )
    heads = (
        *_HEAD,
        *columns("percent", "accuracy", *(["expected"] if is_simulated else [])),
        *columns("points", "difference from level 0"),
        *columns("number", "p"),
        *columns("text", "accuracy is"),
        *columns("percent", *(_HEADINGS.get(name, name) for name in _OTHERS), "readable"),
    )
    notes = [_COUNTED, _INTERVALS, _TEST, CORRECTED, *_describe_notes(results)]
    if is_simulated:
        notes.append("Expected: the accuracy that the simulated model has by construction.")
    title = _title(results, "diagnosis by level")
    return Table("levels", title, heads, tuple(rows), tuple(notes), {"levels.png": draw_curve(results)})


def _judge(results: Constrained) -> dict[tuple[str, int], str]:
    """Return verdicts on the differences from level 0; level 1 is one dialogue in all variants and is tested once."""

    def tested(level: Level) -> tuple[str, int]:
        is_repeated = level.level == 1 and results.find("constraints", 1) is not None
        return ("constraints" if is_repeated else level.variant), level.level

    compared = [level for level in results.levels if level.differences]
    evidence = {}
    for level in compared:
        figure = level.differences["accuracy"].figure
        evidence[tested(level)] = Evidence(figure, (figure.value,), results.num_patients, level.p)
    decided = dict(zip(evidence, decide(list(evidence.values())), strict=True))
    return {(level.variant, level.level): decided[tested(level)] for level in compared}


def _describe_notes(results: Constrained) -> list[str]:
    notes = [f"{results.about}. Prompts {results.prompt[:12]}."]
    if not results.lists_diagnoses:
        notes.append(
            "Below the last level the prompts do not list the diagnoses; a reply counts as the one it mentions."
        )
    if results.num_missing:
        counted = "; ".join(f"{number} {problem}" for problem, number in results.missing.items())
        notes.append(f"{results.num_missing} dialogues have no reply ({counted or 'refused'}); they count as wrong.")
    if results.num_cut:
        notes.append(f"{results.num_cut} replies were cut at the limit of their length (--max-answer-tokens).")
    return notes


def _tabulate_following(results: Constrained) -> Table:
    rows = tuple(
        (
            *_head(level, results),
            *(level.followed[name].figure for name in FOLLOWED[:-1]),
            *(level.right[name].figure for name in ("followed", "broken")),
        )
        for level in results.levels
    )
    heads = (
        *_HEAD,
        *columns("percent", *(f"{name.replace('_', 's, ')}" for name in FOLLOWED[:-1])),
        *columns("percent", "accuracy where all were followed", "accuracy where not"),
    )
    notes = (_IFEVAL, "The last two columns split the cases by strict reading.", _INTERVALS)
    return Table("level_following", _title(results, "constraints followed by level"), heads, rows, notes)


def _tabulate_steps(results: Constrained) -> Table:
    rows = tuple(
        (*_head(level, results)[:2], step, *(estimates[name].figure for name in FIGURES))
        for level in results.levels
        for step, estimates in level.steps.items()
    )
    heads = (*_KEY, *columns("text", "step"), *columns("percent", *(_HEADINGS.get(name, name) for name in FIGURES)))
    notes = ("Steps as answered at each level. A reply without a readable answer is wrong.", _INTERVALS)
    return Table("level_steps", _title(results, "steps by level"), heads, rows, notes)


def _tabulate_kinds(results: Constrained) -> Table:
    rows = tuple(
        (*_head(level, results)[:2], kind, KINDS[kind], rates.strict.figure, rates.loose.figure)
        for level in results.levels
        for kind, rates in level.constraints.items()
        if kind in KINDS
    )
    heads = (*_KEY, *columns("text", "constraint", "what is verified"), *columns("percent", "strict", "loose"))
    return Table("level_constraints", _title(results, "kinds of constraints"), heads, rows, (_IFEVAL, _INTERVALS))


def list_lines(
    results: Constrained, what: Literal["measured", "expected"]
) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return the accuracy of each variant by level, in percent; level 0 is the first point of every line."""
    lines = []
    for variant, words in VARIANT_WORDS.items():
        levels = _of_variant(results, variant)
        values = [level.diagnosis["accuracy"].value if what == "measured" else level.expected for level in levels]
        points = [
            (float(level.level), 100 * value) for level, value in zip(levels, values, strict=True) if value is not None
        ]
        if len(points) > 1:
            lines.append((words, points))
    return lines


def _of_variant(results: Constrained, variant: str) -> Sequence[Level]:
    return [level for level in results.levels if not level.level or level.variant == variant]


def draw_curve(results: Constrained) -> bytes:
    """Draw the accuracy of the diagnosis by level with intervals, one line a variant, as PNG."""
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(8, 4.5), layout="constrained")
    axes = picture.subplots()
    for variant, words in VARIANT_WORDS.items():
        levels = _of_variant(results, variant)
        if len(levels) < 2:
            continue
        numbers = [level.level for level in levels]
        accuracies = [level.diagnosis["accuracy"].figure for level in levels]
        colour = figures.draw_band(axes, accuracies, numbers, label=words, size=4, alpha=0.12)
        if all(level.expected is not None for level in levels):
            expected = [100 * (math.nan if level.expected is None else level.expected) for level in levels]
            axes.plot(numbers, expected, ls="--", lw=1, color=colour, label=f"{words}, expected")
    axes.set_xlabel("level: number of steps as constraints")
    axes.set_ylabel("accuracy of the diagnosis (%)")
    axes.set_xticks(sorted({level.level for level in results.levels}))
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figures.to_png(picture)


def to_text(results: Constrained) -> str:
    """Return the accuracy by level for a terminal, one line a level."""
    lines = [f"{results.model}: accuracy of the diagnosis in %, {results.num_cases} cases of {results.source}", ""]
    for level in results.levels:
        variant, number, step = _head(level, results)
        accuracy, strict = (
            show_entry(estimates[name].figure, Column("", "percent"))
            for estimates, name in ((level.diagnosis, "accuracy"), (level.followed, "prompt_strict"))
        )
        followed = strict.partition(" ")[0]
        lines.append(f"{variant!s:<21} level {number}  {step!s:<22} {accuracy:<20} prompts followed {followed}")
    return "\n".join(lines) + "\n"


# The page of a model put through the levels: curve, tables, confusion, and dialogues to look through.


PAGE_NAME = "index.html"

_LONGEST_SHOWN = 4000  # characters of a reply
_HERE = Path(__file__).parent
_TEMPLATES = make_environment(_HERE)
_LINKS = {
    "levels": "Levels",
    "level_following": "Following",
    "level_steps": "Steps",
    "level_constraints": "Constraints",
}
_CURVE = "Accuracy of the diagnosis by level"
_NO_ANSWER = "no readable answer"


def write_level_page(
    folder: Path,
    results: Constrained,
    tables: Sequence[Table],
    cases: Sequence[AskedCase],
    replies: Sequence[CaseReplies],
    chain: Chain,
    *,
    num_shown: int,
    with_pictures: bool = True,
) -> int:
    """Write `index.html`, which loads nothing, and return its size in bytes."""
    chosen = choose_shown(cases, replies, num_shown)
    sections = [
        Section(
            "curve",
            _CURVE,
            "Level k gives the first k steps as constraints; each level is a dialogue of its own.",
            Markup('<div class="charts">{}</div>').format(_draw_charts(results)),
            "Curve",
        ),
        *(dataclasses.replace(tabulate(table), link=_LINKS[table.name]) for table in tables),
        Section(
            "confusion",
            "Confusion of the diagnosis",
            "Rows are true answers, columns are replies; the last column counts replies without a readable answer.",
            render(_TEMPLATES, "matrices.html.j2", matrices=_describe_confusion(results)),
            "Confusion",
        ),
        Section(
            "examples",
            "Dialogues",
            f"{len(chosen)} of {len(cases)} cases; those whose diagnosis changed with the level come first.",
            render(
                _TEMPLATES,
                "dialogues.html.j2",
                system=SYSTEM,
                shown_cases=[_describe_case(cases[at], replies[at], chain, results, with_pictures) for at in chosen],
            ),
            style=(_HERE / "levels.css").read_text("utf-8"),
            script="printWhole();\n",
        ),
    ]
    about = (f"{results.num_cases} cases of {results.num_patients} patients: {results.source}.", f"{results.about}.")
    title = f"{results.model} put through the steps"
    content = write_report(title=title, about=about, sections=sections, writer="stepcot constrain").encode()
    write_whole(folder / PAGE_NAME, content)
    return len(content)


def _draw_charts(results: Constrained) -> Markup:
    """Draw all variants in one chart and, for a simulated model, each with its expected accuracy in another one."""
    charts = {_CURVE: list_lines(results, "measured")}
    for words, expected in list_lines(results, "expected"):
        measured = dict(charts[_CURVE])[words]
        charts[f"Measured and expected, {words}"] = [("measured", measured), ("expected", expected)]
    return Markup("").join(
        figures.draw_lines(lines, title=title, x_label="level", y_label="accuracy (%)")
        for title, lines in charts.items()
    )


def choose_shown(cases: Sequence[AskedCase], replies: Sequence[CaseReplies], num_shown: int) -> list[int]:
    """Return the cases to show: in turn wrong then right, right then wrong, unreadable, and all others."""
    groups: dict[str, list[int]] = {"gained": [], "lost": [], "unreadable": [], "other": []}
    for index, (case, of_case) in enumerate(zip(cases, replies, strict=True)):
        labels = [answered.verified.labels.get(DIAGNOSIS) for answered in of_case.values()]
        first, last = (label == case.truth[-1] for label in (labels[0], labels[-1]))
        changed = "gained" if last else "lost"
        groups["unreadable" if None in labels else changed if first != last else "other"].append(index)
    order, longest = list[int](), max(map(len, groups.values()), default=0)
    for turn in range(longest):
        order += [group[turn] for group in groups.values() if turn < len(group)]
    return order[:num_shown]


def _describe_confusion(results: Constrained) -> list[dict[str, Any]]:
    highest = max(level.level for level in results.levels)
    options = [*results.steps[-1][1], _NO_ANSWER]
    letters = [*string.ascii_uppercase[: len(options) - 1], "?"]
    heads = [{"letter": letter, "text": text} for letter, text in zip(letters, options, strict=True)]
    return [
        {"title": _name((level.variant, level.level)), "heads": heads, "rows": level.confusion}
        for level in results.levels
        if level.level in (0, highest)
    ]


def _name(key: Any) -> str:
    variant, level = key
    return f"level {level}, {VARIANT_WORDS[variant]}" if level else "level 0"


def _describe_case(
    case: AskedCase, replies: Mapping[Key, Answered], chain: Chain, results: Constrained, with_pictures: bool
) -> dict[str, Any]:
    steps = zip(chain.steps, case.truth, strict=True)
    return {
        "id": case.id,
        "picture": _embed(case) if with_pictures else "",
        "truth": [(step.name, "-" if label == NOT_ANNOTATED else step.options[label]) for step, label in steps],
        "dialogues": [_describe_dialogue(key, answered, case, chain, results) for key, answered in replies.items()],
    }


def _embed(case: AskedCase) -> str:
    try:
        return write_picture(np.asarray(case.image.pixels.convert("RGB")))
    except BadInput:
        return ""


def _describe_dialogue(
    key: Key, answered: Answered, case: AskedCase, chain: Chain, results: Constrained
) -> dict[str, Any]:
    verified, label = answered.verified, answered.verified.labels.get(DIAGNOSIS)
    messages = write_messages(chain, answered.dialogue, lists_diagnoses=results.lists_diagnoses)
    marks = zip(verified.constraints, verified.strict, verified.loose, strict=True)
    is_right = label is not None and label == case.truth[-1]
    reply = f"({answered.reply.problem})" if answered.reply.text is None else answered.reply.text
    cut = f" … ({len(reply)} characters)" if len(reply) > _LONGEST_SHOWN else ""
    return {
        "name": _name(key),
        "diagnosis": _NO_ANSWER if label is None else chain.steps[-1].options[label],
        "mark": "open" if case.truth[-1] == NOT_ANNOTATED else "right" if is_right else "wrong",
        "kept": sum(verified.strict),
        "num": len(verified.strict),
        "broken": [
            f"{constraint.field or 'the reply'}: {KINDS[constraint.kind]}{' (only read loosely)' if loose else ''}"
            for constraint, strict, loose in marks
            if not strict
        ],
        "prompt": messages[-1]["content"],
        "reply": reply[:_LONGEST_SHOWN] + cut,
    }
