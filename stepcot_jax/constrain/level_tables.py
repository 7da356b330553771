"""Tables and the curve of a model put through the levels."""

import io
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from stepcot_jax.constrain.constraints import KINDS
from stepcot_jax.constrain.level_results import FOLLOWED
from stepcot_jax.evaluation.metrics import FIGURES
from stepcot_jax.report.reply_page import ShownTable
from stepcot_jax.tables.constrained_models import Constrained, Level
from stepcot_jax.tables.verdicts import CORRECTED, Evidence, decide
from stepcot_jax.tables.writing import Column, Entry, Table, columns, show_entry

TABLE_NAMES = ("levels", "level_following", "level_steps", "level_constraints")

VARIANT_WORDS = {"constraints": "constraints alone", "own": "own earlier answers", "true": "true earlier answers"}

_HEADINGS = {"auc": "mAUC", "f1": "F1"}
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


def make_tables(found: Constrained) -> list[Table]:
    """Make all tables; the first has the curve as a picture."""
    return [_tabulate_levels(found), _tabulate_following(found), _tabulate_steps(found), _tabulate_kinds(found)]


def _title(found: Constrained, what: str) -> str:
    return f"{found.model}: {what}, {found.num_cases} cases of {found.source}"


def _head(level: Level, found: Constrained) -> tuple[Entry, Entry, Entry]:
    """Variant, level, and the step that the level adds."""
    if not level.level:
        return "all", 0, "none"
    return VARIANT_WORDS[level.variant], level.level, found.steps[level.level - 1][0]


def _tabulate_levels(found: Constrained) -> Table:
    verdicts = _judge(found)
    is_simulated = any(level.expected is not None for level in found.levels)
    rows: list[tuple[Entry, ...]] = []
    for level in found.levels:
        difference = level.differences["accuracy"].figure if level.differences else None
        rows.append(
            (
                *_head(level, found),
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
        *columns("text", "earlier answers"),
        *columns("number", "level"),
        *columns("text", "step added"),
        *columns("percent", "accuracy", *(["expected"] if is_simulated else [])),
        *columns("points", "difference from level 0"),
        *columns("number", "p"),
        *columns("text", "accuracy is"),
        *columns("percent", *(_HEADINGS.get(name, name) for name in _OTHERS), "readable"),
    )
    notes = [_COUNTED, _INTERVALS, _TEST, CORRECTED, *_describe(found)]
    if is_simulated:
        notes.append("Expected: the accuracy that the simulated model has by construction.")
    title = _title(found, "diagnosis by level")
    return Table("levels", title, heads, tuple(rows), tuple(notes), {"levels.png": draw_curve(found)})


def _judge(found: Constrained) -> dict[tuple[str, int], str]:
    """Verdicts on the differences from level 0. Level 1 is one dialogue in all variants and is tested once."""

    def tested(level: Level) -> tuple[str, int]:
        is_repeated = level.level == 1 and found.find("constraints", 1) is not None
        return ("constraints" if is_repeated else level.variant), level.level

    compared = [level for level in found.levels if level.differences]
    evidence = {}
    for level in compared:
        figure = level.differences["accuracy"].figure
        evidence[tested(level)] = Evidence(figure, (figure.value,), found.num_patients, level.p)
    decided = dict(zip(evidence, decide(list(evidence.values())), strict=True))
    return {(level.variant, level.level): decided[tested(level)] for level in compared}


def _describe(found: Constrained) -> list[str]:
    notes = [f"{found.about}. Prompts {found.prompt[:12]}."]
    if not found.lists_diagnoses:
        notes.append(
            "Below the last level the prompts do not list the diagnoses; a reply counts as the one it mentions."
        )
    if found.num_missing:
        notes.append(f"{found.num_missing} dialogues have no reply (refused, or too long); they count as wrong.")
    if found.num_cut:
        notes.append(f"{found.num_cut} replies were cut at the limit of their length (--max-answer-tokens).")
    return notes


def _tabulate_following(found: Constrained) -> Table:
    rows = tuple(
        (
            *_head(level, found),
            *(level.followed[name].figure for name in FOLLOWED[:-1]),
            *(level.right[name].figure for name in ("followed", "broken")),
        )
        for level in found.levels
    )
    heads = (
        *columns("text", "earlier answers"),
        *columns("number", "level"),
        *columns("text", "step added"),
        *columns("percent", *(f"{name.replace('_', 's, ')}" for name in FOLLOWED[:-1])),
        *columns("percent", "accuracy where all were followed", "accuracy where not"),
    )
    notes = (_IFEVAL, "The last two columns split the cases by strict reading.", _INTERVALS)
    return Table("level_following", _title(found, "constraints followed by level"), heads, rows, notes)


def _tabulate_steps(found: Constrained) -> Table:
    rows = tuple(
        (*_head(level, found)[:2], name, *(figures[each].figure for each in FIGURES))
        for level in found.levels
        for name, figures in level.steps.items()
    )
    heads = (
        *columns("text", "earlier answers"),
        *columns("number", "level"),
        *columns("text", "step"),
        *columns("percent", *(_HEADINGS.get(name, name) for name in FIGURES)),
    )
    notes = ("Steps as answered at each level. A reply without a readable answer is wrong.", _INTERVALS)
    return Table("level_steps", _title(found, "steps by level"), heads, rows, notes)


def _tabulate_kinds(found: Constrained) -> Table:
    rows = tuple(
        (*_head(level, found)[:2], kind, KINDS[kind], rates.strict.figure, rates.loose.figure)
        for level in found.levels
        for kind, rates in level.constraints.items()
        if kind in KINDS
    )
    heads = (
        *columns("text", "earlier answers"),
        *columns("number", "level"),
        *columns("text", "constraint", "what is verified"),
        *columns("percent", "strict", "loose"),
    )
    return Table("level_constraints", _title(found, "kinds of constraints"), heads, rows, (_IFEVAL, _INTERVALS))


def list_lines(
    found: Constrained, what: Literal["measured", "expected"]
) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return the accuracy of each variant by level, in percent; level 0 is the first point of every line."""
    lines = []
    for variant, words in VARIANT_WORDS.items():
        own = _of_variant(found, variant)
        values = [each.diagnosis["accuracy"].value if what == "measured" else each.expected for each in own]
        points = [
            (float(each.level), 100 * value) for each, value in zip(own, values, strict=True) if value is not None
        ]
        if len(points) > 1:
            lines.append((words, points))
    return lines


def _of_variant(found: Constrained, variant: str) -> Sequence[Level]:
    return [each for each in found.levels if not each.level or each.variant == variant]


def draw_curve(found: Constrained) -> bytes:
    """Draw the accuracy of the diagnosis by level with intervals, one line a variant, as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(8, 4.5), layout="constrained")
    axes = picture.subplots()
    for variant, words in VARIANT_WORDS.items():
        own = _of_variant(found, variant)
        if len(own) < 2:
            continue
        figures, places = [each.diagnosis["accuracy"].figure for each in own], [each.level for each in own]
        lines = axes.plot(places, [100 * each.value for each in figures], marker="o", markersize=4, label=words)
        colour = lines[0].get_color()
        lows, highs = (np.array([getattr(each, end) for each in figures], float) for end in ("low", "high"))
        axes.fill_between(places, 100 * lows, 100 * highs, color=colour, alpha=0.12, linewidth=0)
        if all(each.expected is not None for each in own):
            expected = [100 * (math.nan if each.expected is None else each.expected) for each in own]
            axes.plot(places, expected, ls="--", lw=1, color=colour, label=f"{words}, expected")
    axes.set_xlabel("level: number of steps as constraints")
    axes.set_ylabel("accuracy of the diagnosis (%)")
    axes.set_xticks(sorted({each.level for each in found.levels}))
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    content = io.BytesIO()
    FigureCanvasAgg(picture).print_png(content)
    return content.getvalue()


def to_shown(table: Table) -> ShownTable:
    """Return a table for the page."""
    return ShownTable(
        table.title, tuple(column.heading for column in table.columns), tuple(map(tuple, table.show())), table.notes
    )


def to_text(found: Constrained) -> str:
    """Return the accuracy by level for a terminal, one line a level."""
    lines = [f"{found.model}: accuracy of the diagnosis in %, {found.num_cases} cases of {found.source}", ""]
    for level in found.levels:
        variant, number, step = _head(level, found)
        accuracy, strict = (
            show_entry(figures[name].figure, Column("", "percent"))
            for figures, name in ((level.diagnosis, "accuracy"), (level.followed, "prompt_strict"))
        )
        followed = strict.partition(" ")[0]
        lines.append(f"{variant!s:<21} level {number}  {step!s:<22} {accuracy:<20} prompts followed {followed}")
    return "\n".join(lines) + "\n"
