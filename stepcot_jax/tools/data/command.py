"""`stepcot data`: check a folder of cases or reasoning records, count it, draw phantoms.

Each command imports what it needs when it runs, so that `--help` is fast.
"""

import argparse
import functools
import json
import math
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES
from stepcot_jax.data.sources.layout_table import AUTO, CASES, QUESTIONS
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import make_workdir, write_whole, writing_folder, writing_for
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.host.text import make_printable
from stepcot_jax.tools.data.vqa import add_vqa, name_option
from stepcot_jax.tools.options import ReadStepNames, add, add_layout, local_path

EXIT_WOULD_STOP = 1

_WITHOUT_IMAGES = "checks the records alone"
_RECORDS = (
    "A folder with records.jsonl and no data.json is read as reasoning records; of a folder with both, data.json is "
    "read, and ROOT=FOLDER/records.jsonl names the records."
)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code."""
    parser = argparse.ArgumentParser(prog="stepcot data", description="Work with folders of cases.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add_command in (_add_check, _add_stats, _add_tfds, _add_phantom, add_vqa):
        add_command(commands)
    options = parser.parse_args(arguments)
    for name in ("max_megapixels", "num_threads"):
        if hasattr(options, name) and not 0 < getattr(options, name) < math.inf:
            raise BadInput(f"--{name.replace('_', '-')} must be above 0; got {getattr(options, name)}")
    if hasattr(options, "root"):
        from stepcot_jax.host.download import find_path

        options.root = find_path(options.root, "ROOT")
    return options.run(options) or 0


def _add_check(commands: Any) -> None:
    from stepcot_jax.reasoning.dialects import WRITTEN

    parser = commands.add_parser(
        "check",
        help="show what a folder holds and whether a run can use it",
        description="Shows what a folder of cases or reasoning records holds, reading it as a run does. Exit code 0: a "
        f"run can use it; 1: something would stop a run; 2: it cannot be read at all. {_RECORDS}",
    )
    _add_reading_options(parser)
    add(parser, "--json FILE", "also write the facts as JSON; - prints JSON instead of tables", type=local_path)
    looked = "decode each image, test only that it exists, or skip images (imported features); default decode"
    add(parser, "--images", looked, "decode", choices=("decode", "exists", "none"))
    add(parser, "--max-megapixels", "largest accepted image, default 64", 64.0, type=float)
    add(parser, "--num-threads", "images decoded at a time, default 2", 2)
    add(parser, "--split-seed", "of splits drawn without split tables, default 0", 0)
    uncertain = "config.data.uncertain of the run: what training makes of uncertain answers; default ignore"
    add(parser, "--uncertain", uncertain, "ignore", choices=("ignore", "negative", "positive"))
    dialect = "config.vqa.dialect of a run on reasoning records; default: that of the config that is meant for them"
    add(parser, "--dialect", dialect, AUTO, choices=(AUTO, *WRITTEN))
    without = "the run has config.vqa.with_thinking=False"
    add(parser, "--without-thinking", without, dest="with_thinking", action="store_false")
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from stepcot_jax.data.check import CheckOptions, check_root

    names = ("images", "split_seed", "num_threads", "uncertain", "dialect", "with_thinking")
    how = {name: getattr(options, name) for name in names}
    max_pixels = int(options.max_megapixels * 1e6)
    check_options = CheckOptions(**_reading_arguments(options), max_pixels=max_pixels, **how)
    try:
        facts = check_root(options.root, check_options, terminal=Terminal())
    except BadInput as error:
        raise BadInput(name_option(str(error), purpose=_WITHOUT_IMAGES)) from None
    facts["stops"] = [name_option(stop, purpose=_WITHOUT_IMAGES) for stop in facts["stops"]]
    if str(options.json) == "-":
        sys.stdout.write(write_facts(facts))
    else:
        if options.json:
            with writing_for("--json", options.json):
                write_whole(options.json, write_facts(facts).encode())
        print_facts(facts)
    return EXIT_WOULD_STOP if facts["stops"] else 0


def _add_stats(commands: Any) -> None:
    parser = commands.add_parser(
        "stats",
        help="count a folder's origins, answers, reasoning and splits, and draw them",
        description="Counts origins and diagnoses, answers, lengths of reasoning, the flow of answers and splits (the "
        "paper's Figure 2 and Table 7): CSV and Markdown tables, PNG and SVG pictures. Of reasoning records: kinds, "
        f"boxes, stages, lengths, the majority answer of each topic, and examples with their boxes. {_RECORDS}",
    )
    _add_reading_options(parser)
    add(parser, "--out DIR", "folder for tables and pictures", type=local_path, required=True)
    add(parser, "--split-seed", "of splits drawn without split tables, default 0", 0)
    parser.set_defaults(run=_write_statistics)


def _write_statistics(options: argparse.Namespace) -> None:
    from stepcot_jax.data.sources.layouts import holds_questions, read_source, read_vqa_source
    from stepcot_jax.tools.data.statistics import write_case_statistics, write_vqa_statistics

    if holds_questions(options.root, options.layout):
        how: Any = {"on_bad_record": options.on_bad_record, "layout": options.layout, "require_images": False}
        how["box_size"] = options.box_size and tuple(options.box_size)
        questions = read_vqa_source(options.root, **how)
        make_workdir(options.out)
        names, notes = write_vqa_statistics(options.out, questions)
        what, num_aside = f"{len(questions.records):,} records", len(questions.set_aside)
        set_aside = f"{num_aside} {questions.unit}s"
    else:
        collection = read_source(options.root, require_images=False, **_reading_arguments(options))
        names, notes = write_case_statistics(options.out, collection, split_seed=options.split_seed)
        what, set_aside = f"{len(collection.cases):,} cases", f"{len(collection.set_aside)} records"
        num_aside = len(collection.set_aside)
    for note in [f"{set_aside} are set aside; `check` shows why"] * bool(num_aside) + notes:
        print(make_printable(note))
    print(make_printable(f"{what} in {options.out}: {', '.join(names)}"))


def _add_phantom(commands: Any) -> None:
    parser = commands.add_parser("phantom", help="draw chest phantoms with all seven answers, boxes and masks")
    parser.add_argument("folder", type=local_path, metavar="DIR", help="new or empty folder")
    add(parser, "--num-cases", "default 1000", 1000)
    add(parser, "--size", "height and width in pixels, default 256", 256)
    add(parser, "--prevalence", "of the diagnoses", "published", choices=("published", "flat"))
    add(parser, "--seed", "default 0", 0)
    parser.set_defaults(run=_draw_phantom)


def _draw_phantom(options: argparse.Namespace) -> None:
    from stepcot_jax.data.phantom.phantom import export_phantom

    how = {name: getattr(options, name) for name in ("num_cases", "seed", "size", "prevalence")}
    with writing_folder(options.folder) as partial:
        watch = functools.partial(Terminal().watch, description="drawing the phantom")
        export_phantom(partial, progress=watch, **how)
    print(f"{options.num_cases} cases in {options.folder}")


def _add_reading_options(parser: argparse.ArgumentParser) -> None:
    add(parser, "ROOT", "folder or file in any layout, or a folder on gs://, which is downloaded")
    add_layout(parser, tuple(dict.fromkeys((*CASES, *QUESTIONS))))
    size = "pixels of the picture that boxes refer to: required for GEMeX (config.vqa.box_size)"
    parser.add_argument("--box-size", type=int, nargs=2, metavar=("W", "H"), help=size)
    names = "of the chain's steps, in order (config.data.step_names); default: the seven of the paper"
    add(parser, "--step-names NAME", names, PUBLISHED_STEP_NAMES, nargs="+", action=ReadStepNames)
    bad = "stop at a bad record, or set it aside with its reason (config.data.on_bad_record); default stop"
    add(parser, "--on-bad-record", bad, "stop", choices=("stop", "skip"))
    several = "keep images with several findings (a run's data.single_label=False), in layouts with lists of findings"
    add(parser, "--several-labels", several, dest="single_label", action="store_false")
    table = "table that ChestX-ray8's labels come from (config.data.labels_from); default auto"
    add(parser, "--labels-from", table, "auto", choices=("auto", "boxes", "entries"))


def _reading_arguments(options: argparse.Namespace) -> dict[str, Any]:
    names = ("layout", "on_bad_record", "single_label", "labels_from")
    return {"step_names": tuple(options.step_names)} | {name: getattr(options, name) for name in names}


_WIDTH = 120
_MOST_ROWS, _MOST_REASONS = 1000, 20
_TITLE = ("root", "layout", "file")
_IN_LINES = ("stops", "notes", "shared_patients", "split_problems", "contradictions", "control_tokens", "equal_images")
"""Facts that lines below the tables tell of, or at least their number."""

Table = tuple[str, list[str], list[list[str]]]  # title, head and rows


def write_facts(facts: dict[str, Any]) -> str:
    """Return the facts as JSON in ASCII."""
    return json.dumps(facts, indent=1) + "\n"


def print_facts(facts: dict[str, Any], file: TextIO | None = None) -> None:
    """Print the facts as tables, with rules on a terminal alone."""
    file = file or sys.stdout
    from rich.console import Console

    on_screen = file.isatty()
    to = getattr(file, "unescaped", file) if on_screen else file
    console = Console(file=to, force_terminal=on_screen, width=None if on_screen else _WIDTH)
    for table in list_tables(facts):
        _print_table(console, table)
    for word, lines in (("note", facts["notes"]), ("stops a run", facts["stops"])):
        for line in lines:
            print(f"{word}: {make_printable(line)}", file=file)
    print("a run would stop" if facts["stops"] else "a run can use it", file=file)


def list_tables(facts: dict[str, Any]) -> list[Table]:
    """Return the facts as tables of printable cells: single values in the first, then one for each list."""
    single = {name: value for name, value in facts.items() if not isinstance(value, dict | list)}
    rows = [{"fact": name.replace("_", " "), "number": value} for name, value in single.items() if name not in _TITLE]
    tables = {f"{facts['root']}: {facts['layout']} ({facts['file']})": rows}
    left = (*_IN_LINES, *single, *(["steps"] if "parts" in facts else []))  # a tree has hundreds of steps
    for name in (name for name in facts if name not in left):
        rows, most = _list_rows(name, facts[name]), _MOST_REASONS if name == "set_aside_reasons" else _MOST_ROWS
        more = f" (the first {most} of {len(rows)}; all in --json)" if len(rows) > most else ""
        tables[name.replace("_", " ").capitalize() + more] = rows[:most]
    return [(make_printable(title), *_make_table(rows)) for title, rows in tables.items() if rows]


def _list_rows(name: str, fact: Any) -> list[dict[str, Any]]:
    """Return the rows of one table, by column: of a list of objects, or of counts by name."""
    if isinstance(fact, dict):
        rows = {key: value if isinstance(value, dict) else {"number": value} for key, value in fact.items()}
        return [{"name": key or "(none)", **value} for key, value in rows.items()]
    if name == "leaks":
        return [image for group in fact for image in group]
    if name == "steps":
        return [{**step, "answers": _list_answers(step)} for step in fact]
    return [
        row | ({"examples": list(map(_name_example, row["examples"]))} if "examples" in row else {}) for row in fact
    ]


def _list_answers(step: dict[str, Any]) -> dict[str, str]:
    return {name: f"{n:,} ({n / step['annotated']:.1%})" if n else "0" for name, n in step["answers"].items()}


def _name_example(example: dict[str, Any]) -> str:
    where, image = example.get("place") or str(example["record"]), example["image_path"][:60]
    return f"{where[:80]} ({image})" if image and image not in where else where[:80]


def _make_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of cells that cannot control the terminal; columns without any value are left out."""
    heads = [head for head in dict.fromkeys(head for row in rows for head in row) if head != "question"]
    heads = [head for head in heads if any(row.get(head) not in (None, {}, []) for row in rows)]
    cells = [[make_printable(_write_cell(row.get(head))) for head in heads] for row in rows]
    return [make_printable(head.replace("_", " ") or "(none)") for head in heads], cells


def _write_cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_write_cell(cell)}" for name, cell in value.items())
    if isinstance(value, list):
        return ", ".join(map(_write_cell, value))
    return "-" if value is None else value if isinstance(value, str) else f"{value:,.0f}"


def _print_table(console: Any, table: Table) -> None:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    title, head, rows = table
    shown = RichTable(box=box.HEAVY_HEAD if console.is_terminal else None, pad_edge=console.is_terminal)
    for name, cells in zip(head, zip(*rows, strict=True), strict=True):
        is_number = all(cell.replace(",", "").isdigit() or cell == "-" for cell in cells)
        shown.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    console.print(Text(title), soft_wrap=True)
    console.print(shown, Text())


def _add_tfds(commands: Any) -> None:
    parser = commands.add_parser(
        "tfds",
        help="prepare a folder for tensorflow_datasets",
        description="Prepare a folder in any layout of cases as the dataset `step_cot` of tensorflow_datasets, "
        "without tensorflow.",
    )
    add(parser, "ROOT", "folder with cases and images (docs/sources.md); or gs://")
    parser.add_argument("data_dir", type=local_path, metavar="DIR", help="where datasets are kept")
    add_layout(parser, CASES)
    add(parser, "--on-bad-record", "default stop", "stop", choices=("stop", "skip"))
    add(parser, "--split-seed", "of splits that are made; default 0", 0)
    add(parser, "--near-duplicate-radius", "in bits, for splits that are made; default 0, for none", 0)
    parser.set_defaults(run=_prepare_tfds)


def _prepare_tfds(options: argparse.Namespace) -> None:
    from stepcot_jax.data.sources.layout_table import detect_layout
    from stepcot_jax.data.tfds.source import QUARANTINE_NAME, Reading, import_tfds, open_prepared

    import_tfds()
    if options.layout == AUTO:
        detect_layout(options.root)  # before tensorflow_datasets says that it begins
    from stepcot_jax.data.tfds.builder import prepare  # imports tensorflow_datasets

    names = ("layout", "on_bad_record", "split_seed", "near_duplicate_radius")
    folder = prepare(options.root, options.data_dir, Reading(**{name: getattr(options, name) for name in names}))
    prepared = open_prepared(folder)
    counts = ", ".join(f"{len(indices)} {name}" for name, indices in prepared.splits.by_name().items())
    print(f"{len(prepared.collection.cases)} cases in {folder}: {counts} ({prepared.splits_source})")
    if num_aside := len(prepared.collection.set_aside):
        print(f"{num_aside} records are set aside, each with its reason in {folder / QUARANTINE_NAME}")


if __name__ == "__main__":
    run_tool(main)
