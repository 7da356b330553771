"""The page of a model put through the levels: curve, tables, confusion, and dialogues to look through."""

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.constrain.asking_levels import Answered, AskedCase, CaseReplies
from stepcot_jax.constrain.constraints import KINDS
from stepcot_jax.constrain.dialogue_prompts import SYSTEM, write_messages
from stepcot_jax.constrain.level_tables import VARIANT_WORDS, list_lines, to_shown
from stepcot_jax.constrain.levels import DIAGNOSIS, Key
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.pages import make_environment, render_page
from stepcot_jax.report import figures
from stepcot_jax.report.embedded_pictures import write_picture
from stepcot_jax.report.page import read_part
from stepcot_jax.tables.constrained_models import Constrained
from stepcot_jax.tables.writing import Table

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
_NO_ANSWER = "no readable answer"


def write_level_page(
    folder: Path,
    found: Constrained,
    tables: Sequence[Table],
    cases: Sequence[AskedCase],
    replies: Sequence[CaseReplies],
    chain: Chain,
    *,
    num_shown: int,
    with_pictures: bool = True,
) -> int:
    """Write `index.html`, which loads nothing, and return its size in bytes.

    Args:
      num_shown: most cases with their dialogues; those whose diagnosis changed with the level come first.
    """
    chosen = choose_shown(cases, replies, num_shown)
    style = read_part("page.css") + (_HERE / "levels.css").read_text("utf-8")
    content = render_page(
        _TEMPLATES.get_template("levels.html.j2"),
        style=style,
        script=read_part("shared.js") + "printWhole();\n",
        title=f"{found.model} put through the steps",
        about=(f"{found.num_cases} cases of {found.num_patients} patients: {found.source}.", f"{found.about}."),
        curve=_draw_charts(found),
        tables=[{"name": table.name, "link": _LINKS[table.name], "shown": to_shown(table)} for table in tables],
        matrices=_describe_confusion(found),
        system=SYSTEM,
        lead=f"{len(chosen)} of {len(cases)} cases; those whose diagnosis changed with the level come first.",
        shown_cases=[_describe_case(cases[at], replies[at], chain, found, with_pictures) for at in chosen],
    ).encode()
    write_whole(folder / PAGE_NAME, content)
    return len(content)


def _draw_charts(found: Constrained) -> Markup:
    """Draw all variants in one chart, and of a simulated model each beside what is expected."""
    charts = {"Accuracy of the diagnosis by level": list_lines(found, "measured")}
    for words, expected in list_lines(found, "expected"):
        measured = dict(charts["Accuracy of the diagnosis by level"])[words]
        charts[f"Measured and expected, {words}"] = [("measured", measured), ("expected", expected)]
    return Markup("").join(
        figures.draw_lines(lines, title=title, x_label="level", y_label="accuracy (%)")
        for title, lines in charts.items()
    )


def choose_shown(cases: Sequence[AskedCase], replies: Sequence[CaseReplies], num_shown: int) -> list[int]:
    """Return the cases to show: in turn wrong then right, right then wrong, unreadable, and all others."""
    groups: dict[str, list[int]] = {"gained": [], "lost": [], "unreadable": [], "other": []}
    for place, (case, own) in enumerate(zip(cases, replies, strict=True)):
        labels = [each.verified.labels.get(DIAGNOSIS) for each in own.values()]
        first, last = (label == case.truth[-1] for label in (labels[0], labels[-1]))
        changed = "gained" if last else "lost"
        groups["unreadable" if None in labels else changed if first != last else "other"].append(place)
    order, longest = list[int](), max(map(len, groups.values()), default=0)
    for turn in range(longest):
        order += [group[turn] for group in groups.values() if turn < len(group)]
    return order[:num_shown]


def _describe_confusion(found: Constrained) -> list[dict[str, Any]]:
    highest = max(level.level for level in found.levels)
    options = [*found.steps[-1][1], _NO_ANSWER]
    letters = [*string.ascii_uppercase[: len(options) - 1], "?"]
    heads = [{"letter": letter, "text": text} for letter, text in zip(letters, options, strict=True)]
    return [
        {"title": _name((level.variant, level.level)), "heads": heads, "rows": level.confusion}
        for level in found.levels
        if level.level in (0, highest)
    ]


def _name(key: Any) -> str:
    variant, level = key
    return f"level {level}, {VARIANT_WORDS[variant]}" if level else "level 0"


def _describe_case(
    case: AskedCase, replies: Mapping[Key, Answered], chain: Chain, found: Constrained, with_pictures: bool
) -> dict[str, Any]:
    steps = zip(chain.steps, case.truth, strict=True)
    return {
        "id": case.id,
        "picture": _embed(case) if with_pictures else "",
        "truth": [(step.name, "-" if label == NOT_ANNOTATED else step.options[label]) for step, label in steps],
        "dialogues": [_describe_dialogue(key, each, case, chain, found) for key, each in replies.items()],
    }


def _embed(case: AskedCase) -> str:
    try:
        return write_picture(np.asarray(case.image.pixels.convert("RGB")))
    except BadInput:
        return ""


def _describe_dialogue(
    key: Key, answered: Answered, case: AskedCase, chain: Chain, found: Constrained
) -> dict[str, Any]:
    verified, label = answered.verified, answered.verified.labels.get(DIAGNOSIS)
    messages = write_messages(chain, answered.dialogue, lists_diagnoses=found.lists_diagnoses)
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
            f"{each.field or 'the reply'}: {KINDS[each.kind]}{' (only read loosely)' if loose else ''}"
            for each, strict, loose in marks
            if not strict
        ],
        "prompt": messages[-1]["content"],
        "reply": reply[:_LONGEST_SHOWN] + cut,
    }
