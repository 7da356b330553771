"""Print the facts of a check as tables, or write them as JSON; text from data cannot control the terminal."""

import itertools
import json
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.text import make_printable

_WIDTH = 120
_MOST_REASONS = 20
_SPLITS_FROM = {"made": "drawn by patient, without split tables", "tables": "from split tables"}
_SPLITS_FROM["records"] = "named by the records"
_SUMMARY = (
    *("records", "cases", "patients", "set_aside", "records_with_other_options", "records_with_other_wordings"),
    *("records_that_repeat_an_image", "images_found", "images_missing", "images_unreadable"),
    *("images_with_equal_pixels", "pictures_in_several_splits", "boxes", "images_with_boxes"),
    *("images_with_one_box_label", "patients_in_several_splits", "cases_in_no_split"),
)

Table = tuple[str, Sequence[str], list[list[str]]]  # title, head and rows


def write_facts(facts: dict[str, Any]) -> str:
    """Return the facts as JSON in ASCII."""
    return json.dumps(facts, indent=1) + "\n"


def print_facts(facts: dict[str, Any], file: TextIO | None = None) -> None:
    """Print the facts with rich on a terminal, as plain aligned text elsewhere."""
    file = file or sys.stdout
    tables = _list_tables_of_questions(facts) if "formats" in facts else list_tables(facts)
    if file.isatty():
        _print_rich(tables, file)
    else:
        for table in tables:
            print(_align(table), end="\n\n", file=file)
    for word, lines in (("note", facts["notes"]), ("stops a run", facts["stops"])):
        for line in lines:
            print(f"{word}: {make_printable(line)}", file=file)
    print("a run would stop" if facts["stops"] else "a run can use it", file=file)


def list_tables(facts: dict[str, Any]) -> list[Table]:
    """Return the facts as tables of printable cells; shares of answers refer to annotated cases."""
    has_uncertain = any(step["uncertain"] for step in facts["steps"])
    numbers = ("annotated", *(["uncertain", "trained"] if has_uncertain else []), "wordings")
    tables: list[Table] = [
        (
            f"{facts['root']}: {facts['layout']} ({facts['file']})",
            ("", "number"),
            [[key.replace("_", " "), _number(facts[key])] for key in _SUMMARY],
        ),
        (
            "Parts of the form (a patient counts once; --json has every step)",
            ("part", "questions", "several right", "asked", "patients with no to everything"),
            [
                [part["name"], _number(part["questions"]), _number(part["several_right"]), *_by_split(part)]
                for part in facts.get("parts", ())
            ],
        ),
        (
            "Steps",
            ("step", *numbers, "answers"),
            [
                [step["name"], *(_number(step[key]) for key in numbers), _list_answers(step)]
                for step in (() if "parts" in facts else facts["steps"])
            ],
        ),
        (
            f"Splits ({_SPLITS_FROM.get(facts['splits_from'], facts['splits_from'])})",
            ("split", "cases", "patients", "rows in table", "table"),
            [
                [split["name"], *(_number(split[key]) for key in ("cases", "patients", "rows")), split["file"]]
                for split in facts["splits"]
            ],
        ),
        (
            "Origins",
            ("origin", "cases"),
            [[name or "(none)", _number(count)] for name, count in facts["origins"].items()],
        ),
        list_reasons(facts),
        (
            "Pictures in several splits",
            ("image", "patient", "split"),
            [
                [image["image_path"], image["patient_id"], ", ".join(image["splits"])]
                for group in facts["leaks"] or ()
                for image in group
            ],
        ),
    ]
    return make_tables_printable(tables)


def make_tables_printable(tables: Sequence[Table]) -> list[Table]:
    """Return the tables that have rows, with cells that cannot control the terminal."""
    return [
        (make_printable(title), head, [[make_printable(cell) for cell in row] for row in rows])
        for title, head, rows in tables
        if rows
    ]


def list_reasons(facts: dict[str, Any]) -> Table:
    """Return the table of records set aside, by reason."""
    reasons = facts["set_aside_reasons"]
    num_further = sum(reason["count"] for reason in reasons[_MOST_REASONS:])
    rows = [[_number(reason["count"]), reason["reason"], _list_examples(reason)] for reason in reasons[:_MOST_REASONS]]
    rows += [[_number(num_further), "further reasons", "all in --json"]] if num_further else []
    return "Set aside", ("records", "reason", "examples"), rows


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _by_split(part: dict[str, Any]) -> tuple[str, str]:
    asked = ", ".join(f"{name} {number:,}" for name, number in part["asked"].items())
    only_no = part["only_no"].items()
    shares = [f"{name} {number:,} ({number / max(part['patients'][name], 1):.1%})" for name, number in only_no]
    return asked, ", ".join(shares)


def _list_answers(step: dict[str, Any]) -> str:
    total = step["annotated"]
    shares = {name: f"{count:,} ({count / total:.1%})" if count else "0" for name, count in step["answers"].items()}
    return ", ".join(f"{name} {share}" for name, share in shares.items())


def _list_examples(reason: dict[str, Any]) -> str:
    return ", ".join(
        f"{example['record']} ({example['image_path'][:60]})" if example["image_path"] else str(example["record"])
        for example in reason["examples"]
    )


def _align(table: Table) -> str:
    """Return a table as text; its last columns wrap if they do not fit."""
    title, head, rows = table
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    room = _WIDTH - sum(widths) - 2 * (len(widths) - 1)
    for index in reversed(range(1, len(widths))):
        if room < 0:
            width = max(30, widths[index] + room)
            room += max(0, widths[index] - width)
            widths[index] = min(widths[index], width)
    lines, numeric = [title], _find_numeric(rows)
    for row in (head, *rows):
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            columns = zip(parts, widths, numeric, strict=True)
            shown = [part.rjust(width) if is_number else part.ljust(width) for part, width, is_number in columns]
            lines.append("  " + "  ".join(shown).rstrip())
    return "\n".join(lines)


def _find_numeric(rows: list[list[str]]) -> list[bool]:
    return [
        all(cell.replace(",", "").isdigit() or cell == "-" for cell in column) for column in zip(*rows, strict=True)
    ]


def _print_rich(tables: Sequence[Table], file: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(file=file)
    for title, head, rows in tables:
        shown = RichTable(title=Text(title), title_justify="left")
        for name, is_number in zip(head, _find_numeric(rows), strict=True):
            shown.add_column(name, justify="right" if is_number else "left", overflow="fold")
        for row in rows:
            shown.add_row(*map(Text, row))
        console.print(shown)


def _list_tables_of_questions(facts: dict[str, Any]) -> list[Table]:
    names = ("records", "set_aside", "patients", "pictures", "boxes", "with_thinking", "with_stages")
    spread = ("texts", "percentile_5", "median", "percentile_95", "longest")
    splits = [name for name in (*SPLIT_NAMES, "") if facts["splits"].get(name)]
    return make_tables_printable(
        [
            (
                f"{facts['root']}: {facts['layout']} ({facts['file']})",
                ("", "number"),
                [[name.replace("_", " "), f"{facts[name]:,}"] for name in names],
            ),
            (
                "Records by kind and split",
                ("kind", *(name or "(none)" for name in splits), "all"),
                [
                    [kind, *(f"{counts.get(name, 0):,}" for name in splits), f"{sum(counts.values()):,}"]
                    for kind, counts in facts["kinds"].items()
                ],
            ),
            (
                "Boxes of a record",
                ("boxes", "records"),
                [[number, f"{count:,}"] for number, count in facts["boxes_of_records"].items()],
            ),
            (
                "Lengths (words)",
                ("text", *(name.replace("_", " ") for name in spread)),
                [[name, *(f"{words.get(key, 0):,.0f}" for key in spread)] for name, words in facts["lengths"].items()],
            ),
            (
                "Formats",
                ("dialect", "written", "read back"),
                [[row["dialect"], f"{row['written']:,}", f"{row['read_back']:,}"] for row in facts["formats"]],
            ),
            list_reasons(facts),
        ]
    )
